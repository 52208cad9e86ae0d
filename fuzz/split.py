"""Both ends of split training, whatever frames arrive."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fuzz import wire
from fuzz.target import Target, is_refusal, joined, number, same, settle, steps
from ternmesh.federated.joining import NodeSettings
from ternmesh.split.board import SplitBoard
from ternmesh.split.host import SplitHost, SplitSettings
from ternmesh.split.messages import Arrived
from ternmesh.split.plan import SplitPlan, to_numbers
from ternmesh.wire import activation, control, fragments
from ternmesh.wire.activation import Activation, write_activation
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED

_RUN = b"runrunru"
_PLAN = SplitPlan(6, 4, 3, 2, 9, 5000, 800, 3, 64, 1000, 1_000_000)
_PLANS = (_PLAN, replace(_PLAN, bits_up=32, bits_gradient=32))
_SAMPLES = 2  # of a board's micro-batch
_ANSWERS = 0  # the host's program answers what arrives; otherwise it does nothing


def _answer(host: SplitHost, address: int, item: Activation) -> None:
    """Send what the host's program makes of an activation."""
    learns = item.leg == activation.LEARN
    leg = activation.GRADIENT if learns else activation.ANSWER
    width = host.plan.width if learns else host.plan.classes
    values = np.full((len(item.values), width), 0.5, np.float32)
    host.answer(address, Activation(leg, item.number, values))


def _check_host(data: bytes) -> None:
    plan = _PLANS[number(data, 0, 1) & 1]
    host = SplitHost(
        plan=plan,
        settings=SplitSettings(silence_s=20.0),
        model_hash=wire.MODEL,
        run=_RUN,
        boards=[(1, "ada", 0)],
    )

    def state() -> object:
        boards = host.nodes.values()
        return [(b.name, b.number, b.held, b.learned, b.is_done) for b in boards]

    host.start(0.0)
    for step in steps(data[1:], time_bits=2, unit_s=4.0):
        choice = step.choice
        frame = step.frame((UNASSIGNED, 1, 2, 900)[choice & 3], is_raw=bool(choice & 8))
        before, peer = state(), ("ada", "bob")[choice >> 2 & 1]
        host.receive_frames(peer, [frame], step.now)
        found: list[object] = list(iter(host.next_event, None))
        if is_refusal(found, peer):
            same(state(), before, "a host after a refusal")
        for event in found:
            if isinstance(event, Arrived) and choice >> 4 & 3 == _ANSWERS:
                _answer(host, event.address, event.item)
        settle(host, step.now)
        host.frames_to_send(step.now)
        host.leave_at(step.now)


def _check_board(data: bytes) -> None:
    board = SplitBoard(
        NodeSettings("ada", wire.MODEL, b"instance"), samples=10, rng=np.random.default_rng(0)
    )

    def state() -> object:
        return board.run, board.number, board.plan, board.joined, board.phase, board.ready

    board.start(0.0)
    for step in steps(data):
        choice = step.choice
        address = (UNASSIGNED, DOWN | 1, BROADCAST, 1)[choice & 3]
        before = state()
        board.receive_frames("host", [step.frame(address, is_raw=bool(choice & 8))], step.now)
        found: list[object] = list(iter(board.next_event, None))
        if is_refusal(found, "host"):
            same(state(), before, "a board after a refusal")
        leg = activation.LEARN if choice & 4 else activation.ASK
        if board.ready and board.plan is not None:
            if board.number >= board.plan.micro_batches:
                board.finish(step.now)
            else:
                values = np.full((_SAMPLES, 1), 0.5, np.float32)
                labels = bytes(_SAMPLES) if leg == activation.LEARN else b""
                board.send(Activation(leg, board.number, values, labels), step.now)
        settle(board, step.now)
        board.frames_to_send(step.now)


def _to_host() -> Iterator[bytes]:
    hello = control.Hello("ada", b"instance", wire.MODEL[:8], bytes(8), 0, bytes(16), 10)
    joins = [b"\x00" + control.write_control(hello)]
    up = np.full((2, 6), 0.5, np.float32)
    for plan in (b"\x00", b"\x01"):
        both = []
        for index in range(3):
            learn = Activation(activation.LEARN, index, up, b"\x00\x02")
            both.append(write_activation(learn, 4))
            both.append(write_activation(Activation(activation.ASK, index, up), 4))
        yield plan + joined(joins + [b"\x01" + body for body in both])


def _to_board() -> Iterator[bytes]:
    joins = [b"\x00" + _welcome(control.OPEN)]
    yield joined(joins + [b"\x01" + body for body in wire.activations()])
    cut = fragments.split(wire.activations()[3], _PLAN.frame_mtu)
    yield joined([b"\x04" + _welcome(control.OPEN, _PLANS[1]), *(b"\x01" + f for f in cut)])
    over = [b"\x00" + control.write_control(control.Refusal(0, "stale")), b"\xf1\0", b"\xf1\0"]
    yield joined([*joins, *over, b"\x00" + _welcome(control.FINISHED), *over, *joins])


def _welcome(phase: int, plan: SplitPlan = _PLAN) -> bytes:
    return control.write_control(
        control.Welcome(b"instance", 1, _RUN, 0, phase, 0, to_numbers(plan))
    )


TARGETS = (
    Target("split_host", _to_host, _check_host),
    Target("split_board", _to_board, _check_board),
)
