import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_wire import MODEL, PLAN, RUN, Keys, Wire, add_board, make_wire, micro_batch, values

from ternmesh.errors import CodecError, WireError
from ternmesh.split import bodies
from ternmesh.split.board import SplitBoard
from ternmesh.split.events import Answered, Arrived, Lost, Welcomed
from ternmesh.split.host import Settings, SplitHost
from ternmesh.split.plan import SplitPlan, from_numbers, to_numbers
from ternmesh.swarm.events import Refused
from ternmesh.swarm.pace import Pace
from ternmesh.trust.roster import HOST
from ternmesh.wire import activation, control, pieces, seal
from ternmesh.wire.activation import (
    ANSWER,
    ASK,
    GRADIENT_DOWN,
    GRADIENT_UP,
    LEARN,
    Activation,
    write_activation,
)
from ternmesh.wire.control import FINISHED, GATHERING

RUNNING = control.OPEN


def gradient(number: int, width: int = 6) -> Activation:
    return Activation(GRADIENT_DOWN, number, values(width))


def send(wire: Wire, body: bytes, context: int = 1, peer: str = "a") -> None:
    """A body of a board that does not follow the rules, under an open seal."""
    frame = seal.seal(seal.Header(context, 0), body)
    wire.host.receive_frames(peer, [frame], wire.now)
    wire.settle()


def test_a_micro_batch_goes_up_and_its_gradient_comes_down() -> None:
    wire = make_wire("a")
    board = wire.boards["a"]
    assert board.ready
    board.send(micro_batch(0), GRADIENT_DOWN, wire.now)
    assert not board.ready
    wire.settle()
    [arrived] = wire.of(HOST, Arrived)
    assert arrived.item.labels == b"\x00\x02"
    np.testing.assert_allclose(arrived.item.values, values(), atol=0.08)  # 4 bits
    wire.host.answer(arrived.context, gradient(0))
    wire.settle()
    [answered] = wire.of("a", Answered)
    np.testing.assert_allclose(answered.item.values, values(), atol=0.005)  # 8 bits
    assert board.ready
    assert board.number == 1


@pytest.mark.parametrize("frame_mtu", [64, 512])
def test_what_is_longer_than_a_frame_travels_in_pieces(frame_mtu: int) -> None:
    wire = make_wire("a", frame_mtu=frame_mtu, bits_up=32, bits_gradient=32)
    wire.frames.clear()
    wire.boards["a"].send(micro_batch(0), GRADIENT_DOWN, wire.now)
    wire.settle()
    assert (len(wire.frames) > 1) == (frame_mtu == 64)
    assert max(len(frame) for _, _, frame in wire.frames) <= frame_mtu
    [arrived] = wire.of(HOST, Arrived)
    assert arrived.item.values.tobytes() == values().tobytes()


def test_a_lost_micro_batch_is_skipped_and_counted_at_both_ends() -> None:
    wire = make_wire("a")
    board, host = wire.boards["a"], wire.host
    wire.deaf.add(HOST)
    board.send(micro_batch(0), GRADIENT_DOWN, wire.now)
    wire.settle()
    assert wire.of("a", Lost) == []
    wire.pass_time(1.5)
    assert wire.of("a", Lost) == [Lost(0)]
    wire.deaf.clear()
    board.send(micro_batch(1), GRADIENT_DOWN, wire.now)
    wire.settle()
    assert host.boards[1].skipped == 1
    # An answer that comes after its time is nobody's any more.
    wire.pass_time(1.5)
    host.answer(1, gradient(1))
    wire.settle()
    assert board.refused["stale"] == 1
    assert wire.of("a", Answered) == []


def test_after_lost_answers_a_board_asks_whether_it_is_known() -> None:
    wire = make_wire("a")
    board = wire.boards["a"]
    wire.deaf.add(HOST)
    for number in range(3):
        board.send(micro_batch(number), GRADIENT_DOWN, wire.now)
        wire.settle()
        wire.pass_time(1.5)
    assert not board.ready
    wire.deaf.clear()
    before = len(wire.of("a", Welcomed))
    wire.pass_time(3.0)
    assert len(wire.of("a", Welcomed)) == before + 1
    assert board.ready


def test_nothing_piles_up_while_the_bearer_is_down() -> None:
    wire = make_wire("a", bits_up=32, frame_mtu=64)
    board = wire.boards["a"]
    sizes = set()
    for number in range(5):
        board.send(micro_batch(number), GRADIENT_DOWN, wire.now)
        wire.now += 2.0
        board.handle_timeout(wire.now)
        sizes.add(len(board._outgoing._queue))
    assert max(sizes) <= 4  # the pieces of one micro-batch, and a hello


def test_a_host_does_not_pile_up_answers_either() -> None:
    wire = make_wire("a")
    for number in range(5):
        wire.host.answer(1, gradient(number))
    assert len(wire.host._outgoing._queue) == 1


def welcome(**changes: object) -> bytes:
    fields = {
        "instance": b"a       ",
        "context": 1,
        "run": RUN,
        "version": 0,
        "phase": RUNNING,
        "deadline_ms": 0,
        "plan": to_numbers(PLAN),
    }
    body = control.write_control(control.Welcome(**{**fields, **changes}))  # type: ignore[arg-type]
    return seal.seal(seal.Header(seal.ENROL, 0), body)


def test_a_board_believes_welcomes_that_are_for_it_and_were_asked_for() -> None:
    board = SplitBoard("a", MODEL, 10, b"a       ", np.random.default_rng(1))
    board.start(0.0)
    board.receive_frames(HOST, [welcome(instance=b"somebody")], 0.0)
    assert not board.joined
    board.receive_frames(HOST, [welcome(version=2)], 0.0)
    assert (board.joined, board.number, board.run) == (True, 2, RUN)
    board.receive_frames(HOST, [welcome(run=b"another!")], 0.0)
    assert (board.number, board.run) == (2, RUN)


def test_another_plan_of_the_same_run_counts_only_where_it_was_asked_for() -> None:
    wire = make_wire("ada")
    ada = wire.boards["ada"]
    assert ada._greeting.at is None
    plan = replace(PLAN, micro_batches=99)
    frame = welcome(instance=ada._instance, plan=to_numbers(plan))
    ada.receive_frames("host", [frame], wire.now)
    assert ada.plan == PLAN
    ada._hello(wire.now)
    ada.receive_frames("host", [frame], wire.now)
    assert ada.plan == plan


def test_a_board_whose_hello_is_answered_follows_no_other_run_while_it_waits() -> None:
    board = SplitBoard("a", MODEL, 10, b"a       ", np.random.default_rng(1))
    board.start(0.0)
    board.receive_frames(HOST, [welcome(phase=GATHERING)], 0.0)
    assert (board.run, board.next_timeout() is not None) == (RUN, True)
    other = welcome(instance=board._instance, run=b"another!")
    board.receive_frames(HOST, [other], 0.0)
    assert board.run == RUN
    asks_at = board.next_timeout()
    assert asks_at is not None
    board.handle_timeout(asks_at)
    board.receive_frames(HOST, [other], asks_at)
    assert board.run == b"another!"


def test_behind_a_link_hellos_are_as_seldom_as_its_pace() -> None:
    pace = Pace(hello_s=40.0, hello_longest_s=600.0)
    board = SplitBoard("a", MODEL, 10, bytes(8), np.random.default_rng(1), pace=pace)
    board.start(0.0)
    asks_at = board.next_timeout()
    assert asks_at is not None
    assert asks_at >= 20.0
    host = SplitHost(PLAN, Settings(), MODEL, RUN, ((1, "a", PLAN.micro_batches),), pace=pace)
    host.start(0.0)
    leave_at = host.leave_at(0.0)
    assert leave_at is not None
    assert leave_at > 900.0


@pytest.mark.parametrize("answer_s", [0.02, 0.6, 1.5])
def test_a_board_that_is_refused_says_hello_ever_more_seldom(answer_s: float) -> None:
    wire = make_wire()
    wire.deaf = {"host"}
    ada, hellos, due = add_board(wire, "ada"), 0, None
    refusal = control.write_control(control.Refusal(0, "wrong model"))
    until = wire.now + 600
    while wire.now < until:
        wire.frames.clear()
        wire.pass_time(0.02)
        if wire.frames:
            hellos, due = hellos + len(wire.frames), wire.now + answer_s
        if due is not None and wire.now >= due:
            due = None
            ada.receive_frames("host", [seal.seal(seal.Header(seal.ENROL, 0), refusal)], wire.now)
    assert 5 < hellos < 40


@pytest.mark.parametrize("shape", [(5, 2), (6, 3), (6, 1)])
def test_an_answer_of_another_shape_is_refused(shape: tuple[int, int]) -> None:
    wire = make_wire("a")
    board = wire.boards["a"]
    board.send(micro_batch(0), GRADIENT_DOWN, wire.now)
    wire.settle()
    wire.host.answer(1, Activation(GRADIENT_DOWN, 0, values(*shape)))
    wire.settle()
    assert board.refused == {"shape": 1}
    assert wire.of("a", Answered) == []


def test_a_run_ends_without_a_board_that_is_gone() -> None:
    wire = make_wire("a", "b", settings=Settings(silence_s=300.0))
    wire.pass_time(299.0)
    wire.boards["a"].number = PLAN.micro_batches
    wire.boards["a"].finish(wire.now)
    wire.settle()
    assert wire.host.phase(wire.now) == RUNNING
    assert wire.host.waited_for(wire.now) == {2}
    assert wire.host.phase(wire.now + 2.0) == FINISHED
    assert wire.host.waited_for(wire.now + 2.0) == set()


def test_hellos_and_questions_keep_no_run_open() -> None:
    """Only micro-batches do: a board that sends none is waited for `silence_s`, and no longer."""
    wire = make_wire("a", "b", settings=Settings(min_boards=2, silence_s=300.0))
    a, b = wire.boards["a"], wire.boards["b"]
    a.number = PLAN.micro_batches
    a._hello(wire.now)
    wire.settle()
    for question in range(3):
        wire.now += 110.0
        b._hello(wire.now)
        b.send(Activation(ASK, 90 + question, values()), ANSWER, wire.now)
        wire.settle()
    assert wire.host.boards[2].heard_at == wire.now
    assert (wire.host.phase(wire.now), wire.host.waited_for(wire.now)) == (FINISHED, set())
    b.send(micro_batch(0), GRADIENT_DOWN, wire.now)
    wire.settle()
    assert (wire.host.phase(wire.now), wire.host.waited_for(wire.now)) == (RUNNING, {2})


def test_the_time_to_speak_begins_when_the_run_is_open() -> None:
    wire = make_wire("a", settings=Settings(min_boards=2, silence_s=300.0))
    wire.now += 400.0
    add_board(wire, "b")
    assert wire.host.waited_for(wire.now) == {1, 2}


def test_a_board_has_one_micro_batch_in_a_step() -> None:
    wire = make_wire("a")
    for number in (0, 1):
        send(wire, written(micro_batch(number)))
    send(wire, written(Activation(ASK, 9, values())))
    wire.host.answer(1, Activation(ANSWER, 9, values(3)))
    hello = control.Hello("a", b"a" * 8, MODEL[:8], RUN, 0, bytes(16), 10)
    send(wire, control.write_control(hello), context=seal.ENROL)
    send(wire, written(micro_batch(2)))
    assert wire.host.refused == {"stale": 2}
    wire.host.answer(1, gradient(0))
    send(wire, written(micro_batch(3)))
    wire.host.give_up(1)
    send(wire, written(micro_batch(4)))
    arrived = [event.item for event in wire.of(HOST, Arrived)]
    assert [item.number for item in arrived if item.leg == LEARN] == [0, 3, 4]
    assert wire.host.refused == {"stale": 2}


def test_a_board_has_one_gradient_in_a_step() -> None:
    wire = make_wire("a", labels_stay=1)
    up = written(Activation(GRADIENT_UP, 0, values(3)))
    for body in (written(micro_batch(0, b"")), up, written(micro_batch(1, b""))):
        send(wire, body)
    assert wire.host.refused == {"stale": 1}
    wire.host.answer(1, gradient(0))
    send(wire, written(micro_batch(1, b"")))
    assert wire.host.refused == {"stale": 1}


def test_larger_numbers_than_the_plans_are_neither_sent_nor_taken() -> None:
    wire = make_wire("a", bits_up=32, value_max=100)
    board, host = wire.boards["a"], wire.host
    large = values() * np.float32(100.0)
    send(wire, write_activation(Activation(LEARN, 0, large * 1.001, b"\x00\x02"), 32))
    assert (host.refused, host.boards[1].number) == ({"scale": 1}, 0)
    for wrong in (large, np.full_like(large, np.inf), np.full_like(large, np.nan)):
        with pytest.raises(CodecError):
            board.send(Activation(LEARN, 0, wrong, b"\x00\x02"), GRADIENT_DOWN, wire.now)
    board.send(micro_batch(0), GRADIENT_DOWN, wire.now)
    wire.settle()
    with pytest.raises(CodecError):
        host.answer(1, Activation(GRADIENT_DOWN, 0, large))
    host.plan = replace(host.plan, value_max=1000)
    host.answer(1, Activation(GRADIENT_DOWN, 0, large * 1.01))
    wire.settle()
    assert board.refused == {"scale": 2}  # the host's word, and its own
    assert wire.of("a", Answered) == []


@given(st.floats(0.9, 1.0), st.sampled_from([2, 3, 4, 5, 6, 7, 8, 32]))
def test_what_may_be_sent_is_taken(share: float, bits: int) -> None:
    """Though a scale grows by up to a 256th as it is rounded."""
    item = Activation(ASK, 0, np.full((1, 6), share * PLAN.value_max, np.float32))
    try:
        [body] = bodies.cut(item, bits, PLAN)
    except CodecError:
        assert share > 0.99
        return
    assert bodies.Intake(PLAN).add(body) is not None


def test_a_welcome_that_was_held_back_leads_into_no_run_that_is_over() -> None:
    keys = Keys("a")
    wire = make_wire("a", keys=keys)
    board, before = wire.boards["a"], wire.host
    board._hello(wire.now)
    [(_, hello)] = _sent(board, wire.now)
    before.receive_frames("a", hello, wire.now)
    [(_, held)] = _sent(before, wire.now)
    wire.host = SplitHost(PLAN, Settings(), MODEL, b"run-id-9", (), 5000, keys.trust(HOST))
    wire.host.start(wire.now)
    board._hello(wire.now)
    for _ in range(6):
        wire.settle()
        wire.pass_time(2.0)
    assert (board.joined, board.run) == (True, b"run-id-9")
    board.number = 4
    board._hello(wire.now)
    board.receive_frames(HOST, held, wire.now)
    assert (board.run, board.number) == (b"run-id-9", 4)


def test_an_open_board_does_not_follow_it_either() -> None:
    board = SplitBoard("a", MODEL, 10, b"a       ", np.random.default_rng(1))
    board.start(0.0)
    board.receive_frames(HOST, [welcome(phase=GATHERING)], 0.0)
    board.receive_frames(HOST, [welcome(run=b"another!", phase=GATHERING)], 0.0)
    assert board.run == RUN
    renewed = hashlib.sha256(b"a       " + RUN).digest()[:8]
    board.handle_timeout(10.0)  # it asks again, as it waits
    board.receive_frames(HOST, [welcome(run=b"another!", instance=renewed)], 10.0)
    assert board.run == b"another!"


def _sent(end: SplitBoard | SplitHost, now: float) -> list[tuple[str, list[bytes]]]:
    while end.next_event() is not None:
        pass
    return end.frames_to_send(now)


def test_a_host_keeps_so_many_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ternmesh.split.host.EVENTS_MAX", 2)
    wire = make_wire("a")
    frames = [seal.seal(seal.Header(1, n), written(Activation(ASK, n, values()))) for n in range(5)]
    wire.host.receive_frames("a", frames, wire.now)
    wire.settle()
    assert wire.host.refused["full"] >= 2
    assert len(wire.of(HOST, Arrived)) <= 2


def test_boards_wait_until_enough_of_them_are_there() -> None:
    """And begin together: those who wait ask ever more seldom, and are told."""
    wire = make_wire("a", settings=Settings(min_boards=2))
    board = wire.boards["a"]
    assert (board.joined, board.ready, board.phase) == (True, False, GATHERING)
    add_board(wire, "b")
    assert (board.ready, board.phase) == (True, RUNNING)


def test_a_board_that_waits_for_a_dead_one_is_told_of_the_end() -> None:
    wire = make_wire("a", "b", settings=Settings(silence_s=300.0))
    board, host = wire.boards["a"], wire.host
    board.number = PLAN.micro_batches
    board.finish(wire.now)
    wire.settle()
    assert (board.phase, host.leave_at(wire.now)) == (RUNNING, None)
    del wire.boards["b"]
    due = host.next_timeout()
    assert due is not None
    wire.now = due
    host.handle_timeout(wire.now)
    wire.settle()
    assert (board.phase, host.next_timeout()) == (FINISHED, None)
    assert host.leave_at(wire.now) == wire.now + 6.0  # a question again, and some more


def test_a_host_stays_until_all_know_of_the_end() -> None:
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


def test_a_micro_batch_that_was_under_way_does_not_show_that_its_board_knows_of_the_end() -> None:
    wire = make_wire("a")
    board, host = wire.boards["a"], wire.host
    board.number = PLAN.micro_batches
    board.finish(wire.now)
    wire.deaf.add("a")
    wire.settle()
    leave_at = host.leave_at(wire.now)
    send(wire, written(micro_batch(4)))
    assert host.boards[1].refused == {"stale": 1}
    assert host.leave_at(wire.now) == leave_at


def test_nobody_waits_for_a_board_that_was_revoked() -> None:
    wire = make_wire("a", "b", keys=Keys("a", "b"))
    host = wire.host
    assert host.waited_for(wire.now) == {1, 2}
    roster = host._notary._roster  # type: ignore[attr-defined]
    roster._revoked.add(roster.find("b").fingerprint)
    assert host.waited_for(wire.now) == {1}
    wire.boards["a"].number = PLAN.micro_batches
    wire.boards["a"].finish(wire.now)
    wire.settle()
    assert wire.boards["a"].phase == FINISHED


def test_a_host_that_begins_after_the_end_knows_that_it_is_over() -> None:
    wire = make_wire(boards=((1, "a", PLAN.micro_batches),))
    assert wire.host.phase(wire.now) == FINISHED


def test_what_was_lost_last_is_counted() -> None:
    wire = make_wire("a")
    board, host = wire.boards["a"], wire.host
    board.send(micro_batch(0), GRADIENT_DOWN, wire.now)
    wire.settle()
    host.answer(1, gradient(0))
    wire.settle()
    board.number = PLAN.micro_batches
    board.finish(wire.now)
    wire.settle()
    assert (host.boards[1].number, host.boards[1].skipped) == (5, 4)


def test_a_refused_frame_costs_one_micro_batch_where_labels_stay() -> None:
    wire = make_wire("a", labels_stay=1)
    board, host = wire.boards["a"], wire.host
    board.send(micro_batch(0, b""), ANSWER, wire.now)
    wire.settle()
    board._hello(wire.now)  # as after a refusal
    wire.settle()
    host.answer(1, Activation(ANSWER, 0, values(3)))
    wire.settle()
    board.send(Activation(GRADIENT_UP, 0, values(3)), GRADIENT_DOWN, wire.now)
    wire.settle()
    assert host.refused == {}
    assert [event.item.leg for event in wire.of(HOST, Arrived)] == [LEARN, GRADIENT_UP]


def test_a_run_is_finished_when_all_boards_are_done_or_gone() -> None:
    wire = make_wire("a", "b", settings=Settings(silence_s=300.0))
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


def test_who_asks_gets_an_answer_and_teaches_nothing() -> None:
    wire = make_wire("a")
    board = wire.boards["a"]
    board.send(Activation(ASK, 9, values(samples=1)), ANSWER, wire.now)
    wire.settle()
    [arrived] = wire.of(HOST, Arrived)
    wire.host.answer(1, Activation(ANSWER, 9, values(3, 1)))
    wire.settle()
    [answered] = wire.of("a", Answered)
    assert answered.item.values.tobytes() == values(3, 1).tobytes()  # logits travel whole
    assert (arrived.item.leg, board.number, wire.host.boards[1].number) == (ASK, 0, 0)


def test_labels_may_stay() -> None:
    wire = make_wire("a", labels_stay=1)
    board, host = wire.boards["a"], wire.host
    board.send(micro_batch(0, b""), ANSWER, wire.now)
    wire.settle()
    host.answer(1, Activation(ANSWER, 0, values(3)))
    wire.settle()
    board.send(Activation(GRADIENT_UP, 0, values(3)), GRADIENT_DOWN, wire.now)
    wire.settle()
    host.answer(1, gradient(0))
    wire.settle()
    assert [event.item.leg for event in wire.of(HOST, Arrived)] == [LEARN, GRADIENT_UP]
    assert [event.item.leg for event in wire.of("a", Answered)] == [ANSWER, GRADIENT_DOWN]
    send(wire, write_activation(Activation(GRADIENT_UP, 0, values(3)), 4))
    assert host.refused == {"stale": 1}


def written(item: Activation) -> bytes:
    return write_activation(item, 4)


def spoilt() -> bytes:
    body = bytearray(written(micro_batch(0)))
    body[10:12] = b"\xc0\x7f"
    return bytes(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (spoilt(), "payload"),
        (written(micro_batch(0, b"")), "shape"),
        (written(micro_batch(0, b"\x00\x03")), "shape"),
        (written(Activation(LEARN, 0, values(5), b"\x00\x00")), "shape"),
        (written(Activation(LEARN, 0, values(6, 1), b"\x00")), "shape"),
        (written(Activation(ASK, 0, values(6, 3))), "shape"),
        (written(micro_batch(PLAN.micro_batches)), "stale"),
        (written(gradient(0)), "kind"),
        (written(Activation(GRADIENT_UP, 0, values(3))), "kind"),
        (b"\x01", "kind"),
        (b"\x11", "length"),
        (pieces.cut(bytes(5000), 512)[0], "piece"),
    ],
)
def test_what_is_refused_changes_nothing(body: bytes, reason: str) -> None:
    wire = make_wire("a")
    send(wire, body)
    assert wire.host.refused == wire.host.boards[1].refused == {reason: 1}
    assert wire.of(HOST, Refused) == [Refused("a", reason)]
    assert wire.of("a", Refused) == [Refused("", reason)]
    assert wire.of(HOST, Arrived) == []
    assert wire.host.boards[1].number == 0


def test_an_activation_in_context_0_is_of_the_wrong_kind() -> None:
    wire = make_wire("a")
    send(wire, written(micro_batch(0)), context=seal.ENROL)
    assert wire.host.refused == {"kind": 1}
    frame = seal.seal(seal.Header(seal.ENROL, 0), written(micro_batch(0)))
    wire.boards["a"].receive_frames(HOST, [frame], wire.now)
    assert wire.boards["a"].refused["kind"] == 2  # its own word, and the host's


def test_a_micro_batch_is_taken_once() -> None:
    wire = make_wire("a")
    for number in (2, 2, 1):
        send(wire, written(micro_batch(number)))
    assert wire.host.refused == {"stale": 2}
    assert len(wire.of(HOST, Arrived)) == 1


def test_who_is_not_known_is_refused() -> None:
    wire = make_wire("a")
    send(wire, written(micro_batch(0)), context=2)
    send(wire, written(micro_batch(0)), peer="b")
    assert wire.host.refused == {"unknown node": 1, "wrong peer": 1}
    other = SplitBoard("c", bytes(32), 10, bytes(8), np.random.default_rng(1))
    wire.boards["c"] = other
    other.start(wire.now)
    wire.settle()
    assert other.refused == {"wrong model": 1}
    assert not other.joined


def test_a_host_takes_so_many_boards() -> None:
    wire = make_wire("a", settings=Settings(boards_max=1))
    assert add_board(wire, "b").refused == {"full": 1}
    assert len(wire.host.boards) == 1


def test_a_host_that_was_killed_goes_on_where_its_checkpoint_was() -> None:
    wire = make_wire("a")
    board = wire.boards["a"]
    board.number = 4
    wire.host = SplitHost(PLAN, Settings(), MODEL, RUN, [(1, "a", 2)], 5000)
    wire.host.start(wire.now)
    board.send(micro_batch(4), GRADIENT_DOWN, wire.now)
    wire.settle()
    assert [event.item.number for event in wire.of(HOST, Arrived)] == [4]
    assert wire.host.boards[1].skipped == 2


def test_a_board_that_was_killed_goes_on_where_the_host_is() -> None:
    wire = make_wire(boards=((1, "a", 3),))
    again = add_board(wire, "a", run=RUN, number=1)
    assert again.number == 3
    [welcomed] = wire.of("a", Welcomed)
    assert (welcomed.run, welcomed.number) == (RUN, 3)


def test_a_board_of_another_run_begins_anew() -> None:
    wire = make_wire()
    assert add_board(wire, "a", run=b"another!", number=4).number == 0


def test_everything_goes_under_keys() -> None:
    keys = Keys("a", "b")
    wire = make_wire("a", keys=keys, labels_stay=1)
    board = wire.boards["a"]
    board.send(micro_batch(0, b""), ANSWER, wire.now)
    wire.settle()
    wire.host.answer(1, Activation(ANSWER, 0, values(3)))
    wire.settle()
    assert len(wire.of("a", Answered)) == 1
    assert {seal.suite_of(frame) for _, _, frame in wire.frames} == {1}
    plain = write_activation(Activation(LEARN, 0, values()), PLAN.bits_up)
    assert not any(plain[10:] in frame for _, _, frame in wire.frames)


def test_with_keys_others_are_refused() -> None:
    keys = Keys("a", "b")
    wire = make_wire("a", keys=keys)
    board, host = wire.boards["a"], wire.host
    board.send(micro_batch(0), GRADIENT_DOWN, wire.now)
    wire.settle()
    frame = [frame for _, to, frame in wire.frames if to == HOST][-1]
    host.refused.clear()
    host.receive_frames("a", [frame], wire.now)  # once more
    host.receive_frames("b", [frame], wire.now)  # in another member's name
    host.receive_frames("nobody", [frame], wire.now)
    host.receive_frames("a", [seal.seal(seal.Header(1, 0), written(micro_batch(1)))], wire.now)
    assert host.refused == {"replay": 1, "seal": 1, "unknown key": 1, "suite": 1}
    assert len(wire.of(HOST, Arrived)) == 1


def test_nobody_answers_aloud_more_than_once_a_second() -> None:
    wire = make_wire("a")
    wire.frames.clear()
    for _ in range(50):
        send(wire, b"\x11")
    assert wire.host.refused == {"length": 50}
    assert sum(sender == HOST for sender, _, _ in wire.frames) == 1


def test_unfinished_objects_take_bounded_memory() -> None:
    wire = make_wire("a", frame_mtu=64, bits_up=32)
    for number in range(40):
        send(wire, pieces.cut(write_activation(micro_batch(number % 5), 32), 64)[0])
    assembly = wire.host.boards[1].intake._assembly
    assert len(assembly._partials) <= 2


@given(st.binary(max_size=80), st.sampled_from([0, 1, 0x8001, 0xFFFF, 2]), st.booleans())
def test_any_body_is_an_event_or_is_counted(body: bytes, context: int, is_activation: bool) -> None:
    wire = make_wire("a")
    if is_activation:
        body = activation._HEAD.pack(activation.KIND, LEARN, 0, 4, 2, 6) + body
    frames = [body, *([seal.seal(seal.Header(context, 0), body)] if body else [])]
    for name, end in wire.ends().items():
        end.receive_frames("a" if name == HOST else HOST, frames, wire.now)
    wire.settle()
    assert len(wire.of(HOST, Arrived)) + wire.host.refused.total() >= 1


@given(st.lists(st.integers(0, 2**32 - 1), min_size=12, max_size=16))
def test_any_numbers_are_a_plan_or_a_wire_error(numbers: list[int]) -> None:
    for candidate in (tuple(numbers), (*to_numbers(PLAN)[:10], *numbers[:4])):
        try:
            plan = from_numbers(candidate)
        except WireError:
            continue
        assert to_numbers(plan) == candidate
        assert plan.body_max < 2**26


def test_the_rate_falls_in_a_straight_line() -> None:
    rates = [PLAN.learning_rate(number) for number in range(5)]
    assert rates == pytest.approx([0.005, 0.0042, 0.0034, 0.0026, 0.0018])


def test_the_longest_body_fits_the_limit() -> None:
    plan = SplitPlan(**{**dict(zip(PLAN.__slots__, to_numbers(PLAN), strict=True)), "bits_up": 32})
    longest = write_activation(micro_batch(0), 32)
    assert len(longest) <= plan.body_max


def test_a_plan_whose_bodies_have_too_many_pieces_is_refused() -> None:
    wide = {"width": 65_535, "bits_up": 32, "frame_mtu": 64}
    replace(PLAN, **wide, batch=9)
    with pytest.raises(WireError, match="do not carry such batches"):
        replace(PLAN, **wide, batch=41)
