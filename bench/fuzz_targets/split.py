"""Split training: activations, and both ends whatever frames arrive."""

from collections.abc import Iterator

import numpy as np

from bench.fuzz_targets import wire
from bench.fuzz_targets.target import Target, joined, number, parts, same, settle
from ternmesh.split.board import SplitBoard
from ternmesh.split.host import Settings, SplitHost
from ternmesh.split.plan import SplitPlan, to_numbers
from ternmesh.wire import activation, control, pieces, seal
from ternmesh.wire.activation import Activation, read_activation, write_activation

_RUN = b"runrunru"
_PLAN = SplitPlan(6, 4, 3, 2, 9, 5000, 800, 1, 3, 3, 64, 1000, 1000, 1_000_000)
_BITS_AT = 6
STEPS_MAX = 64


def _activations() -> list[bytes]:
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    down = values[:, :3]
    items = (
        (Activation(activation.LEARN, 0, values), 4),
        (Activation(activation.LEARN, 1, values, b"\x00\x02"), 8),
        (Activation(activation.ASK, 9, values[:1]), 4),
        (Activation(activation.ANSWER, 0, down), 4),
        (Activation(activation.GRADIENT_UP, 0, down), 3),
        (Activation(activation.GRADIENT_DOWN, 0, values), 32),
    )
    return [write_activation(item, bits) for item, bits in items]


def _check_activation(data: bytes) -> None:
    item = read_activation(data)
    if not np.isfinite(item.values).all():
        raise AssertionError("an activation that is not finite was read")
    same(write_activation(item, data[_BITS_AT]), data, "an activation")


def _check_host(data: bytes) -> None:
    host = SplitHost(_PLAN, Settings(boards_max=2), wire.MODEL, _RUN, [(1, "ada", 0)])
    host.start(0.0)
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        context = (seal.ENROL, 1, 2, 900)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        host.receive_frames(("ada", "bob")[choice >> 2 & 1], [frame], step * 0.5)
        while host.next_event() is not None:
            pass
        host.frames_to_send(step * 0.5)
    if len(host.boards) > host.settings.boards_max:
        raise AssertionError("more boards than may be")


def _check_board(data: bytes) -> None:
    board = SplitBoard("ada", wire.MODEL, 10, b"instance", np.random.default_rng(0))
    board.start(0.0)
    now = 0.0
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = (seal.ENROL, seal.DOWN | 1, seal.BROADCAST, 1)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        board.receive_frames("host", [frame], now)
        if board.ready and board.plan is not None and board.number < board.plan.micro_batches:
            values = np.ones((1, 1), np.float32)
            board.send(Activation(activation.LEARN, board.number, values), 2 + choice % 3, now)
        settle(board, now)
        board.frames_to_send(now)


def _conversations() -> Iterator[bytes]:
    hello = control.Hello("ada", b"instance", wire.MODEL[:8], bytes(8), 0, bytes(16), 10)
    said = [b"\x00" + control.write_control(hello)]
    yield joined(said + [b"\x01" + body for body in _activations()])
    yield joined(said + [b"\x01" + body for body in pieces.cut(_activations()[5], 64)])


def _answers() -> Iterator[bytes]:
    numbers = to_numbers(_PLAN)
    welcome = control.Welcome(b"instance", 1, _RUN, 0, control.OPEN, 0, numbers)
    said = [b"\x00" + control.write_control(welcome)]
    yield joined(said + [b"\x01" + body for body in _activations()])
    yield joined(said + [b"\x41" + body for body in pieces.cut(_activations()[5], 64)])


TARGETS = (
    Target("activation", _check_activation, _activations),
    Target("split_host", _check_host, _conversations),
    Target("split_board", _check_board, _answers),
)
