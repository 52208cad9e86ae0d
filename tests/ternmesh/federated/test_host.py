"""The host's side: what it refuses and why, when it closes a round, what it survives."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_update
from ternmesh.federated.evaluation import NOT_EVALUATED
from ternmesh.federated.events import AddedUp, GlobalUpdateMade, Refused, UpdateForgotten
from ternmesh.federated.open_round import round_of
from ternmesh.security.membership import HOST
from ternmesh.wire import control, update
from ternmesh.wire.control import OPEN
from ternmesh.wire.frame import UNASSIGNED, Header, open_seal, seal_open

MODEL = bytes(range(32))
New = Callable[..., Any]


def packet(bench: Any, address: int, number: int = 0, seed: int = 0) -> list[bytes]:
    """The sealed frames of a good update: manifest first."""
    chunks = encode_update(bench.delta(seed), MODEL, number, bench.plan)[0]
    digest = update.update_digest(chunks)
    head = update.Manifest(number & 0xFFFF, MODEL[:8], 10, digest, len(chunks))
    bodies = [update.write_manifest(head), *chunks]
    return [seal_open(Header(address, i), body) for i, body in enumerate(bodies)]


def opened(frame: bytes) -> bytes:
    return open_seal(frame)[1]


def resealed(frame: bytes, at: int, data: bytes) -> bytes:
    """The frame with some bytes of its body changed, under a good seal."""
    header, body = open_seal(frame)
    return seal_open(header, body[:at] + data + body[at + len(data) :])


def sealed(message: control.Control, address: int = 1) -> bytes:
    return seal_open(Header(address, 0), control.write_control(message))


@pytest.fixture
def bench(new_bench: New) -> Any:
    """An open round with one node, context 1."""
    made = new_bench(deadline_s=30)
    made.join("theo")
    assert made.host.phase == OPEN
    return made


FRAMES: dict[str, tuple[str, Callable[[list[bytes]], bytes]]] = {
    "empty": ("length", lambda f: b""),
    "truncated": ("seal", lambda f: f[1][:-1]),
    "of another suite": ("suite", lambda f: b"\x24" + f[1][1:]),
    "of an unknown node": ("unknown node", lambda f: seal_open(Header(9, 0), opened(f[1]))),
    "from the host": ("unknown node", lambda f: seal_open(Header(0xFFFF, 0), opened(f[1]))),
    "of an old round": ("old round", lambda f: resealed(f[1], 1, b"\xff\xff")),
    "of a future round": ("future round", lambda f: resealed(f[1], 1, b"\x01\x00")),
    "of another model": ("wrong model", lambda f: resealed(f[0], 3, b"othermod")),
    "of another length": ("vector length", lambda f: resealed(f[0], 19, b"\x09\x00")),
    "a share too many": ("vector length", lambda f: resealed(f[1], 3, b"\x09\x00")),
    "an absurd scale": ("scale", lambda f: resealed(f[1], 5, b"\xff\x9f")),
    "a scale that is none": ("scale", lambda f: resealed(f[1], 5, b"\xff\xff")),
    "a scale of zero": ("scale", lambda f: resealed(f[1], 5, b"\x00\x00")),
    "an unknown coding": ("coding", lambda f: resealed(f[1], 9, b"\x30")),
    "another count": ("coding", lambda f: resealed(f[1], 7, b"\x01\x00")),
    "no samples": ("manifest", lambda f: resealed(f[0], 11, bytes(4))),
    "an unknown flag": ("length", lambda f: resealed(f[0], 21, b"\x01")),
    "no control message": ("control", lambda f: resealed(f[1], 0, b"\x01")),
    "a refusal": ("kind", lambda f: sealed(control.Refusal(0, "other"))),
    "a silence that the plan does not know": ("kind", lambda f: sealed(control.Silent(0))),
    "a piece": ("kind", lambda f: resealed(f[1], 0, b"\x04")),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_bad_frame_is_counted_by_its_reason_and_loses_no_round(bench: Any, name: str) -> None:
    # R6.1-2, R6.6-1
    reason, make = FRAMES[name]
    frames = packet(bench, 1)
    bench.host.receive_frames("theo", [make(frames)], bench.now)
    assert bench.host.refused == {reason: 1}
    assert bench.host.nodes[1].refused == {reason: 1}
    assert bench.host.next_event() == Refused("theo", reason)
    bench.host.receive_frames("theo", frames, bench.now)
    assert bench.host.version == 1
    assert bench.host.refused == {reason: 1}


@pytest.mark.parametrize("kind", [update.MANIFEST_KIND, update.CHUNK_KIND])
def test_a_body_without_its_round_is_of_no_round(bench: Any, kind: int) -> None:
    with pytest.raises(WireError) as caught:
        round_of(bytes([kind, 0]), 70_000, bench.plan)
    assert caught.value.reason == "length"


HELLO = control.Hello("yan", bytes(8), MODEL[:8], bytes(8), 0, bytes(16), 5)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (replace(HELLO, model=b"othermod"), "wrong model"),
        (replace(HELLO, name="theo"), "wrong peer"),
        (replace(HELLO, samples=(1 << 20) + 1), "samples"),
        (control.Announce(bytes(8), 0, 0, 0), "kind"),
    ],
)
def test_why_a_hello_is_refused(bench: Any, hello: control.Control, reason: str) -> None:
    frame = seal_open(Header(UNASSIGNED, 0), control.write_control(hello))
    bench.host.receive_frames("yan", [frame], bench.now)
    assert bench.host.refused == {reason: 1}
    assert len(bench.host.nodes) == 1


def test_a_host_has_room_for_so_many(new_bench: New) -> None:
    bench = new_bench(nodes_max=1, min_peers=2)
    bench.add("theo")
    yan = bench.add("yan")
    bench.exchange()
    assert bench.host.refused["full"] >= 1
    assert yan.refused["full"] >= 1
    assert not yan.joined


def test_a_packet_that_does_not_add_up_is_forgotten_and_may_come_again(bench: Any) -> None:
    # R4.2-2, R6.4-3
    first, second = packet(bench, 1, seed=1), packet(bench, 1, seed=2)
    bench.host.receive_frames("theo", [*first[:2], *second[2:]], bench.now)
    assert bench.host.refused == {"digest": 1}
    assert bench.host.round.delivered(1) == "none"
    bench.take(HOST)
    assert bench.last(HOST, UpdateForgotten) == UpdateForgotten(1, 0)
    bench.host.receive_frames("theo", first, bench.now)
    assert bench.host.version == 1


def said(bench: Any, name: str, **changes: Any) -> None:
    """A hello of a node, with some fields changed."""
    host = bench.host
    state = host.run, host.version, host.global_hash
    hello = control.Hello(name, b"new boot", MODEL[:8], *state, 10)
    body = control.write_control(replace(hello, **changes))
    host.receive_frames(name, [seal_open(Header(UNASSIGNED, 0), body)], bench.now)


def test_a_node_that_lost_its_state_does_not_mix_two_packets(bench: Any) -> None:  # R6.4-4
    bench.add("yan")
    bench.exchange()
    first, second = packet(bench, 1, seed=1), packet(bench, 1, seed=2)
    bench.host.receive_frames("theo", first[:3], bench.now)
    bench.take(HOST)
    bench.host.receive_frames("theo", second[:2], bench.now)
    assert bench.host.round.updates[1].have == b"\x01"
    bench.take(HOST)
    assert bench.last(HOST, UpdateForgotten) == UpdateForgotten(1, 0)
    bench.host.receive_frames("theo", second[2:], bench.now)
    assert bench.host.round.delivered(1) == "whole"
    assert not bench.host.refused


def test_a_receipt_says_what_is_here_also_as_an_answer_to_a_hello(bench: Any) -> None:  # R6.4-1
    bench.add("yan")
    bench.exchange()
    frames = packet(bench, 1)
    digest = update.read_manifest(opened(frames[0])).digest
    for sent, have in (([frames[1]], None), ([frames[0]], b"\x01"), (frames[2:], b"\x07")):
        bench.host.receive_frames("theo", sent, bench.now)
        out = [control.read_control(opened(f)) for p, f in bench.take(HOST) if p == "theo"]
        assert out == ([] if have is None else [control.Receipt(0, digest, have)])
    said(bench, "theo")
    assert control.Receipt(0, digest, b"\x07") in [
        control.read_control(opened(f)) for p, f in bench.take(HOST) if p == "theo"
    ]


def test_the_deadline_closes_a_round_with_what_is_there(bench: Any) -> None:  # R6.2-3
    bench.add("yan", samples=40)
    bench.exchange()
    frames = packet(bench, 1)
    bench.host.receive_frames("theo", frames[:3], bench.now)  # one chunk is lost
    assert bench.host.version == 0
    bench.wait(31)
    bench.take(HOST)
    made: Any = bench.last(HOST, GlobalUpdateMade)
    [entry] = made.counted
    assert (entry.address, entry.round, entry.have) == (1, 0, b"\x03")
    assert made.missing == (2,)
    assert not bench.host.nodes[2].active


def test_a_refused_body_makes_nobody_awaited(bench: Any) -> None:  # R6.2-4
    node = bench.host.nodes[1]
    node.active = False
    frame = seal_open(Header(1, 0), b"\x77" + bytes(9))
    bench.host.receive_frames("theo", [frame], bench.now)
    assert (bench.host.refused["kind"], node.active) == (1, False)
    bench.host.receive_frames("theo", packet(bench, 1)[:1], bench.now)
    assert node.active


@pytest.mark.parametrize(("sent", "deadlines"), [("manifest", [0, 4]), ("hello", [0, 1, 5])])
def test_withholding_costs_few_deadlines(new_bench: New, sent: str, deadlines: list[int]) -> None:
    # R6.2-4, R6.2-12
    bench = new_bench(rounds=20, deadline_s=30)
    bench.join("theo", "yan")
    hello = [seal_open(Header(0, 0), control.write_control(replace(HELLO, samples=10)))]
    waited = []
    for version in range(12):
        manifest = packet(bench, 2, number=version)[:1]
        bench.host.receive_frames("yan", manifest if sent == "manifest" else hello, bench.now)
        bench.host.receive_frames("theo", packet(bench, 1, number=version), bench.now)
        if bench.host.version == version:
            waited.append(version)
            bench.wait(31)
        assert bench.host.version == version + 1
    assert waited == deadlines


def test_a_hello_is_not_an_amplifier(new_bench: New) -> None:  # R6.5-13
    bench = new_bench(dimension=20_000, chain_max=1)
    bench.join("theo")
    for number in range(2):
        bench.host.receive_frames("theo", packet(bench, 1, number=number), bench.now)
    bench.take(HOST)
    behind = control.write_control(replace(HELLO, name="theo", samples=10))
    frame = seal_open(Header(0, 0), behind)
    bench.host.receive_frames("theo", [frame] * 50, bench.now)
    kinds = [opened(f)[0] for _, f in bench.take(HOST)]
    global_snapshot = 4 * 20_000 / 139
    assert global_snapshot <= kinds.count(4) <= global_snapshot + 3
    for later in range(1, 9):  # nor while the transport is busy with the last answer
        bench.host.receive_frames("theo", [frame], bench.now + 10.0 * later)
    kinds = [opened(f)[0] for _, f in bench.take(HOST)]
    assert global_snapshot <= kinds.count(4) <= global_snapshot + 3
    bench.host.receive_frames("theo", [frame], bench.now + 100.0)
    assert [opened(f)[0] for _, f in bench.take(HOST)].count(4) >= global_snapshot


def test_what_is_here_already_is_not_hashed_again(bench: Any, monkeypatch: Any) -> None:
    """Else a peer that repeats one small frame makes the host hash a whole update each time."""
    theo = bench.nodes["theo"]
    bench.host.settings = replace(bench.host.settings, min_peers=9)
    theo.submit(0, bench.delta(1), bench.now)
    frames = [frame for _, frame in bench.take("theo")]
    bench.host.receive_frames("theo", frames, bench.now)
    hashed: list[int] = []
    monkeypatch.setattr(update, "update_hash", lambda whole: hashed.append(len(whole)))
    bench.host.receive_frames("theo", 5 * frames, bench.now)
    assert bench.host.refused["duplicate"] == 5 * len(frames)
    assert hashed == []


def test_the_first_round_waits_for_all_that_are_enrolled_until_its_deadline(new_bench) -> None:
    # R6.2-17
    for enrolled, version in ((("ada",), 1), (("ada", "bo"), 0)):
        bench = new_bench(keys=enrolled, min_peers=1, deadline_s=30)
        ada = bench.add("ada")
        bench.live(5)  # seals begin with a question and an answer
        ada.submit(0, bench.delta(1), bench.now)
        bench.exchange()
        assert bench.host.version == version
        bench.wait(31)
        bench.exchange()
        assert bench.host.version == 1


def test_a_board_is_no_aggregator_not_even_with_a_part_of_an_update(new_bench: New) -> None:
    # R4.2-6
    bench = new_bench(keys=("ada", "bo"), min_peers=1, deadline_s=300)
    for name in ("ada", "bo"):
        bench.add(name)
    bench.live(5)
    made = AddedUp(0, bench.delta(1), 10, 60_000, bytes(16), NOT_EVALUATED)
    bench.nodes["ada"].submit_for_others(made, bench.now)
    manifest, *chunks = [frame for _, frame in bench.take("ada")]
    bench.host.receive_frames("ada", [*chunks[:1], manifest], bench.now)
    assert bench.host.refused["signature"] == 1
    assert not bench.host.round.count().updates
