"""Micro-batches, answers and questions: what crosses the wire, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import CodecError
from ternmesh.federated.events import Refused
from ternmesh.security.membership import HOST
from ternmesh.split.messages import Answered, Arrived, Lost
from ternmesh.wire import activation, control, fragments
from ternmesh.wire.activation import ANSWER, ASK, GRADIENT, LEARN, Activation, write_activation
from ternmesh.wire.frame import UNASSIGNED, Header, seal_open, suite_of
from tests.ternmesh.federated.conftest import Keys
from tests.ternmesh.split.split_wire import (
    MODEL,
    PLAN,
    RUN,
    gradient,
    make_wire,
    micro_batch,
    send,
    values,
    written,
)


@pytest.mark.parametrize("frame_mtu", [64, 512])
def test_what_is_longer_than_a_frame_travels_in_pieces(frame_mtu: int) -> None:  # R10.1-4
    wire = make_wire("a", frame_mtu=frame_mtu, bits_up=32, bits_gradient=32)
    wire.frames.clear()
    wire.boards["a"].send(micro_batch(0), wire.now)
    wire.settle()
    assert (len(wire.frames) > 1) == (frame_mtu == 64)
    assert max(len(frame) for _, _, frame in wire.frames) <= frame_mtu
    [arrived] = wire.of(HOST, Arrived)
    assert arrived.item.values.tobytes() == values().tobytes()


def test_a_lost_micro_batch_is_skipped_and_counted_at_both_ends() -> None:  # R10.3-8, R10.3-10
    wire = make_wire("a")
    board, host = wire.boards["a"], wire.host
    wire.deaf.add(HOST)
    board.send(micro_batch(0), wire.now)
    wire.settle()
    assert wire.of("a", Lost) == []
    wire.pass_time(1.5)
    assert wire.of("a", Lost) == [Lost(0)]
    wire.deaf.clear()
    board.send(micro_batch(1), wire.now)
    wire.settle()
    assert host.nodes[1].skipped == 1
    # An answer that comes after its time is nobody's any more.
    wire.pass_time(1.5)
    host.answer(1, gradient(1))
    wire.settle()
    assert board.refused["stale"] == 1
    assert wire.of("a", Answered) == []


@pytest.mark.parametrize("shape", [(5, 2), (6, 3), (6, 1)])
def test_an_answer_of_another_shape_is_refused(shape: tuple[int, int]) -> None:  # R10.3-11
    wire = make_wire("a")
    board = wire.boards["a"]
    board.send(micro_batch(0), wire.now)
    wire.settle()
    wire.host.answer(1, Activation(GRADIENT, 0, values(*shape)))
    wire.settle()
    assert board.refused == {"shape": 1}
    assert wire.of("a", Answered) == []


def test_a_board_has_one_micro_batch_in_a_step() -> None:  # R10.3-7
    wire = make_wire("a")
    for number in (0, 1):
        send(wire, written(micro_batch(number)))
    send(wire, written(Activation(ASK, 9, values())))
    wire.host.answer(1, Activation(ANSWER, 9, values(3)))
    hello = control.Hello("a", b"a" * 8, MODEL[:8], RUN, 0, bytes(16), 10)
    send(wire, control.write_control(hello), address=UNASSIGNED)
    send(wire, written(micro_batch(2)))
    assert wire.host.refused == {"stale": 2}
    wire.host.answer(1, gradient(0))
    send(wire, written(micro_batch(3)))
    wire.host.give_up(1)
    send(wire, written(micro_batch(4)))
    arrived = [event.item for event in wire.of(HOST, Arrived)]
    assert [item.number for item in arrived if item.leg == LEARN] == [0, 3, 4]
    assert wire.host.refused == {"stale": 2}
    wire.host.give_up(1)
    send(wire, written(micro_batch(1)))  # an older one, which was here or was given up
    assert wire.host.refused == {"stale": 3}


def test_numbers_that_are_not_finite_are_not_sent() -> None:
    wire = make_wire("a")
    wrong = np.full_like(values(), np.nan)
    with pytest.raises(CodecError):
        wire.boards["a"].send(Activation(LEARN, 0, wrong, b"\x00\x02"), wire.now)
    wire.boards["a"].send(micro_batch(0), wire.now)
    wire.settle()
    with pytest.raises(CodecError):
        wire.host.answer(1, Activation(GRADIENT, 0, wrong))
    assert (wire.boards["a"].number, wire.of("a", Answered)) == (1, [])


def test_a_host_keeps_so_many_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ternmesh.split.host.EVENTS_MAX", 2)
    wire = make_wire("a")
    frames = [seal_open(Header(1, n), written(Activation(ASK, n, values()))) for n in range(5)]
    wire.host.receive_frames("a", frames, wire.now)
    wire.settle()
    assert wire.host.refused["full"] >= 2
    assert len(wire.of(HOST, Arrived)) <= 2


def test_who_asks_gets_an_answer_and_teaches_nothing() -> None:  # R10.3-13
    wire = make_wire("a")
    board = wire.boards["a"]
    board.send(Activation(ASK, 9, values(samples=1)), wire.now)
    wire.settle()
    [arrived] = wire.of(HOST, Arrived)
    wire.host.answer(1, Activation(ANSWER, 9, values(3, 1)))
    wire.settle()
    [answered] = wire.of("a", Answered)
    assert answered.item.values.tobytes() == values(3, 1).tobytes()  # logits travel whole
    assert (arrived.item.leg, board.number, wire.host.nodes[1].number) == (ASK, 0, 0)


def spoilt() -> bytes:
    body = bytearray(written(micro_batch(0)))
    body[10:12] = b"\xc0\x7f"
    return bytes(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (spoilt(), "payload"),
        (written(micro_batch(0, b"")), "length"),
        (written(micro_batch(0, b"\x00\x03")), "shape"),
        (written(Activation(LEARN, 0, values(5), b"\x00\x00")), "shape"),
        (written(Activation(LEARN, 0, values(6, 1), b"\x00")), "shape"),
        (written(Activation(ASK, 0, values(6, 3))), "shape"),
        (written(micro_batch(PLAN.micro_batches)), "stale"),
        (written(gradient(0)), "kind"),
        (b"\x01", "kind"),
        (b"\x11", "length"),
        (fragments.split(bytes(5000), 512)[0], "piece"),
    ],
)
def test_what_is_refused_changes_nothing(body: bytes, reason: str) -> None:
    wire = make_wire("a")
    send(wire, body)
    assert wire.host.refused == wire.host.nodes[1].refused == {reason: 1}
    assert wire.of(HOST, Refused) == [Refused("a", reason)]
    assert wire.of("a", Refused) == [Refused("", reason)]
    assert wire.of(HOST, Arrived) == []
    assert wire.host.nodes[1].number == 0


def test_everything_goes_under_keys() -> None:
    keys = Keys("a", "b")
    wire = make_wire("a", keys=keys)
    board = wire.boards["a"]
    board.send(micro_batch(0), wire.now)
    wire.settle()
    wire.host.answer(1, gradient(0))
    wire.settle()
    assert len(wire.of("a", Answered)) == 1
    assert {suite_of(frame) for _, _, frame in wire.frames} == {1}
    plain = write_activation(Activation(LEARN, 0, values()), PLAN.bits_up)
    assert not any(plain[10:] in frame for _, _, frame in wire.frames)


@given(st.binary(max_size=80), st.sampled_from([0, 1, 0x8001, 0xFFFF, 2]), st.booleans())
def test_any_body_is_an_event_or_is_counted(body: bytes, address: int, is_activation: bool) -> None:
    wire = make_wire("a")
    if is_activation:
        body = activation._HEAD.pack(activation.KIND, LEARN, 0, 4, 2, 6) + body
    frames = [body, *([seal_open(Header(address, 0), body)] if body else [])]
    for name, end in wire.ends().items():
        end.receive_frames("a" if name == HOST else HOST, frames, wire.now)
    wire.settle()
    assert len(wire.of(HOST, Arrived)) + wire.host.refused.total() >= 1
