"""Hosts that are voters of one fleet: what they tell each other; real ones at a real broker."""

import re
import shutil
import struct
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import cbor2
import numpy as np
import pytest

from bench.loopback import LoopbackHub
from host import council as council_module
from host import membership, voter_bus
from host.config import AgreementConfig, HostConfig, read_host_config
from host.council import Council
from host.service import HostService, Program
from host.voter_bus import PART_MAX, Matter, VoterBus
from host.voting import Voting
from ternmesh.config import ConfigError
from ternmesh.errors import WireError
from ternmesh.federated.agreement.voters import make_voters
from ternmesh.federated.events import BodyAccepted, NodeJoined, Proposed
from ternmesh.federated.replica import ProposedUpdate, write_proposal
from ternmesh.federated.state import HostSettings
from ternmesh.plan import make_plan
from ternmesh.security.identity import Role, identity_text, make_identity
from ternmesh.security.membership import MemberList, fleet_text, write_fleet
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_service.control_socket import RETURN, ControlError, ask
from ternmesh_service.identity_file import make_identity_file
from ternmesh_service.keyring import Keyring, opened
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import StateFile
from tests.mosquitto import Mosquitto
from tests.programs import Process, host_settings, running, speaker
from transports.link_config import LinkConfig

NAMES = ("attic", "barn", "cellar", "dairy")
BOARDS = ("theo", "nicolas")
MODEL = bytes(32)
Eventually = Callable[..., Any]


def host_key(seed: int = 1) -> Any:
    return make_identity("host", Role.HOST, np.random.default_rng(seed).bytes(64))


class Broker:
    """Passes on what is published, to all."""

    def __init__(self) -> None:
        self.ends: list[deque[tuple[str, bytes]]] = []

    def client(self) -> Any:
        arrivals: deque[tuple[str, bytes]] = deque()
        self.ends.append(arrivals)

        class Client:
            def publish(_, name: str, payload: bytes) -> bool:
                for end in self.ends:
                    end.append((name, payload))
                return True

            def drain(_) -> list[tuple[str, bytes]]:
                taken = list(arrivals)
                arrivals.clear()
                return taken

        return Client()

    def bus(self, seed: int = 1) -> VoterBus:
        return VoterBus((self.client(),), "voters", host_key(seed))


@pytest.mark.parametrize("size", [0, 1, PART_MAX, PART_MAX + 1, 3 * PART_MAX])
def test_a_message_of_any_size_arrives_once(size: int) -> None:
    broker = Broker()
    one, other = broker.bus(), broker.bus()
    body = np.random.default_rng(size).bytes(size)
    one.send(Matter.COPY, body)
    assert all(len(payload) <= 2 * PART_MAX for _, payload in broker.ends[1])
    assert list(other.receive()) == [(Matter.COPY, body)]
    assert list(other.receive()) == []
    assert list(one.receive()) == [(Matter.COPY, body)]


def test_a_message_over_two_brokers_is_taken_once_and_one_may_die() -> None:
    brokers = Broker(), Broker()
    one, other = (VoterBus([b.client() for b in brokers], "voters", host_key()) for _ in range(2))
    body = bytes(2 * PART_MAX)
    one.send(Matter.COPY, body)
    assert list(other.receive()) == [(Matter.COPY, body)]
    brokers[0].ends.clear()
    one.send(Matter.HERE, b"")
    assert list(other.receive()) == [(Matter.HERE, b"")]


def test_strangers_say_nothing_and_parts_are_few() -> None:
    broker = Broker()
    one, stranger = broker.bus(), broker.bus(seed=2)
    stranger.send(Matter.HERE, b"\0")
    broker.ends[0].append(("voters", b"short"))
    assert list(one.receive()) == []
    assert one.strange == 2
    for _ in range(3 * voter_bus.PARTIAL_MAX):
        one.send(Matter.COPY, bytes(2 * PART_MAX))
        broker.ends[0].pop()  # its second part is lost
    assert list(one.receive()) == []
    assert len(one._partial) <= voter_bus.PARTIAL_MAX


def lines_of(*names: str) -> tuple[str, ...]:
    made = (make_identity(n, Role.OBSERVER, np.random.default_rng(9).bytes(64)) for n in names)
    return tuple(identity_text(identity.public) for identity in made)


@pytest.mark.parametrize(
    ("name", "voters", "mode", "said"),
    [
        ("shed", lines_of(*NAMES[:3]), "crash", "no line of agreement.voters has it"),
        ("barn", lines_of(*NAMES), "crash", "4 voters bear no more faults"),
        ("barn", lines_of(*NAMES[:3]), "bft", "take 4"),
        ("barn", lines_of("barn", "barn", "attic"), "crash", "two voters have one name"),
        ("barn", ("nothing",), "crash", "agreement.voters: "),
        ("barn", lines_of(*NAMES), "bft", "threshold = 2 on all hosts and boards"),
    ],
)
def test_seats_that_cannot_be(
    tmp_path: Path, name: str, voters: tuple[str, ...], mode: str, said: str
) -> None:
    path = tmp_path / "host.toml"
    seat = {"name": name, "voters": voters, "mode": mode}
    text = 'state_dir = "state"\nmodel = "keyword"\n[link]\nurl = "mqtt://127.0.0.1:1"\n'
    path.write_text(text + write_toml({"agreement": seat}))
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_host_config(path)


def test_a_copy_of_a_run_is_all_that_another_host_needs(tmp_path: Path) -> None:
    stores = []
    for name in NAMES[:2]:
        state = StateFile(tmp_path / name)
        state.open()
        stores.append(HostStore(state))
    one, other = stores
    plan = make_plan(50, rounds=3, local_steps=1, learning_rate=0.1)
    begun = one.begin(b"run-id-8", plan, bytes(32))
    one.record(NodeJoined(1, "theo", 10))
    one.record(BodyAccepted(1, 0, b"body"))
    one.keep_base(0)
    one.commit()
    other.begin(b"another!", plan, bytes(32))
    with pytest.raises(ValueError, match="copy"):
        other.take_copy(b"\xa0")
    other.take_copy(one.copied())
    other.commit()
    taken = other.load(bytes(32))
    assert taken.run == begun.run
    assert [node.name for node in taken.state.nodes] == ["theo"]
    assert (taken.state.bodies, other.base) == (((1, b"body"),), 0)


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[tuple[Council, Keyring]]:
    """The place of a host among three voters, whose broker is away."""
    enrol_fleet("attic", tmp_path, {})
    own = make_identity_file(tmp_path / "voter", "barn", Role.OBSERVER).public
    lines = (*lines_of("attic", "cellar"), identity_text(own))
    link = LinkConfig(url="mqtt://127.0.0.1:1", fleet="attic")
    config = HostConfig(str(tmp_path), "keyword", link, agreement=AgreementConfig("barn", lines))
    keyring = Keyring(StateFile(tmp_path), config.security)
    with opened(keyring.state, keyring, "attic"):
        store = HostStore(keyring.state)
        plan = make_plan(50, rounds=3, local_steps=1, learning_rate=0.1)
        stored = store.begin(b"run-id-8", plan, MODEL)
        voting = Voting(keyring, HostSettings(has_voters=True), MODEL, store)
        with voting.seated(config, stored) as council:
            yield council, keyring


def test_what_a_lying_voter_says_ends_no_host(seat: tuple[Council, Keyring]) -> None:
    council, _ = seat
    broker = Broker()
    council.bus, liar = broker.bus(), broker.bus()
    council.lead(Mock(version=0))
    for matter in Matter:
        for body in (
            b"",
            b"\0",
            b"\xff",
            cbor2.dumps([9, 9, bytes(200), b""]),
            cbor2.dumps([[], []]),
            cbor2.dumps([-(2**70), []]),
            cbor2.dumps([2**60, {}]),
            cbor2.dumps([1.5, {"boards": 7}, [], []]),
        ):
            liar.send(matter, body)
    council.turn(1.0)
    council.host = None
    assert council.version == 0


def test_a_full_disk_ends_a_voter(seat: tuple[Council, Keyring], monkeypatch: Any) -> None:
    council, _ = seat
    broker = Broker()
    council.bus, other = broker.bus(), broker.bus()
    other.send(Matter.AGREEMENT, b"")
    monkeypatch.setattr(Council, "_receive", Mock(side_effect=OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        council.turn(1.0)


def test_a_voter_that_led_forgets_what_only_it_knows(tmp_path: Path) -> None:
    state = StateFile(tmp_path)
    state.open()
    store = HostStore(state)
    store.begin(b"run-id-8", make_plan(50, rounds=3, local_steps=1, learning_rate=0.1), MODEL)
    store.record(NodeJoined(1, "theo", 10))
    store.record(BodyAccepted(1, 0, b"body"))
    store.forget_open_round()
    store.record(NodeJoined(2, "theo", 10))  # as the next leader has taken it in
    store.commit()
    found = store.load(MODEL)
    assert [(node.address, node.name) for node in found.state.nodes] == [(2, "theo")]
    assert found.state.bodies == ()


def test_a_liar_neither_replaces_a_run_nor_fills_a_certificate(
    seat: tuple[Council, Keyring],
) -> None:
    council, keyring = seat
    broker = Broker()
    council.bus, liar = broker.bus(), broker.bus()
    fleet = write_fleet(keyring.own, keyring.member_list.state)
    tables = cbor2.loads(council.store.copied())
    tables["host_run"][0][3] = 7  # the version
    for data in ({}, tables, {**tables, "host_run": [["x"]]}, {**tables, "host_value": 1}):
        liar.send(Matter.COPY, cbor2.dumps([7, 0, fleet, cbor2.dumps(data), b"", b"\x80"]))
    rows = [[number, bytes(64)] for number in range(2 * council_module.ROWS_MAX)]
    for row in [*rows, [-1, bytes(64)], ["0", bytes(64)], [0, "signature"]]:
        liar.send(Matter.SIGNED, cbor2.dumps([1, [row]]))
    council.turn(1.0)
    assert council.version == 0
    assert len(council._rows) == council_module.ROWS_MAX
    assert council.authenticator.valid_rows(bytes(8), b"content", council._rows) == {}
    own = council.authenticator.certify(bytes(8), b"content")
    assert council.authenticator.valid_rows(bytes(8), b"content", own) == dict(own)
    council.check_copy = lambda _: None  # of a certified but older version
    plan = make_plan(50, rounds=3, local_steps=1, learning_rate=0.1)
    council.store.begin(b"run-id-8", plan, MODEL)
    council.store.keep_base(0)
    with pytest.raises(WireError, match="than it says"):
        council._take_copy(7, 0, fleet, council.store.copied(), b"", b"\x80")


def test_no_voter_brings_members_where_voters_may_lie(  # R13.7-6
    seat: tuple[Council, Keyring], caplog: pytest.LogCaptureFixture
) -> None:
    council, keyring = seat
    broker = Broker()
    council.bus, other = broker.bus(), broker.bus()
    trial = MemberList(keyring.member_list.state)
    trial.enrol(make_identity("sybil", Role.NODE, bytes(range(64))).public)
    fleet = write_fleet(keyring.own, trial.state)
    copy = cbor2.dumps([0, trial.number, fleet, b"", b"", b""])
    council.voter.voters = make_voters(bytes(12), NAMES, "bft")
    here = struct.pack("<BI", 1, trial.number)  # as an older version says it
    for matter, body in ((Matter.COPY, copy), (Matter.HERE, here)):
        other.send(matter, body)
    council.turn(1.0)
    for _ in range(9):  # it is said once
        other.send(Matter.HERE, here)
        council.turn(1.5)
    assert caplog.text.count("list 1 of members, and this one 0") == 1
    assert keyring.member_list.known("sybil") is None
    answer = membership.answer(keyring, {"enrol": "import", "fleet_list": fleet_text(fleet)})
    assert [row["name"] for row in answer["members"]] == ["sybil"]  # by the owner
    council.voter.voters = make_voters(bytes(12), NAMES[:3], "crash")
    trial.revoke("sybil")
    fleet = write_fleet(keyring.own, trial.state)
    other.send(Matter.COPY, cbor2.dumps([0, trial.number, fleet, b"", b"", b""]))
    council.turn(2.0)
    assert keyring.member_list.number == 2


@pytest.mark.parametrize("more", [(), ("ef",)])
def test_two_lists_that_differ_become_the_next(  # R13.7-9
    seat: tuple[Council, Keyring], more: tuple[str, ...]
) -> None:
    council, keyring = seat
    broker = Broker()
    council.bus, other = broker.bus(), broker.bus()
    boards = {
        name: make_identity(name, Role.NODE, bytes(range(at, at + 64))).public
        for at, name in enumerate(("ab", "cd", *more))
    }
    mine = keyring.member_list
    mine.enrol(boards["ab"])
    theirs = MemberList(mine.state)
    theirs.revoke("ab")
    mine.enrol(boards["cd"])
    for name in more:
        theirs.enrol(boards[name])
    other.send(Matter.HERE, council_module.HERE.pack(1, theirs.number, b"hash", bytes(8)))
    council.turn(1.0)
    wanted = [cbor2.loads(body) for matter, body in other.receive() if matter is Matter.COPY_WANTED]
    assert wanted == [[0, mine.number - (not more)]]
    fleet = write_fleet(keyring.own, theirs.state)
    other.send(Matter.COPY, cbor2.dumps([0, theirs.number, fleet, b"", b"", b""]))
    council.turn(2.0)
    assert (mine.number, {*mine.boards()}) == (theirs.number + 1, {"cd", *more})


def leading(council: Council, keyring: Keyring) -> HostService:
    """The host of a voter that leads where one of four may lie."""
    council.voter.voters = make_voters(bytes(12), NAMES, "bft")
    end = LoopbackHub().host()
    end.open()
    stored, settings = council.store.load(MODEL), HostSettings(has_voters=True, bears_liars=True)
    assert stored is not None
    service = HostService(
        stored, settings, MODEL, council.store, end, lambda: 1.0, keyring, council=council
    )
    council.lead(service.protocol)
    return service


def test_no_voter_says_who_is_a_member_or_muted(  # R13.7-8
    seat: tuple[Council, Keyring], monkeypatch: pytest.MonkeyPatch
) -> None:
    council, keyring = seat
    broker = Broker()
    council.bus, liar = broker.bus(), broker.bus()
    early = cbor2.dumps([council._nonce + bytes(8), {RETURN: 1}])
    liar.send(Matter.REQUEST, early)  # it is not taken, and may not be repeated
    council.turn(0.5)
    service = leading(council, keyring)
    liar.send(Matter.REQUEST, early)
    council.turn(0.6)
    assert not council.requests
    sybil = make_identity("sybil", Role.NODE, bytes(range(64))).public
    for number, request in enumerate(
        (
            {"enrol": "add", "identities": {"": identity_text(sybil)}},
            {"enrol": "code", "role": "node", "minutes": 5},
            {"boards": [], "mute": True},
            {RETURN: 1},
        )
    ):
        name = council._nonce + number.to_bytes(8, "big")
        liar.send(Matter.REQUEST, cbor2.dumps([name, request]))
        council.turn(1.0)
        liar.send(Matter.REQUEST, cbor2.dumps([name, request]))  # again, by who has heard it
    council.turn(1.0)
    assert len(council.requests) == 4
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(Council, "answer", lambda _, __, answer: said.append(dict(answer)))
    Program._answer_others(SimpleNamespace(council=council), service)  # type: ignore[arg-type]
    assert all("error" in answer for answer in said)
    assert len(said) == 4
    assert keyring.member_list.known("sybil") is None
    added = service.manage({"enrol": "add", "identities": {"": identity_text(sybil)}})
    assert [row["name"] for row in added["members"]] == ["sybil"]  # here, by the owner
    assert "enrol add" in service.manage({"enrol": "code", "role": "node", "minutes": 5})["error"]


def test_a_leader_outlives_a_round_that_it_cannot_stand_by(seat: tuple[Council, Keyring]) -> None:
    council, keyring = seat
    service = leading(council, keyring)
    council.reproduce = Mock(side_effect=WireError("revoked", "a board of the round"))
    council.store.record(NodeJoined(1, "theo", 10))
    council.store.record(BodyAccepted(1, 0, b"body"))
    council.propose(Proposed(1, b"", None), 1.0)
    assert council.store.bodies() == ()
    assert council.is_deposed(1.0)
    assert service.protocol is council.host


def test_making_a_proposal_again_leaves_the_broadcast_key_alone(
    seat: tuple[Council, Keyring],
) -> None:
    council, keyring = seat
    live = keyring.security("host", MODEL, 0).sealing
    item = ProposedUpdate(bytes(8), 1, bytes(16), 0, (), None, (), (), b"", bytes(32))
    stored = council.store.load(MODEL)
    assert stored is not None
    council.start(0.0, write_proposal(item))  # as an older version has kept it
    assert [*council._proposals.values()] == [write_proposal(item)]
    with pytest.raises(WireError):
        council.reproduce(item, stored)
    assert [*keyring._sealings.values()] == [live]


class Voters:
    """A fleet whose host has become `count` voters, each in a folder of its own."""

    def __init__(
        self, folder: Path, link: dict[str, Any], count: int, mode: str, eventually: Eventually
    ) -> None:
        names = NAMES[:count]
        run = {"rounds": 6, "min_peers": 2, "deadline_s": 20, "local_steps": 1}
        enrol_fleet("ternmesh", folder / "host", {name: folder / name for name in BOARDS})
        first = Process("host", folder / "host", host_settings(link, **run))
        first.start()
        eventually(lambda: first.status() is not None, 60.0)
        first.stop()
        for name in names:
            shutil.copytree(folder / "host", folder / name)
        publics = [
            identity_text(make_identity_file(folder / name / "voter", name, Role.OBSERVER).public)
            for name in names
        ]
        signed = {"signers": publics, "threshold": (count - 1) // 3 + 1} if mode == "bft" else {}
        top = tomllib.loads(first.config.read_text())
        tables = {"": {key: top[key] for key in ("state_dir", "model")}}
        tables |= {"link": top["link"], "run": top["run"]}
        self.hosts = {}
        for name in names:
            own = {"name": name, "voters": publics, "mode": mode, "timeout_s": 2.0}
            seat = {"agreement": own, "security": {**signed, "signer_files": ["voter"]}}
            seat = seat if signed else {"agreement": own}
            self.hosts[name] = Process("host", folder / name, write_toml({**tables, **seat}))
        self.boards = [
            Process(
                "node",
                folder / name,
                write_toml(
                    {
                        "": {"name": name, **tables[""]},
                        "link": link,
                        "data": speaker(name),
                        **({"security": signed} if signed else {}),
                    }
                ),
            )
            for name in BOARDS
        ]

    @property
    def everyone(self) -> list[Process]:
        return [*self.hosts.values(), *self.boards]

    def seats(self) -> list[Any]:
        """What the voters that run say."""
        said = [host.status() for host in self.hosts.values() if host.runs]
        return [status for status in said if status]

    def know_that_is_away(self, leader: str) -> bool:
        """Whether the others miss it, and another one leads."""
        said = [(s["agreement"], s["transport"]["connected"]) for s in self.seats()]
        return all(
            seat["missing"] == [leader] and seat["leader"] != leader and is_connected
            for seat, is_connected in said
        )

    def versions(self) -> set[int]:
        return {status["version"] for status in self.seats()}


def outlives_its_leader(
    folder: Path, brokers: list[Mosquitto], count: int, mode: str, eventually: Any
) -> None:
    """The leader is killed with its broker if there are several, and comes back.

    Nothing is lost, and all end with one adapter.
    """
    first, *also = brokers
    further = {f"broker-{number}": {"url": one.url} for number, one in enumerate(also)}
    link = {"url": first.url, **({"also": further} if further else {})}
    voters = Voters(folder, link, count, mode, eventually)
    with running(*voters.everyone):
        eventually(lambda: voters.versions() == {2} or max(voters.versions(), default=0) > 2, 90.0)
        leader = voters.seats()[0]["agreement"]["leader"]
        follower = next(host for name, host in voters.hosts.items() if name != leader)
        asked = ask(follower.folder / "control.sock", {"boards": "all"}, 30.0)
        assert {row["name"] for row in asked["boards"]} == set(BOARDS)
        with pytest.raises(ControlError, match="zoe is no board"):
            ask(follower.folder / "control.sock", {"boards": "zoe"}, 30.0)
        voters.hosts[leader].kill9()
        if also:
            first.kill9()
        killed_at = max(voters.versions())
        eventually(lambda: min(voters.versions(), default=0) > killed_at, 90.0)
        eventually(lambda: voters.know_that_is_away(leader), 90.0)
        voters.hosts[leader].start()
        eventually(lambda: len(voters.seats()) == count and voters.versions() == {6}, 90.0)
        assert len({status["global_hash"] for status in voters.seats()}) == 1
        eventually(lambda: all(board.status()["version"] == 6 for board in voters.boards), 60.0)


def test_a_fleet_outlives_its_leader(mosquitto: Any, tmp_path: Path, eventually: Any) -> None:
    outlives_its_leader(tmp_path, [mosquitto], 3, "crash", eventually)


@pytest.mark.nightly
def test_four_voters_of_which_one_may_lie_with_two_brokers(
    new_mosquitto: Callable[..., Mosquitto], tmp_path: Path, eventually: Any
) -> None:
    brokers = [new_mosquitto(), new_mosquitto()]
    outlives_its_leader(tmp_path, brokers, 4, "bft", eventually)
