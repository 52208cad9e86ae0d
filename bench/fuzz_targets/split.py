"""Split training: activations, and both ends whatever frames arrive."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.fuzz_targets import wire
from bench.fuzz_targets.target import Target, joined, number, parts, same
from ternmesh.split.board import SplitBoard
from ternmesh.split.events import Answered, Arrived
from ternmesh.split.host import Settings, SplitHost
from ternmesh.split.plan import SplitPlan, to_numbers
from ternmesh.swarm.events import CountersReserved, Refused
from ternmesh.wire import activation, control, pieces, seal
from ternmesh.wire.activation import Activation, read_activation, write_activation

_RUN = b"runrunru"
_PLAN = SplitPlan(6, 4, 3, 2, 9, 5000, 800, 1, 3, 3, 64, 1000, 1000, 1_000_000)
_PLANS = (_PLAN, replace(_PLAN, labels_stay=0, bits_up=32, bits_gradient=32))
_BITS_AT = 6
_SAMPLES = 2  # of a board's micro-batch
_SILENCE_S = 20.0
_ANSWER, _GIVE_UP = 0, 1  # what a host's program does with what arrives; else nothing
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


class _HostRun:
    """A host whose program answers what arrives, gives it up, or does neither."""

    def __init__(self, plan: SplitPlan) -> None:
        settings = Settings(boards_max=2, silence_s=_SILENCE_S)
        self.host = SplitHost(plan, settings, wire.MODEL, _RUN, [(1, "ada", 0)])
        self._learned: dict[int, int] = {}  # the last micro-batch of each board
        self._held: set[int] = set()
        self.host.start(0.0)

    def hear(self, peer: str, frame: bytes, now: float, *, does: int) -> None:
        """Deliver a frame; AssertionError where it is refused and yet changes something."""
        before = self._state()
        self.host.receive_frames(peer, [frame], now)
        found = self._events()
        if found and all(isinstance(event, Refused) for event in found):
            same(self._state(), before, "a host after a refusal")
        for event in found:
            if isinstance(event, Arrived):
                self._arrived(event.context, event.item)
                self._act(event.context, event.item, does)

    def settle(self, now: float) -> None:
        """Let it do what is due, and send."""
        if (due := self.host.next_timeout()) is not None and due <= now:
            self.host.handle_timeout(now)
        self._events()
        self.host.frames_to_send(now)
        self.host.leave_at(now)

    def _arrived(self, context: int, item: Activation) -> None:
        """A micro-batch comes once, and none while a gradient of the one before is to be made."""
        if item.leg == activation.LEARN:
            last = self._learned.get(context, -1)
            same(item.number > last, True, "whether a micro-batch is a new one")
            same(context in self._held, False, "whether a board must wait")
            self._learned[context] = item.number
        if item.leg == activation.GRADIENT_UP:
            same(item.number, self._learned.get(context), "the micro-batch of a gradient")
        if item.leg == (activation.GRADIENT_UP if self._stays else activation.LEARN):
            self._held.add(context)

    def _act(self, context: int, item: Activation, does: int) -> None:
        plan, is_held = self.host.plan, context in self._held and item.leg != activation.ASK
        if does == _GIVE_UP and is_held:
            self.host.give_up(context)
            self._held.discard(context)
        elif does == _ANSWER:
            leg = activation.GRADIENT_DOWN if is_held else activation.ANSWER
            width = plan.width if is_held else plan.width_down
            values = np.full((len(item.values), width), 0.5, np.float32)
            self.host.answer(context, Activation(leg, item.number, values))
            if is_held:
                self._held.discard(context)

    @property
    def _stays(self) -> bool:
        return bool(self.host.plan.labels_stay)

    def _events(self) -> list[object]:
        found = list(iter(self.host.next_event, None))
        return [event for event in found if not isinstance(event, CountersReserved)]

    def _state(self) -> object:
        boards = self.host.boards.values()
        return [(b.name, b.number, b.open, b.held, b.learned, b.is_done) for b in boards]


def _check_host(data: bytes) -> None:
    run, now = _HostRun(_PLANS[number(data, 0, 1) & 1]), 0.0
    for step, item in zip(range(STEPS_MAX), parts(data[1:]), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 6) * 4.0
        context = (seal.ENROL, 1, 2, 900)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        run.hear(("ada", "bob")[choice >> 2 & 1], frame, now, does=choice >> 4 & 3)
        run.settle(now)
    if len(run.host.boards) > run.host.settings.boards_max:
        raise AssertionError("more boards than may be")


class _BoardRun:
    """A board that sends micro-batches for as long as it may."""

    def __init__(self) -> None:
        self.board = SplitBoard("ada", wire.MODEL, 10, b"instance", np.random.default_rng(0))
        self._wanted: tuple[int, int] | None = None
        self.board.start(0.0)

    def hear(self, frame: bytes, now: float) -> None:
        """Deliver a frame; AssertionError where it is refused and yet changes something."""
        before = self._state()
        self.board.receive_frames("host", [frame], now)
        found = self._events()
        if found and all(isinstance(e, Refused) and e.peer == "host" for e in found):
            same(self._state(), before, "a board after a refusal")

    def work(self, leg: int, now: float) -> None:
        """Send the next micro-batch, if it may be sent; it is to be answered by `leg`."""
        board = self.board
        if not board.ready or board.plan is None:
            return
        if board.number >= board.plan.micro_batches:
            board.finish(now)
            return
        self._wanted = board.number, leg
        values = np.full((_SAMPLES, 1), 0.5, np.float32)  # 0.5: within every plan's `value_max`
        board.send(Activation(activation.LEARN, board.number, values), leg, now)

    def settle(self, now: float) -> None:
        """Let it do what is due, and send."""
        if (due := self.board.next_timeout()) is not None and due <= now:
            self.board.handle_timeout(now)
        self._events()
        self.board.frames_to_send(now)

    def _events(self) -> list[object]:
        found: list[object] = list(iter(self.board.next_event, None))
        for event in found:
            if isinstance(event, Answered):
                same((event.item.number, event.item.leg), self._wanted, "what was answered")
                same(len(event.item.values), _SAMPLES, "the samples of an answer")
                self._wanted = None
        return [event for event in found if not isinstance(event, CountersReserved)]

    def _state(self) -> object:
        board = self.board
        place = board.run, board.number, board.plan, board.joined, board.phase, board.ready
        return place, board._wanted, board._context


def _check_board(data: bytes) -> None:
    run, now = _BoardRun(), 0.0
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = (seal.ENROL, seal.DOWN | 1, seal.BROADCAST, 1)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        run.hear(frame, now)
        run.work(activation.GRADIENT_DOWN if choice & 4 else activation.ANSWER, now)
        run.settle(now)


def _hello(version: int = 0, name: str = "ada") -> bytes:
    place = b"instance", wire.MODEL[:8], _RUN if version else bytes(8), version, bytes(16)
    return control.write_control(control.Hello(name, *place, 10))


def _conversations() -> Iterator[bytes]:
    for plan, labels in ((b"\x00", b""), (b"\x01", b"\x00\x02")):
        greeted = [b"\x00" + _hello()]
        yield plan + joined(greeted + [b"\x01" + body for body in _activations()])
        batches = [write_activation(_up(index, labels), 4) for index in range(3)]
        gradients = [write_activation(_gradient(index), 3) for index in range(3)]
        both = [body for pair in zip(batches, gradients, strict=True) for body in pair]
        yield plan + joined(greeted + [b"\x01" + body for body in both])
        others = [b"\x11" + both[0], b"\x11" + both[1], b"\x21" + both[2], b"\xc0" + _hello(9)]
        yield plan + joined(greeted + others + [b"\xf0" + _hello()])
        yield plan + joined(greeted + [b"\x21" + body for body in both[:4]])  # it must wait
        bob = [b"\x04" + _hello(name="bob"), b"\x06" + both[0], b"\xc0\0", b"\xc0\0"]
        yield plan + joined(greeted + bob + [b"\xc0" + _hello(9)])
    long = pieces.cut(write_activation(_up(0, labels), 32), 64)
    yield plan + joined(greeted + [b"\x01" + body for body in long])


def _up(index: int, labels: bytes) -> Activation:
    return Activation(activation.LEARN, index, np.full((2, 6), 0.5, np.float32), labels)


def _gradient(index: int) -> Activation:
    return Activation(activation.GRADIENT_UP, index, np.full((2, 3), 0.5, np.float32))


def _answers() -> Iterator[bytes]:
    said = [b"\x00" + _welcome(control.OPEN)]
    yield joined(said + [b"\x01" + body for body in _activations()])
    long = pieces.cut(_activations()[5], _PLAN.frame_mtu)
    yield joined([b"\x04" + _welcome(control.OPEN, _PLANS[1]), *(b"\x01" + body for body in long)])
    over = [b"\x00" + control.write_control(control.Refusal(0, "stale")), b"\xf1\0", b"\xf1\0"]
    yield joined([*said, *over, b"\x00" + _welcome(control.FINISHED), *over, *said])


def _welcome(phase: int, plan: SplitPlan = _PLAN) -> bytes:
    welcome = control.Welcome(b"instance", 1, _RUN, 0, phase, 0, to_numbers(plan))
    return control.write_control(welcome)


TARGETS = (
    Target("activation", _check_activation, _activations),
    Target("split_host", _check_host, _conversations),
    Target("split_board", _check_board, _answers),
)
