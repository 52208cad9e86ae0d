"""A node's side: how it joins, catches up, keeps its work, and what it does not believe."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.codec.scale import add_q24
from ternmesh.federated.aggregation import encode_step, global_delta_q24
from ternmesh.federated.node import NodePhase
from ternmesh.plan import genesis, to_numbers
from ternmesh.security.membership import HOST
from ternmesh.wire import control, fragments, global_update
from ternmesh.wire.control import OPEN
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED, Header, open_seal, seal_open
from ternmesh.wire.update import MANIFEST_KIND

MODEL = bytes(range(32))
New = Callable[..., Any]


@pytest.fixture
def bench(new_bench: New) -> Any:
    """An open round with the nodes theo (context 1) and yan (context 2)."""
    made = new_bench(rounds=9, min_peers=2, deadline_s=30)
    made.join("theo", "yan")
    return made


def from_host(bench: Any, node: Any, message: control.Control, address: int = UNASSIGNED) -> None:
    frame = seal_open(Header(address, 0), control.write_control(message))
    node.receive_frames(HOST, [frame], bench.now)


def test_a_manifest_follows_its_shares_as_often_as_the_plan_says(bench: Any) -> None:  # R6.3-3
    theo = bench.nodes["theo"]
    theo.plan = replace(theo.plan, manifest_repeats=2)
    theo.submit(0, bench.delta(1), bench.now)
    frames = [frame for _, frame in bench.take("theo")]
    bodies = [open_seal(frame)[1] for frame in frames]
    assert [body[0] for body in bodies[-2:]] == [MANIFEST_KIND] * 2
    assert bodies[0] == bodies[-1] == theo.pending.bodies[0]
    assert len(bodies) == len(theo.pending.bodies) + 2
    bench.host.receive_frames("theo", frames[1:], bench.now)  # the first manifest is lost
    bench.exchange()
    assert theo.received


def new_step(
    bench: Any, *rows: global_update.Counted, model: bytes = MODEL[:8]
) -> global_update.GlobalUpdate:
    """The first global update, as a host would make it of one update."""
    chunks = encode_step(bench.delta(9), MODEL, 1, bench.plan)[0]
    zeros = np.zeros(bench.plan.dimension, np.int32)
    adapter = add_q24(zeros, global_delta_q24(chunks, MODEL, 1, bench.plan))
    name = global_update.hash_adapter(genesis(MODEL, bench.host.run, bench.plan), 1, adapter)
    return global_update.GlobalUpdate(1, name, model, False, 0, rows, chunks)


def welcome(bench: Any, node: Any, **changes: Any) -> control.Welcome:
    instance = node.joining.instance
    plan = to_numbers(bench.plan)
    message = control.Welcome(instance, 1, bench.host.run, 0, OPEN, 0, plan)
    return replace(message, **changes)


@pytest.mark.parametrize("change", ["run", "plan"])
def test_a_welcome_that_nobody_asked_for_begins_no_run(bench: Any, change: str) -> None:  # R6.5-10
    """It was under way while the host began another run: the work of this one must not be lost."""
    theo = bench.nodes["theo"]
    theo.submit(0, bench.delta(1), bench.now)
    other = to_numbers(replace(bench.plan, rounds=bench.plan.rounds + 1))
    changes: dict[str, dict[str, Any]] = {"run": {"run": b"run-id-0"}, "plan": {"plan": other}}
    from_host(bench, theo, welcome(bench, theo, **changes[change]))
    assert (theo.run, theo.plan) == (b"run-id-8", bench.plan)
    assert theo.pending is not None


def test_a_welcome_to_a_hello_from_before_this_run_leads_out_of_it_no_more(bench: Any) -> None:
    # R6.5-9
    """It was held back. The node has joined a new run since, and says hello again."""
    theo = bench.nodes["theo"]
    late = welcome(bench, theo)
    theo.say_hello(bench.now)
    from_host(bench, theo, welcome(bench, theo, run=b"next run"))
    assert theo.run == b"next run"
    theo.say_hello(bench.now)
    from_host(bench, theo, late)
    assert theo.run == b"next run"
    from_host(bench, theo, welcome(bench, theo, run=b"last run"))
    assert theo.run == b"last run"


def test_calls_into_several_other_runs_make_a_node_ask_once_each(bench: Any) -> None:  # R6.5-7
    """A peer that replays two of them in turn must not make it send for ever."""
    theo = bench.nodes["theo"]
    calls = [control.Announce(bytes([run] * 8), 0, OPEN, 0) for run in range(16)]
    for call in calls:
        from_host(bench, theo, call)
    for _ in range(8):
        bench.now = theo.next_timeout()
        theo.handle_timeout(bench.now)
    bench.take("theo")
    due = theo.next_timeout()
    assert due > bench.now + 20
    for call in 3 * calls:
        from_host(bench, theo, call)
    assert theo.next_timeout() == due
    from_host(bench, theo, control.Announce(b"new run!", 0, OPEN, 0))
    assert theo.next_timeout() <= bench.now + 1.0


def test_a_welcome_takes_back_what_was_announced(bench: Any) -> None:  # R6.5-11
    """A node must not wait for a version that a restored host knows nothing of."""
    theo = bench.nodes["theo"]
    from_host(bench, theo, control.Announce(b"run-id-8", 5, OPEN, 0))
    assert theo.target == 5
    from_host(bench, theo, welcome(bench, theo))
    assert theo.target == 0


def test_a_packet_that_is_always_refused_is_sent_ever_more_seldom(bench: Any) -> None:  # R6.5-2
    theo = bench.nodes["theo"]
    theo.submit(0, bench.delta(1), bench.now)
    sent, end = 0, bench.now + 600
    while bench.now < end:
        while frames := bench.take("theo"):
            for _, frame in frames:
                if open_seal(frame)[1][0] == control.KIND:
                    from_host(bench, theo, welcome(bench, theo))
                else:
                    sent += 1
                    from_host(bench, theo, control.Refusal(0, "conflict"))
        bench.now = max(bench.now, min(end, theo.next_timeout()))
        theo.handle_timeout(bench.now)
    assert 5 * 4 <= sent <= 25 * 4  # four frames an update; it was 600 updates


def test_announces_do_not_put_off_the_question(bench: Any) -> None:  # R6.5-4
    """A node that is behind says hello within seconds, however many announces come."""
    theo = bench.nodes["theo"]
    start = bench.now
    while not [e for e in bench.take("theo") if open_seal(e[1])[0].address == UNASSIGNED]:
        from_host(bench, theo, control.Announce(b"run-id-8", 1, OPEN, 0))
        bench.now += 0.5
        if theo.next_timeout() <= bench.now:
            theo.handle_timeout(bench.now)
        assert bench.now - start < 8


def test_a_slow_snapshot_is_not_asked_for_again_while_it_arrives(bench: Any) -> None:  # R6.5-4
    theo = bench.nodes["theo"]
    from_host(bench, theo, control.Announce(b"run-id-8", 3, OPEN, 0))
    bench.take("theo")
    content = np.random.default_rng(0).bytes(20 * 140)
    for body in fragments.split(content, bench.plan.frame_mtu)[:-1]:
        bench.now += 2.4
        if theo.next_timeout() <= bench.now:
            theo.handle_timeout(bench.now)
        theo.receive_frames(HOST, [seal_open(Header(1 | DOWN, 0), body)], bench.now)
    assert bench.take("theo") == []


@pytest.mark.parametrize(
    ("reason", "joined"), [("unknown node", False), ("wrong model", False), ("old round", True)]
)
def test_a_refusal_that_may_mean_another_run_ends_a_membership(bench: Any, reason, joined) -> None:
    # R6.6-3
    """Work waits for a welcome. How far a release is needs no address, and is told without one."""
    theo = bench.nodes["theo"]
    address = theo.address if joined else UNASSIGNED
    from_host(bench, theo, control.Refusal(0, reason))
    assert theo.joined == joined
    theo.submit(0, bench.delta(1), bench.now)
    theo.send_release_status(b"status")
    opened = [open_seal(frame) for _, frame in bench.take("theo")]
    assert [header.address for header, body in opened if body == b"status"] == [address]
    assert any(body[0] == MANIFEST_KIND for _, body in opened) == joined
    bench.wait(theo.next_timeout() - bench.now)
    bench.exchange()
    assert theo.joined
    assert theo.received


def test_silence_makes_a_node_ask(bench: Any) -> None:  # R6.5-5
    theo = bench.nodes["theo"]
    assert theo.next_timeout() == bench.now + 3 * bench.plan.announce_s
    bench.now = theo.next_timeout()
    theo.handle_timeout(bench.now)
    [(peer, frame)] = bench.take("theo")
    assert peer == HOST
    assert isinstance(control.read_control(open_seal(frame)[1]), control.Hello)


BAD: dict[str, tuple[str, Callable[[Any, Any], bytes]]] = {
    "noise": ("seal", lambda b, n: b"\x20" + bytes(40)),
    "cut": ("length", lambda b, n: bytes(9)),
    "for another node": ("context", lambda b, n: seal_open(Header(2 | DOWN, 0), b"\x01")),
    "a share": ("kind", lambda b, n: seal_open(Header(0, 0), b"\x02" + bytes(20))),
    "an unknown kind": ("kind", lambda b, n: seal_open(Header(0, 0), b"\x09")),
    "a hello": ("kind", lambda b, n: hello_frame()),
    "a wrong receipt": ("digest", lambda b, n: sealed(control.Receipt(0, b"oops", b"\x07"))),
    "a plan of another size": ("vector length", lambda b, n: sealed(other_size(b, n))),
    "a plan too short": ("plan", lambda b, n: sealed(welcome(b, n, plan=(1, 2)))),
    "a piece of a huge object": (
        "piece",
        lambda b, n: seal_open(
            Header(0xFFFF, 0), b"\x04name" + (1 << 28).to_bytes(4, "little") + bytes(142)
        ),
    ),
}


def sealed(message: control.Control) -> bytes:
    return seal_open(Header(UNASSIGNED, 0), control.write_control(message))


def other_size(bench: Any, node: Any) -> control.Welcome:
    plan = replace(bench.plan, dimension=1000, up_span=500, down_span=500)
    return welcome(bench, node, plan=to_numbers(plan))


def hello_frame() -> bytes:
    hello = control.Hello("theo", bytes(8), MODEL[:8], bytes(8), 0, bytes(16), 5)
    return sealed(hello)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_changes_nothing(bench: Any, name: str) -> None:  # R6.1-2
    theo = bench.nodes["theo"]
    theo.submit(0, bench.delta(1), bench.now)
    reason, make = BAD[name]
    frame = make(bench, theo)
    before = (theo.run, theo.version, theo.pending, theo.address, theo.plan)
    theo.receive_frames(HOST, [frame], bench.now)
    assert theo.refused == {reason: 1}
    assert (theo.run, theo.version, theo.pending, theo.address, theo.plan) == before
    bench.nodes["yan"].submit(0, bench.delta(2), bench.now)
    bench.exchange()
    assert theo.version == 1


def test_a_reference_with_a_bad_list_changes_nothing(bench: Any) -> None:  # R4.5-7
    theo = bench.nodes["theo"]
    theo.submit(0, bench.delta(1), bench.now)
    row = global_update.Counted(1, 0, theo.pending.digest, b"\xff\xff\xff")
    step = new_step(bench, row)
    content = global_update.certify(global_update.write_global_update(step))
    residual = theo.residual.copy()
    for body in fragments.split(content, bench.plan.frame_mtu):
        theo.receive_frames(HOST, [seal_open(Header(BROADCAST, 0), body)], bench.now)
    assert theo.refused == {"bitmap": 1}
    assert theo.version == 0
    assert theo.pending is not None
    assert np.array_equal(theo.residual, residual)


def test_a_node_whose_adapter_is_damaged_gets_a_snapshot(bench: Any) -> None:  # R4.5-3
    theo = bench.nodes["theo"]
    bench.play()
    theo.model_q24 = theo.model_q24.copy()
    theo.model_q24[7] ^= 64
    bench.play()
    assert (theo.version, bench.host.version) == (1, 2)
    assert (theo.version, theo.phase) == (1, NodePhase.ADRIFT)
    for _ in range(5):
        bench.wait(2.0)
        bench.exchange()
    assert (theo.version, theo.phase) == (2, NodePhase.TRAINING)
    assert theo.global_hash == bench.host.global_hash
    assert np.array_equal(theo.model_q24, bench.host.model_q24)
    bench.play()
    assert theo.version == 3


def test_an_older_snapshot_takes_nothing_back(bench: Any) -> None:  # R4.5-3
    theo, address = bench.nodes["theo"], bench.nodes["theo"].address
    bench.play()
    host = bench.host
    old = global_update.GlobalSnapshot(1, host.global_hash, MODEL[:8], False, 0, (), host.model_q24)
    bench.play()
    before = theo.model_q24.copy()
    for body in fragments.split(
        global_update.certify(global_update.write_global_snapshot(old)), bench.plan.frame_mtu
    ):
        theo.receive_frames(HOST, [seal_open(Header(address | DOWN, 0), body)], bench.now)
    assert theo.version == 2
    assert np.array_equal(theo.model_q24, before)


def test_a_host_that_asks_again_at_once_gets_no_second_answer(bench: Any) -> None:
    theo = bench.nodes["theo"]
    bench.play()
    bench.take("theo")
    answers = []
    for _ in range(3):
        from_host(bench, theo, control.Wanted(theo.address, 0))
        answers.append(len(bench.take("theo")))
        bench.now += 0.1
    assert answers[0] > 0
    assert answers[1:] == [0, 0]
