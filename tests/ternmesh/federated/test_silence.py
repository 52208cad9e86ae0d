"""Rounds in which a node sends no update: when it may, what the host does, what is kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.events import BodyAccepted, FellSilent, GlobalUpdateMade, WorkReady
from ternmesh.federated.local_update import is_too_little, make_update
from ternmesh.federated.open_round import OpenRound
from ternmesh.plan import make_plan
from ternmesh.security.membership import HOST
from ternmesh.wire import control
from ternmesh.wire.control import Silent
from ternmesh.wire.frame import DOWN, UNASSIGNED, Header, open_seal, seal_open

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
    made.join("theo", "yan")
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
    if in_a_row < rounds:  # what the host has set takes the place of the plan's share
        assert not is_too_little(corrected, learned, in_a_row, plan, silence=0.01)
        assert is_too_little(corrected, learned, in_a_row, plan, silence=0.011)
        assert not is_too_little(0 * corrected, 0 * learned, in_a_row, plan), "nothing is learned"


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


@pytest.mark.parametrize("number", [0, 2])
def test_an_answer_for_another_round_does_not_end_it(bench: Any, number: int) -> None:  # R6.7-4
    theo = bench.nodes["theo"]
    theo.submit(1, work(QUIET), bench.now)
    body = control.write_control(Silent(number))
    theo.receive_frames(HOST, [seal_open(Header(1 | DOWN, 0), body)], bench.now)
    assert theo.sender.timer.at is not None


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
def test_a_silence_that_is_refused(bench: Any, number, name, address, reason) -> None:  # R6.7-1
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


def test_what_does_not_add_up_takes_the_silence_with_it(bench: Any) -> None:  # R6.7-7
    """The event makes the program forget all bodies of the node; memory and disk must agree."""
    arrived = OpenRound(bench.plan, MODEL[:8], 1)
    arrived.add(1, control.write_control(Silent(1)))
    arrived.forget(1)
    assert (arrived.delivered(1), arrived.present()) == ("none", set())
