"""Ranks meet, also at another time; strangers, damaged bytes and second starts are kept out."""

import os
import socket
import ssl
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from host.pipeline import meeting, tls
from host.pipeline.config import PipelineConfig, PipelineError, read_pipeline_config
from host.pipeline.launch import Ranks, hold, own_ranks
from host.pipeline.links import LinkEvents, LinkReader, LinkWriter, RankLink
from host.pipeline.meeting import Meeting, Place, Wires, place_of
from host.pipeline.rank import choose_device, fill, hop, wanted_links
from host.pipeline.wire import HEAD_SIZE, LIMITS, Kind, LinkError, read_head, write_head
from ternmesh.config import ConfigError
from ternmesh.security.identity import Role, identity_text
from ternmesh_service.identity_file import make_identity_file, read_identity_file
from tests.host.pipeline_ranks import free_addresses, write_config

WANTED = {0: [(1, "boundary")], 1: [(0, "boundary")]}
Both = tuple[Wires, Wires]


def meet(places: list[Place], configs: list[PipelineConfig]) -> Both:
    """Two ranks connect, rank 1 first."""
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(lambda: Meeting(places[1], configs[1]).connect(WANTED[1]))
        time.sleep(0.05)  # it calls in vain
        early = pool.submit(lambda: Meeting(places[0], configs[0]).connect(WANTED[0]))
        return early.result()[1, "boundary"], late.result()[0, "boundary"]


def plain(count: int = 2) -> list[Place]:
    addresses = free_addresses(count)
    return [Place(rank, addresses, None, "secret") for rank in range(count)]


@pytest.fixture
def keyed(tmp_path: Path) -> tuple[list[Place], list[PipelineConfig]]:
    """Two ranks with identities, as if their addresses were not loopback."""
    addresses, publics, configs = free_addresses(2), [], []
    for rank in range(2):
        path = tmp_path / f"identity-{rank}"
        publics.append(make_identity_file(path, f"machine-{rank}", Role.HOST).public)
        configs.append(PipelineConfig("state", identity=str(path), timeout_s=30.0))
    return [Place(rank, addresses, publics) for rank in range(2)], configs


def links(wires: Wires, events: LinkEvents, size: int = 8) -> tuple[LinkWriter, LinkReader]:
    reader = LinkReader("rank 1", wires.incoming, events, {Kind.FORWARD: size}, print)
    writer = LinkWriter("rank 1", wires.outgoing, events)
    writer.start()
    reader.start()
    return writer, reader


@pytest.mark.parametrize("is_keyed", [False, True])
def test_messages_of_any_length_arrive_in_order(keyed: Any, is_keyed: bool) -> None:
    places, configs = keyed if is_keyed else (plain(), keyed[1])
    wires = meet(places, configs)
    assert wires[1].rtt_s > 0
    (writer, _), (_, reader) = (links(each, LinkEvents(30.0), 100_000) for each in wires)
    whole = torch.arange(100_000).to(torch.uint8)
    for number in range(40):  # more than are read ahead
        writer.send(Kind.FORWARD, whole, number)
        writer.send(Kind.NOTE, b"")
    for number in range(40):
        assert torch.equal(reader.take(Kind.FORWARD, number).body, whole)
        assert reader.take(Kind.NOTE).data == b""
    writer.close(30.0)
    with pytest.raises(LinkError, match="rank 1 is gone"):
        reader.take(Kind.NOTE)


def test_ranks_of_one_machine_meet_behind_a_router_that_leads_only_inwards() -> None:
    addresses = [f"192.0.2.1:{each.rpartition(':')[2]}" for each in free_addresses(2)]
    config = PipelineConfig("state", listen="0.0.0.0", timeout_s=30.0)
    meet([Place(rank, addresses, None) for rank in range(2)], [config] * 2)


@pytest.mark.parametrize(("wrong", "said"), [(0, "does not have the identity"), (1, "not answer")])
def test_a_peer_with_another_identity_is_refused(keyed: Any, tmp_path, wrong, said) -> None:
    """Rank 1 calls. Who is called by a stranger tells it nothing."""
    places, configs = keyed
    make_identity_file(tmp_path / "stranger", "stranger", Role.HOST)
    configs = [replace(config, timeout_s=3.0) for config in configs]
    configs[wrong] = replace(configs[wrong], identity=str(tmp_path / "stranger"))
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(Meeting(places[r], configs[r]).connect, WANTED[r]) for r in range(2)]
    assert said in str(jobs[1].exception())
    assert "rank 1 did not call" in str(jobs[0].exception())


def test_a_member_cannot_pass_for_another(keyed: Any) -> None:  # R11-1
    """Its certificate may name anybody: the key of its authority tells who it is."""
    places, configs = keyed
    own = Meeting(places[0], configs[0])
    hello = {"rank": 1, "to": 0, "purpose": "p", "way": "up", "token": ""}
    peers = places[0].peers or []
    assert own._refusal(hello, tls.authority_of(peers[1])) == ""
    assert own._refusal(hello, tls.authority_of(peers[0])) == "this is not the identity of rank 1"
    assert own._refusal({**hello, "to": 1}, "") == "this is rank 0 of another run"
    for bad in ({**hello, "rank": 0}, {**hello, "way": "on"}, {}, [""]):
        assert own._refusal(bad, "") == "this is no hello of a rank"


def test_a_member_signs_no_authority_in_the_name_of_another(keyed: Any, tmp_path: Path) -> None:
    """A certificate points to its authority by number, too: it need not come from the known one."""
    places, configs = keyed  # R11-1
    own = read_identity_file(configs[0].identity_path)
    keys = (
        Ed25519PrivateKey.from_private_bytes(own.seeds[:32]),
        *(Ed25519PrivateKey.generate() for _ in range(2)),
    )
    member, other = places[0].peers
    names = [tls.authority_of(member), tls.authority_of(other), tls.name_of(other)]
    named = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in names]
    chain = keys[2].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for at in (2, 1):
        times = at, tls.SINCE, tls.UNTIL
        made = x509.CertificateBuilder(named[at - 1], named[at], keys[at].public_key(), *times)
        made = made.add_extension(x509.BasicConstraints(at == 1, None), critical=True)
        if at == 2:
            points = x509.AuthorityKeyIdentifier(None, [x509.DirectoryName(named[0])], 1)
            made = made.add_extension(points, critical=False)
        chain += made.sign(keys[at - 1], None).public_bytes(Encoding.PEM)
    (tmp_path / "chain.pem").write_bytes(chain)
    caller = ssl._create_unverified_context()
    caller.load_cert_chain(tmp_path / "chain.pem")
    near, far = socket.socketpair()
    with ThreadPoolExecutor() as pool:
        pool.submit(caller.wrap_socket, near)
        with pytest.raises(ssl.SSLCertVerificationError, match="path length"):
            tls.context(own, [member, other], is_server=True).wrap_socket(far, server_side=True)


def test_strange_bytes_on_a_port_do_nothing_and_the_ranks_still_meet(caplog, eventually) -> None:
    places = plain(3)
    strange = b"\x80\x04" + bytes(40)
    wanted = {0: [(1, "a"), (2, "a")], 1: [(0, "a"), (2, "b")], 2: [(0, "a"), (1, "b")]}
    config = PipelineConfig("state", timeout_s=30.0)
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(Meeting(places[r], config).connect, wanted[r]) for r in (0, 1)]
        hellos = write_head(Kind.HELLO, 0, len(strange)) + strange
        for place in places[:2]:
            for data in (strange, hellos, b"", b"GET / HTTP/1.1\r\n\r\n" * 9):
                for _ in range(100):
                    try:
                        caller = socket.create_connection(place.own, 10.0)
                        break
                    except ConnectionRefusedError:
                        time.sleep(0.02)  # it does not listen yet
                with closing(caller), suppress(OSError):  # it closes the connection, or says no
                    caller.sendall(data)
                    caller.shutdown(socket.SHUT_WR)
                    while caller.recv(100):
                        pass
        jobs.append(pool.submit(Meeting(places[2], config).connect, wanted[2]))
        for job in jobs:
            assert len(job.result()) == 2
    eventually(lambda: caplog.text.count("was sent away") == 8, 30.0)
    assert "bytes that are no message of this version (80 04" in caplog.text
    for place in places:  # a port is open no longer than ranks meet
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place.own, 10.0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(30), "no message of this version"),
        (write_head(Kind.BACK, 0, 8), "kind 4, which cannot come here"),
        (write_head(Kind.FORWARD, 0, 9), "a forward of 9 bytes, and exactly 8 are allowed"),
        (write_head(Kind.NOTE, 0, 1 << 40), "a note of 1099511627776 bytes, and at most 16777216"),
        (write_head(Kind.FORWARD, 1, 8) + bytes(8), "sends forward 1 where forward 0 is due"),
        (write_head(Kind.FORWARD, 0, 8) + bytes(7), "its end of the connection is closed"),
    ],
)
def test_damaged_bytes_are_one_sentence(data: bytes, said: str) -> None:  # R11-2
    near, far = socket.socketpair()
    reader = LinkReader("rank 1", near, LinkEvents(30.0), {Kind.FORWARD: 8}, print)
    reader.start()
    far.sendall(data)
    far.close()
    with pytest.raises(LinkError, match=said):
        reader.take(Kind.FORWARD, 0)


@given(
    head=st.binary(min_size=HEAD_SIZE, max_size=HEAD_SIZE)
    | st.builds(write_head, st.sampled_from(Kind), st.integers(0, 9), st.integers(0, 1 << 63))
)
@settings(max_examples=200, deadline=None)
def test_a_head_is_within_limits_or_an_error(head: bytes) -> None:
    with suppress(LinkError):
        kind, _, size = read_head(head, {Kind.BACK: 5})
        assert size == 5 if kind is Kind.BACK else size <= LIMITS[kind]


def test_each_end_fills_a_link_before_the_first_payload() -> None:  # R11-3
    both = socket.socketpair(), socket.socketpair()
    ends = [Wires(both[0][0], both[1][0], 0.0), Wires(both[1][1], both[0][1], 0.0)]
    near, far = (RankLink(*links(end, LinkEvents(30.0)), 0.0) for end in ends)
    with ThreadPoolExecutor() as pool:
        filled = pool.submit(fill, {1: near})
        for _ in range(2):
            assert far.reader.take(Kind.FILLING).data == bytes(1 << 20)
            far.writer.send(Kind.FILLING, bytes(1 << 20))
        assert filled.result()[1] > 0
    assert near.writer.sent_bytes == 0  # it is no traffic of the training


def test_a_hop_is_its_latency_and_the_time_of_its_longest_payload() -> None:
    sizes = {0: {Kind.FORWARD: 4}, 2: {Kind.BACK: 1}}
    assert hop([0.04, 0.0], {0: 0.25, 2: 9.0}, sizes.__getitem__) == [0.04, 1.0]


def test_what_does_not_come_in_time_is_told() -> None:
    near, _far = socket.socketpair()
    reader = LinkReader("rank 3", near, LinkEvents(0.0), {}, print)
    with pytest.raises(LinkError, match="the note of rank 3 did not come within 0 s"):
        reader.take(Kind.NOTE)


def test_missing_ranks_are_named() -> None:
    config = PipelineConfig("state", timeout_s=0.0)
    with pytest.raises(LinkError, match="rank 1 did not call within 0 s: is it started"):
        Meeting(plain()[0], config).connect(WANTED[0])
    with pytest.raises(LinkError, match=r"rank 0 at 127\.0\.0\.1:.* does not answer"):
        Meeting(plain()[1], config).connect(WANTED[1])


def test_other_machines_need_keys(tmp_path: Path) -> None:
    addresses = ["10.0.0.1:29400", "10.0.0.2:29400"]
    path = write_config(tmp_path, addresses=addresses)
    config = read_pipeline_config(path)
    with pytest.raises(PipelineError, match=r"10\.0\.0\.1 is another machine, and identities are"):
        place_of(config, 0, addresses, "", False)
    assert place_of(config, 0, addresses, "", True).peers is None
    publics = [make_identity_file(tmp_path / n, n, Role.HOST).public for n in ("a", "b")]
    lines = [identity_text(public) for public in publics]
    keyed: dict[str, Any] = {"addresses": addresses, "identities": lines, "identity": "b"}
    known = read_pipeline_config(write_config(tmp_path, **keyed))
    assert place_of(known, 1, addresses, "", False).peers == publics
    with pytest.raises(PipelineError, match=r"another key for 10\.0\.0\.1 than .*b has: copy"):
        place_of(known, 0, addresses, "", False)
    with pytest.raises(PipelineError, match="say with --host which of them this machine is"):
        Ranks(config, path)
    assert own_ranks(config, "10.0.0.2") == [1]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"addresses": addresses[:1]}, "must name one for each of the 2 ranks"),
        ({"addresses": ["a:1", "b"]}, "write HOST:PORT"),
        ({"addresses": addresses, "identities": lines[:1]}, "one for each of the hosts 10.0.0.1"),
        ({"boundary__slow": ["1"]}, 'boundaries are "0" to "0"'),
    ]
    for wrong, said in cases:
        with pytest.raises(ConfigError, match=said):
            read_pipeline_config(write_config(tmp_path, **wrong))


def test_where_there_is_no_bbr_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(0, ["10.0.0.1:1", "10.0.0.2:1"], None)
    assert Meeting(place, PipelineConfig("state", congestion="cubic")).transport == "cubic, no TLS"

    def without_bbr(connection: socket.socket, _: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, meeting.TCP_CONGESTION, b"reno")

    monkeypatch.setattr(meeting, "_tune", without_bbr)
    said = Meeting(place, PipelineConfig("state")).transport
    assert said == "reno (this kernel has no bbr: modprobe tcp_bbr), no TLS"


def test_each_rank_is_linked_with_its_neighbours_its_replicas_and_rank_0() -> None:
    config = PipelineConfig("state", stages=3)
    config = replace(config, replicas=replace(config.replicas, count=2))
    found = {rank: set(wanted_links(config, rank)) for rank in range(6)}
    assert found[4] == {(0, "control"), (3, "boundary"), (5, "boundary"), (1, "replica")}
    for rank, wanted in found.items():
        assert all((rank, purpose) in found[other] for other, purpose in wanted)


def test_a_second_start_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    config = read_pipeline_config(write_config(tmp_path))
    with hold(config.folder, 1):
        assert stat.S_IMODE(config.folder.stat().st_mode) == 0o700
        log = config.folder / "ranks.log"
        log.write_text("of the first start")
        said = f"other ranks train in .*: end them first \\(kill {os.getppid()}\\)"
        with pytest.raises(PipelineError, match=said):
            Ranks(config, tmp_path / "run.toml").start()
        assert log.read_text() == "of the first start"
    hold(config.folder, 1).close()


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = read_pipeline_config(write_config(tmp_path, state_dir="file"))
    with pytest.raises(PipelineError, match=r"state_dir cannot be used: .*file"):
        Ranks(config, tmp_path / "run.toml").start()


@pytest.mark.parametrize(
    ("device", "gpus", "chosen"),
    [
        ("auto", 0, "cpu (auto: no GPU here)"),
        ("auto", 1, "cuda:0 (H100)"),  # ranks take turns
        ("auto", 2, "cuda:1 (H100)"),
        ("cpu", 2, "cpu"),
    ],
)
def test_each_rank_chooses_a_device_and_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, gpus: int, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    config = read_pipeline_config(write_config(tmp_path, device=device))
    place = Place(3, ["a:1", "a:2", "b:1", "b:2"], None)  # the second rank of its machine
    assert choose_device(config, place)[1] == chosen
    if gpus == 0:
        with pytest.raises(PipelineError, match="torch finds no GPU"):
            choose_device(replace(config, device="cuda"), place)
