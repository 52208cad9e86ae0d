"""Rounds in which a node sends no update: when it may, what the host does, what is kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import (
    BodyAccepted,
    FellSilent,
    GlobalUpdateMade,
    NodeJoined,
    RoundExtended,
    UpdateMade,
    WorkReady,
)
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.local_update import is_too_little, make_update
from ternmesh.federated.open_round import OpenRound
from ternmesh.federated.state import HostState, NodeState, RegisteredNode
from ternmesh.plan import make_plan
from ternmesh.security.membership import HOST
from ternmesh.wire import control, fragments
from ternmesh.wire.control import OPEN, Silent
from ternmesh.wire.frame import DOWN, UNASSIGNED, Header, open_seal, seal_open
from ternmesh.wire.global_update import GlobalSnapshot, certify, write_global_snapshot

MODEL = bytes(range(32))
PLAN = {"up_zeros": 0.0, "down_zeros": 0.0, "silence": 0.1, "silence_rounds": 2}
LOUD, QUIET = 0.01, 0.001  # a hundredth of the energy: silent below a tenth
New = Callable[..., Any]


def work(value: float, dimension: int = 1500) -> np.ndarray:
    """A delta that an update without zeros carries completely."""
    return np.full(dimension, value, np.float32)


@pytest.fixture
def bench(new_bench: New) -> Any:
    """Round 1 is open for theo and yan, and the run has learned `LOUD` everywhere."""
    made = new_bench(rounds=9, min_peers=2, deadline_s=30, plan=PLAN)
    for name in ("theo", "yan"):
        made.add(name)
    made.exchange()
    for node in made.nodes.values():
        node.submit(0, work(LOUD), made.now)
    made.exchange()
    assert made.host.version == 1
    return made


def words(bench: Any, name: str) -> list[control.Control]:
    """The control messages that an endpoint wants to send now."""
    bodies = [open_seal(frame)[1] for _, frame in bench.take(name)]
    return [control.read_control(body) for body in bodies if body[0] == control.KIND]


def say(bench: Any, number: int, name: str = "theo", address: int = 1) -> None:
    """A silence reaches the host."""
    body = control.write_control(Silent(number))
    bench.host.receive_frames(name, [seal_open(Header(address, 0), body)], bench.now)


@pytest.mark.parametrize(
    ("permille", "rounds", "in_a_row", "too_little"),
    [(10, 1, 0, False), (11, 1, 0, True), (11, 1, 1, False), (1000, 3, 2, True), (0, 9, 0, False)],
)
def test_what_is_too_little(permille: int, rounds: int, in_a_row: int, too_little: bool) -> None:
    # R6.7-2
    plan = make_plan(4, rounds=1, local_steps=1, learning_rate=0.1)
    plan = replace(plan, silence_permille=permille, silence_rounds=rounds)
    learned = np.full(4, 10 << 20, np.int32)
    corrected = np.full(4, (1 << 20) / (1 << 24), np.float32)  # a hundredth, exactly
    assert is_too_little(corrected, learned, in_a_row, plan) is too_little


def test_nobody_is_silent_before_the_run_has_learned() -> None:  # R6.7-2
    plan = make_plan(4, rounds=1, local_steps=1, learning_rate=0.1, silence=1.0, silence_rounds=9)
    nothing = np.zeros(4, np.int32)
    assert not is_too_little(np.zeros(4, np.float32), nothing, 0, plan)


def test_a_silent_node_keeps_its_work_and_is_not_waited_for(bench: Any) -> None:  # R6.7-2, R6.7-5
    theo, yan = bench.nodes.values()
    before = theo.residual.copy()
    theo.submit(1, work(QUIET), bench.now)
    bench.exchange()
    assert np.array_equal(theo.residual, before + work(QUIET))
    assert theo.pending is None
    assert bench.last("theo", FellSilent).in_a_row == 1
    assert bench.host.round.delivered(1) == "silent"
    yan.submit(1, work(LOUD), bench.now)
    bench.exchange()
    assert bench.host.version == 2  # at once
    made: Any = bench.last(HOST, GlobalUpdateMade)
    assert [entry.address for entry in made.counted] == [2]
    assert made.missing == ()
    assert bench.host.nodes[1].active
    assert np.array_equal(theo.residual, before + work(QUIET))
    assert bench.last("theo", WorkReady) == WorkReady(2)
    theo.submit(2, work(LOUD), bench.now)
    pending: Any = theo.pending
    assert np.array_equal(pending.corrected, before + work(QUIET) + work(LOUD))


def test_a_silence_is_a_few_bytes(bench: Any) -> None:
    bench.nodes["theo"].submit(1, work(QUIET), bench.now)
    [(peer, frame)] = bench.take("theo")
    assert (peer, len(frame)) == (HOST, 18)
    header, body = open_seal(frame)
    assert (header.address, control.read_control(body)) == (1, Silent(1))


def test_nobody_is_silent_for_longer_than_the_plan_says(bench: Any) -> None:  # R6.7-2
    theo, yan = bench.nodes.values()
    made = []
    for number in range(1, 7):
        theo.submit(number, work(QUIET), bench.now)
        yan.submit(number, work(LOUD), bench.now)
        bench.exchange()
        made.append(bench.count("theo", UpdateMade))
    assert made == [1, 1, 2, 2, 2, 3]  # the first is that of round 0


def test_a_round_in_which_all_are_silent_counts_nobody_and_goes_on(bench: Any) -> None:  # R6.7-6
    before = bench.host.model_q24.astype(float) / (1 << 24) + bench.host.residual
    for node in bench.nodes.values():
        node.submit(1, work(QUIET), bench.now)
    bench.exchange()
    assert (bench.host.version, bench.host.phase) == (2, OPEN)
    made: Any = bench.last(HOST, GlobalUpdateMade)
    assert (made.counted, made.missing) == ((), ())
    after = bench.host.model_q24.astype(float) / (1 << 24) + bench.host.residual
    assert np.allclose(before, after, atol=1e-8)
    for node in bench.nodes.values():
        assert np.array_equal(node.model_q24, bench.host.model_q24)
        assert not node.silent


def test_silence_is_repeated_until_it_is_answered(bench: Any) -> None:  # R6.7-4
    theo = bench.nodes["theo"]
    theo.submit(1, work(QUIET), bench.now)
    pauses = []
    for _ in range(4):
        assert words(bench, "theo") == [Silent(1)]
        pauses.append(theo.sender.timer.at - bench.now)
        bench.now = theo.sender.timer.at
        theo.handle_timeout(bench.now)
    assert 1.5 <= pauses[0] <= 4.5
    assert 12 <= pauses[3] <= 36
    bench.exchange()
    assert theo.sender.timer.at is None
    assert bench.host.round.delivered(1) == "silent"


def test_the_next_reference_ends_the_repetition(bench: Any) -> None:  # R6.7-4
    theo, yan = bench.nodes.values()
    theo.submit(1, work(QUIET), bench.now)
    bench.take("theo")  # lost
    yan.submit(1, work(LOUD), bench.now)
    bench.host.settings = replace(bench.host.settings, min_peers=1)
    bench.exchange()
    bench.wait(31)  # the deadline passes as theo is about to say it again
    assert theo.channel.outgoing._queue
    bench.exchange()
    assert (theo.version, theo.sender.timer.at) == (2, None)
    assert not bench.host.refused  # what was queued for the round before was never sent


@pytest.mark.parametrize("number", [0, 2])
def test_an_answer_for_another_round_does_not_end_it(bench: Any, number: int) -> None:  # R6.7-4
    theo = bench.nodes["theo"]
    theo.submit(1, work(QUIET), bench.now)
    body = control.write_control(Silent(number))
    theo.receive_frames(HOST, [seal_open(Header(1 | DOWN, 0), body)], bench.now)
    assert theo.sender.timer.at is not None


def test_late_work_of_a_silent_round_is_kept_and_not_sent(bench: Any) -> None:
    theo = bench.nodes["theo"]
    before = theo.residual.copy()
    for value in (QUIET, LOUD):
        theo.submit(1, work(value), bench.now)
    assert theo.pending is None
    assert np.array_equal(theo.residual, before + work(QUIET) + work(LOUD))


def test_a_restart_in_a_silent_round_repeats_it_and_trains_no_second_time(bench: Any) -> None:
    # R6.7-3
    theo = bench.nodes["theo"]
    theo.submit(1, work(QUIET), bench.now)
    bench.take("theo")  # lost, with the power
    state = NodeState(
        model_q24=theo.model_q24,
        residual=theo.residual,
        run=theo.run,
        address=1,
        plan=bench.plan,
        version=1,
        global_hash=theo.global_hash,
        silent=True,
        silences=1,
    )
    bench.events["theo"].clear()
    again = bench.add("theo", state=state)
    bench.exchange()
    assert bench.host.round.delivered(1) == "silent"
    assert bench.count("theo", WorkReady) == 0
    assert (again.silences, again.sender.timer.at) == (1, None)


def test_a_new_run_ends_the_silence(bench: Any) -> None:
    theo = bench.nodes["theo"]
    theo.submit(1, work(QUIET), bench.now)
    bench.take("theo")
    theo._begin_run(b"run-id-9", bench.plan)
    assert (theo.silent, theo.silences, theo.sender.timer.at) == (False, 0, None)


def test_another_reference_of_a_silent_round_is_worked_on(bench: Any) -> None:
    theo = bench.nodes["theo"]
    theo.submit(1, work(QUIET), bench.now)
    assert theo.silent
    step = GlobalSnapshot(1, b"another history.", MODEL[:8], False, 0, (), theo.model_q24)
    content = certify(write_global_snapshot(step))
    for body in fragments.split(content, bench.plan.frame_mtu):
        theo.receive_frames(HOST, [seal_open(Header(1 | DOWN, 0), body)], bench.now)
    bench.events["theo"].clear()
    bench.take("theo")
    assert bench.last("theo", WorkReady) == WorkReady(1)


def test_a_repeated_silence_is_a_duplicate_and_is_answered_again(bench: Any) -> None:  # R6.7-5
    for _ in range(3):
        say(bench, 1)
        assert words(bench, HOST) == [Silent(1)]
    assert bench.host.refused == {"duplicate": 2}
    assert bench.count(HOST, BodyAccepted) == 2 * (1 + bench.plan.up.count) + 1


@pytest.mark.parametrize(
    ("number", "name", "address", "reason"),
    [
        (0, "theo", 1, "old round"),
        (2, "theo", 1, "future round"),
        (65_537, "theo", 1, "future round"),
        (1, "yan", 1, "wrong peer"),
        (1, "theo", 9, "unknown node"),
        (1, "theo", UNASSIGNED, "kind"),
    ],
)
def test_a_silence_that_is_refused(
    bench: Any, number: int, name: str, address: int, reason: str
) -> None:  # R6.7-1
    say(bench, number, name, address)
    assert bench.host.refused == {reason: 1}
    assert bench.host.round.delivered(1) == "none"
    bench.host.receive_frames("yan", [], bench.now)
    assert bench.host.version == 1


def test_a_packet_after_a_silence_is_taken_and_waited_for(bench: Any) -> None:  # R6.7-7
    """The node has lost its disk in between: what it sends now counts."""
    say(bench, 1)
    made = make_update(work(LOUD), MODEL, 1, 10, bench.plan)
    frames = [seal_open(Header(1, 0), body) for body in made.bodies]
    bench.host.receive_frames("theo", frames[:2], bench.now)
    bench.nodes["yan"].submit(1, work(LOUD), bench.now)
    bench.exchange()
    assert (bench.host.version, bench.host.round.delivered(1)) == (1, "part")
    bench.host.receive_frames("theo", frames[2:], bench.now)
    assert bench.host.version == 2
    bench.take(HOST)
    made_now: Any = bench.last(HOST, GlobalUpdateMade)
    assert [entry.address for entry in made_now.counted] == [1, 2]


def test_a_silence_after_a_whole_packet_takes_nothing_back(bench: Any) -> None:  # R6.7-7
    bench.nodes["theo"].submit(1, work(LOUD), bench.now)
    bench.exchange()
    say(bench, 1)
    assert bench.host.round.delivered(1) == "whole"
    bench.nodes["yan"].submit(1, work(LOUD), bench.now)
    bench.exchange()
    made: Any = bench.last(HOST, GlobalUpdateMade)
    assert [entry.address for entry in made.counted] == [1, 2]


def test_at_the_deadline_a_silent_node_stays_active_and_counts_as_present(bench: Any) -> None:
    # R6.7-5
    bench.add("zoe")
    bench.exchange()
    say(bench, 1)
    bench.nodes["yan"].submit(1, work(LOUD), bench.now)
    bench.exchange()
    bench.wait(31)
    assert bench.host.version == 2
    assert [node.active for node in bench.host.nodes.values()] == [True, True, False]
    bench.take(HOST)
    made: Any = bench.last(HOST, GlobalUpdateMade)
    assert made.missing == (3,)


def test_one_who_is_silent_is_not_enough_where_two_must_be_there(bench: Any) -> None:
    say(bench, 1)
    bench.wait(31)
    bench.take(HOST)
    assert bench.last(HOST, RoundExtended).round == 1
    say(bench, 1, "yan", 2)
    assert bench.host.version == 2  # theo's silence was kept


def test_a_silence_that_was_answered_survives_the_hosts_restart(bench: Any) -> None:  # R6.7-5
    """The node does not repeat it: a host that forgot it would wait for ever."""
    host = bench.host
    bench.take(HOST)
    bench.events[HOST] = [e for e in bench.events[HOST] if isinstance(e, NodeJoined)]
    nodes = tuple(RegisteredNode(e.address, e.name, e.samples) for e in bench.events[HOST])
    say(bench, 1)
    assert words(bench, HOST) == [Silent(1)]
    kept = [e for e in bench.events[HOST] if isinstance(e, BodyAccepted)]
    state = HostState(
        model_q24=host.model_q24,
        residual=host.residual,
        version=1,
        global_hash=host.global_hash,
        started=True,
        nodes=nodes,
        bodies=tuple((e.address, e.body) for e in kept),
    )
    again = HostProtocol(
        plan=bench.plan, settings=host.settings, model_hash=MODEL, run=host.run, state=state
    )
    again.start(bench.now)
    assert again.round.delivered(1) == "silent"
    bench.host = again
    say(bench, 1, "yan", 2)
    assert again.version == 2


def test_what_does_not_add_up_takes_the_silence_with_it(bench: Any) -> None:  # R6.7-7
    """The event makes the program forget all bodies of the node; memory and disk must agree."""
    arrived = OpenRound(bench.plan, MODEL[:8], 1)
    arrived.add(1, control.write_control(Silent(1)))
    arrived.forget(1)
    assert (arrived.delivered(1), arrived.present()) == ("none", set())
