"""Boards join a split training, the run opens and ends, ends are killed and go on."""

import numpy as np

from ternmesh.federated.joining import NodeSettings
from ternmesh.security.membership import HOST
from ternmesh.split.board import SplitBoard
from ternmesh.split.host import SplitHost, SplitSettings
from ternmesh.split.messages import Lost
from ternmesh.split.plan import to_numbers
from ternmesh.wire import control
from ternmesh.wire.activation import ASK, Activation
from ternmesh.wire.control import FINISHED, GATHERING
from ternmesh.wire.frame import UNASSIGNED, Header, seal_open
from tests.ternmesh.federated.conftest import Keys
from tests.ternmesh.split.split_wire import (
    MODEL,
    PLAN,
    RUN,
    add_board,
    make_wire,
    micro_batch,
    values,
)

RUNNING = control.OPEN


def welcome(**changes: object) -> bytes:
    fields = {
        "instance": b"a       ",
        "address": 1,
        "run": RUN,
        "version": 0,
        "phase": RUNNING,
        "deadline_ms": 0,
        "plan": to_numbers(PLAN),
    }
    body = control.write_control(control.Welcome(**{**fields, **changes}))  # type: ignore[arg-type]
    return seal_open(Header(UNASSIGNED, 0), body)


def test_a_board_believes_welcomes_that_are_for_it_and_were_asked_for() -> None:  # R10.3-1
    settings = NodeSettings("a", MODEL, b"a       ")
    board = SplitBoard(settings, samples=10, rng=np.random.default_rng(1))
    board.start(0.0)
    board.receive_frames(HOST, [welcome(instance=b"somebody")], 0.0)
    assert not board.joined
    board.receive_frames(HOST, [welcome(version=2)], 0.0)
    assert (board.joined, board.number, board.run) == (True, 2, RUN)
    board.receive_frames(HOST, [welcome(run=b"another!")], 0.0)
    assert (board.number, board.run) == (2, RUN)


def test_boards_wait_until_enough_of_them_are_there() -> None:  # R10.3-3, R10.3-4
    """And begin together: those who wait ask ever more seldom, and are told."""
    wire = make_wire("a", settings=SplitSettings(min_boards=2))
    board = wire.boards["a"]
    assert (board.joined, board.ready, board.phase) == (True, False, GATHERING)
    add_board(wire, "b")
    assert (board.ready, board.phase) == (True, RUNNING)


def test_hellos_and_questions_keep_no_run_open() -> None:  # R10.3-5
    """Only micro-batches do: a board that sends none is waited for `silence_s`, and no longer."""
    wire = make_wire("a", "b", settings=SplitSettings(min_boards=2, silence_s=300.0))
    a, b = wire.boards["a"], wire.boards["b"]
    a.number = PLAN.micro_batches
    a.say_hello(wire.now)
    wire.settle()
    for question in range(3):
        wire.now += 110.0
        b.say_hello(wire.now)
        b.send(Activation(ASK, 90 + question, values()), wire.now)
        wire.settle()
    assert wire.host.nodes[2].heard_at == wire.now
    assert (wire.host.phase(wire.now), wire.host.waited_for(wire.now)) == (FINISHED, set())
    b.send(micro_batch(0), wire.now)
    wire.settle()
    assert (wire.host.phase(wire.now), wire.host.waited_for(wire.now)) == (RUNNING, {2})


def test_a_host_stays_until_all_know_of_the_end() -> None:  # R10.3-6
    wire = make_wire("a")
    board, host = wire.boards["a"], wire.host
    board.number = PLAN.micro_batches
    wire.deaf.add("a")
    board.finish(wire.now)
    wire.settle()
    assert (board.phase, host.phase(wire.now)) == (RUNNING, FINISHED)
    leave_at = host.leave_at(wire.now)
    assert leave_at is not None
    asks_at = board.next_timeout()
    assert asks_at is not None
    assert leave_at > asks_at + 60.0
    wire.deaf.clear()
    wire.pass_time(asks_at - wire.now)
    assert board.phase == FINISHED
    assert host.leave_at(wire.now) == wire.now + 6.0


def test_nobody_waits_for_a_board_that_was_revoked() -> None:  # R10.3-5
    wire = make_wire("a", "b", keys=Keys("a", "b"))
    host = wire.host
    assert host.waited_for(wire.now) == {1, 2}
    member_list = host.channel.authenticator._member_list
    member_list._revoked.add(member_list.find("b").fingerprint)
    assert host.waited_for(wire.now) == {1}
    wire.boards["a"].number = PLAN.micro_batches
    wire.boards["a"].finish(wire.now)
    wire.settle()
    assert wire.boards["a"].phase == FINISHED


def test_a_run_is_finished_when_all_boards_are_done_or_gone() -> None:  # R10.3-3
    wire = make_wire("a", "b", settings=SplitSettings(silence_s=300.0))
    a, b = wire.boards["a"], wire.boards["b"]
    a.number = b.number = PLAN.micro_batches
    a.finish(wire.now)
    wire.settle()
    assert a.phase == RUNNING
    wire.pass_time(120.0)
    assert a.phase == RUNNING
    b.finish(wire.now)
    wire.settle()
    wire.pass_time(120.0)
    assert a.phase == b.phase == FINISHED
    assert wire.host.phase(wire.now) == FINISHED
    assert make_wire("a", "b").host.phase(50.0 + 301.0) == RUNNING  # all gone, and nobody done


def test_a_board_that_the_host_has_forgotten_joins_again_before_it_sends() -> None:
    wire = make_wire("a")
    board = wire.boards["a"]
    wire.host = SplitHost(
        plan=PLAN, settings=SplitSettings(), model_hash=MODEL, run=RUN, boards=(), counter=5000
    )
    wire.host.start(wire.now)
    board.send(micro_batch(0), wire.now)
    wire.settle()
    assert board.refused == {"unknown node": 1}
    assert (wire.of("a", Lost), board.ready) == ([Lost(0)], False)
    wire.pass_time(2.0)
    assert (board.ready, board.number) == (True, 1)
