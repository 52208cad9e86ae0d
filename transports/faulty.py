"""A seeded bad link: drops, bursts, copies, delays and flipped bits.

`FaultModel` is pure: it holds no frame, clock or thread, and simulations use it alone. The same
seed gives the same faults. `FaultyTransport` puts a model for each direction around a transport;
all peers share its bursts and its rate, as they would share a radio. A dropped frame counts in what
`send` returns: it was on the air.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from transports import batch
from transports.base import Arrival, Busy, FrameTooLarge, NotConnected, Transport
from transports.driver import ARRIVALS_MAX, BUSY_WAIT_S

DIRECTIONS = ("both", "send", "receive")
DELAY_MAX_S = 3600.0
MTU_MAX = 0xFFFF
WAITING_MAX = 4096  # frames on their way in one direction
WAITING_BYTES_MAX = 8 << 20
_RUN_MAX = 64  # frames passed on in one call, so that they fit the queue of the transport below
_FORM = "write faults as drop=0.2,burst=0.05/0.25/0.02/0.9,delay_s=0.5"


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # False for NaN too
        raise ValueError(f"fault {name}={value} must be {low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class Bursts:
    """Gilbert-Elliott losses: a state, good or bad, with its own loss, that may change each frame.

    All four are probabilities; a frame is lost by the state it finds, then the state moves.
    """

    good_to_bad: float
    bad_to_good: float
    loss_good: float
    loss_bad: float

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(f"burst.{item.name}", getattr(self, item.name), 0.0, 1.0)

    @property
    def bad_share(self) -> float:
        """The share of frames that find the bad state (0 where the state never changes)."""
        moves = self.good_to_bad + self.bad_to_good
        return self.good_to_bad / moves if moves else 0.0

    @property
    def mean_loss(self) -> float:
        """The share of frames that are lost in the long run."""
        return self.loss_good + self.bad_share * (self.loss_bad - self.loss_good)


@dataclass(frozen=True, slots=True)
class Faults:
    """What to do to frames; the defaults do nothing. A wrong value is a ValueError that names it.

    `drop`, `duplicate`, `reorder` and `flip` are probabilities: of a frame to be lost or to arrive
    twice; of each copy to be late by up to `reorder_s`, or to have one bit flipped. `rate_bytes_s`
    sends frames one after the other at that speed, those that get lost too; `mtu` swallows longer
    ones.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 1.0
    flip: float = 0.0
    delay_s: float = 0.0
    burst: Bursts | None = None
    rate_bytes_s: float | None = None
    mtu: int | None = None
    direction: str = "both"  # of DIRECTIONS, as the wrapped end sees it

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "flip"):
            _check(name, getattr(self, name), 0.0, 1.0)
        for name in ("reorder_s", "delay_s"):
            _check(name, getattr(self, name), 0.0, DELAY_MAX_S)
        if self.rate_bytes_s is not None:
            _check("rate_bytes_s", self.rate_bytes_s, 1.0, 1e9)
        if self.mtu is not None:
            _check("mtu", self.mtu, 1, MTU_MAX)
        if self.direction not in DIRECTIONS:
            raise ValueError(f"fault direction={self.direction} must be {', '.join(DIRECTIONS)}")


def _burst(text: str) -> Bursts:
    numbers = [float(part) for part in text.split("/")]
    if len(numbers) != len(fields(Bursts)):
        raise ValueError("a burst has four numbers")
    return Bursts(*numbers)


_NOT_FLOAT: dict[str, Callable[[str], object]] = {"burst": _burst, "mtu": int, "direction": str}
_READERS = {item.name: _NOT_FLOAT.get(item.name, float) for item in fields(Faults)}


def parse_faults(text: str) -> Faults:
    """The faults in `text`, such as `drop=0.2,delay_s=0.5`; none in an empty one. Else ValueError.

    `burst` takes four numbers: good to bad, bad to good, loss in good, loss in bad.
    """
    values: dict[str, object] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or name not in _READERS:
            raise ValueError(f"{entry!r} is no fault: {_FORM}; known are {', '.join(_READERS)}")
        if name in values:
            raise ValueError(f"fault {name} is given twice: give it once")
        values[name] = _read(name, value)
    return Faults(**values)  # type: ignore[arg-type]  # each reader gives its field's type


def _read(name: str, value: str) -> object:
    try:
        return _READERS[name](value)
    except ValueError as error:
        if str(error).startswith("fault"):  # It names the number that is wrong.
            raise
        raise ValueError(f"fault {name}={value} cannot be read: {_FORM}") from error


@dataclass(slots=True)
class FaultCounts:
    """The faults so far, in frames; `late` and `flipped` count copies."""

    offered: int = 0
    too_long: int = 0
    dropped: int = 0
    duplicated: int = 0
    late: int = 0
    flipped: int = 0


class FaultModel:
    """The faults of one direction; it keeps the burst's state and when the rate limit is free."""

    def __init__(self, faults: Faults, rng: np.random.Generator) -> None:
        self.faults = faults
        self.counts = FaultCounts()
        self._rng = rng
        self._bad: bool | None = None  # None before the first frame
        self._free_at = -math.inf

    def apply(self, frame: bytes, now: float) -> list[tuple[float, bytes]]:
        """What arrives of `frame`, sent at `now`: none, one or two of (when, bytes)."""
        faults, counts = self.faults, self.counts
        counts.offered += 1
        if faults.mtu is not None and len(frame) > faults.mtu:
            counts.too_long += 1
            return []
        sent_at = self._sent_at(len(frame), now)
        burst_lost = self._burst_loses()
        if burst_lost or self._happens(faults.drop):
            counts.dropped += 1
            return []
        twice = self._happens(faults.duplicate)
        counts.duplicated += twice
        return [self._copy(frame, sent_at + faults.delay_s) for _ in range(1 + twice)]

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def _sent_at(self, size: int, now: float) -> float:
        if self.faults.rate_bytes_s is None:
            return now
        self._free_at = max(now, self._free_at) + size / self.faults.rate_bytes_s
        return self._free_at

    def _burst_loses(self) -> bool:
        burst = self.faults.burst
        if burst is None:
            return False
        if self._bad is None:  # With the long-run share even short transfers see the mean.
            self._bad = self._happens(burst.bad_share)
        lost = self._happens(burst.loss_bad if self._bad else burst.loss_good)
        self._bad ^= self._happens(burst.bad_to_good if self._bad else burst.good_to_bad)
        return lost

    def _copy(self, frame: bytes, at: float) -> tuple[float, bytes]:
        if self._happens(self.faults.reorder):
            self.counts.late += 1
            at += self._rng.uniform(0.0, self.faults.reorder_s)
        if frame and self._happens(self.faults.flip):
            self.counts.flipped += 1
            frame = _flip_bit(frame, int(self._rng.integers(8 * len(frame))))
        return at, frame


def _flip_bit(frame: bytes, bit: int) -> bytes:
    flipped = bytearray(frame)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@dataclass(frozen=True, slots=True, order=True)
class _Waiting:
    at: float
    order: int  # frames of the same time keep their order
    peer: str = field(compare=False)
    frame: bytes = field(compare=False)
    wire_bytes: int = field(compare=False, default=0)


class _Line:
    """The frames on their way in one direction, the next to arrive first."""

    def __init__(self, model: FaultModel) -> None:
        self.model = model
        self._heap: list[_Waiting] = []
        self._bytes = 0
        self._order = 0

    @property
    def full(self) -> bool:
        return len(self._heap) >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX

    @property
    def next_at(self) -> float:
        return self._heap[0].at if self._heap else math.inf

    def enter(self, peer: str, frame: bytes, now: float, wire_bytes: int = 0) -> None:
        for at, copy in self.model.apply(frame, now):
            self._order += 1
            self.put_back([_Waiting(at, self._order, peer, copy, wire_bytes)])

    def put_back(self, run: list[_Waiting]) -> None:
        for waiting in run:
            heapq.heappush(self._heap, waiting)
            self._bytes += len(waiting.frame)

    def pop_run(self, now: float) -> list[_Waiting]:
        """What is due at `now`, as far as it is for one peer and fits one call."""
        run: list[_Waiting] = []
        while self.next_at <= now and len(run) < _RUN_MAX:
            if run and self._heap[0].peer != run[0].peer:
                break
            run.append(heapq.heappop(self._heap))
            self._bytes -= len(run[-1].frame)
        return run

    def clear(self) -> None:
        self._heap.clear()
        self._bytes = 0


class FaultyTransport:
    """`inner` with `faults`; see `transports.base.Transport`. Use it from one thread.

    `clock` is the driver's, in seconds. Delayed frames move on in `send` and `receive`. Besides the
    faults only frames are lost that come due while `inner` is down (`unsent`), or that arrive while
    too many others are delayed (`overflowed`).
    """

    def __init__(
        self,
        inner: Transport,
        faults: Faults,
        rng: np.random.Generator,
        clock: Callable[[], float],
    ) -> None:
        outward, inward = rng.spawn(2)  # One direction's faults do not depend on the other's.
        none = Faults()
        self.outgoing = FaultModel(none if faults.direction == "receive" else faults, outward)
        self.incoming = FaultModel(none if faults.direction == "send" else faults, inward)
        self.unsent = 0
        self.overflowed = 0
        self._inner = inner
        self._clock = clock
        self._leaving = _Line(self.outgoing)
        self._arriving = _Line(self.incoming)

    @property
    def mtu(self) -> int:
        """The longest frame in bytes: of what is below, or less by a fault."""
        return min(self._inner.mtu, self.outgoing.faults.mtu or self._inner.mtu)

    @property
    def connected(self) -> bool:
        """Whether what is below is up."""
        return self._inner.connected

    def open(self) -> None:
        """Open what is below."""
        self._inner.open()

    def close(self) -> None:
        """Close what is below and lose what is on its way; may be called twice."""
        self._inner.close()
        self._leaving.clear()
        self._arriving.clear()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Put frames on their way; returns the bytes that messages with all of them would hold."""
        if not self.connected:
            raise NotConnected("the transport below the faults is not connected")
        if too_long := [len(frame) for frame in frames if len(frame) > self.mtu]:
            raise FrameTooLarge(f"a frame of {max(too_long)} bytes exceeds the mtu {self.mtu}")
        if self._leaving.full:
            raise Busy("too many delayed frames are on their way: offer these again soon")
        now = self._clock()
        for frame in frames:
            self._leaving.enter(peer, frame, now)
        self._flush()
        return sum(map(len, frames)) + batch.OVERHEAD * len(frames)

    def receive(self, timeout_s: float) -> Arrival | None:
        """The next frames that arrive, or None after `timeout_s`."""
        left_s, deadline = timeout_s, self._clock() + timeout_s
        while (arrival := self._next()) is None:
            wait_s = min(left_s, self._quiet_s())
            took = self._take(wait_s)
            # What was waited is taken off by hand: a simulation's clock may stand still.
            left_s = deadline - self._clock() if took else left_s - wait_s
            if left_s <= 0:
                return self._next()
        return arrival

    def _next(self) -> Arrival | None:
        self._flush()
        run = self._arriving.pop_run(self._clock())
        if not run:
            return None
        frames = tuple(waiting.frame for waiting in run)
        return Arrival(run[0].peer, frames, sum(waiting.wire_bytes for waiting in run))

    def _quiet_s(self) -> float:
        """How long nothing on its way comes due; a while where what is below was busy."""
        due_s = min(self._leaving.next_at, self._arriving.next_at) - self._clock()
        return due_s if due_s > 0 else BUSY_WAIT_S

    def _take(self, wait_s: float) -> bool:
        """Take what arrives below within `wait_s`, and what is there by then; True for any."""
        taken = 0
        while taken < ARRIVALS_MAX:
            arrival = self._inner.receive(0.0 if taken else wait_s)
            if arrival is None:
                break
            taken += 1
            self._enter(arrival, self._clock())
        return taken > 0

    def _enter(self, arrival: Arrival, now: float) -> None:
        overhead = arrival.wire_bytes - sum(map(len, arrival.frames))
        for frame in arrival.frames:
            if self._arriving.full:
                self.overflowed += 1
            else:
                cost = len(frame) + overhead // len(arrival.frames)
                self._arriving.enter(arrival.peer, frame, now, cost)

    def _flush(self) -> None:
        """Hand over what has come due; what a busy transport does not take stays due."""
        now = self._clock()
        while run := self._leaving.pop_run(now):
            try:
                self._inner.send(run[0].peer, [waiting.frame for waiting in run])
            except Busy:
                self._leaving.put_back(run)
                return
            except (NotConnected, FrameTooLarge):  # They are lost, as on a link that went down.
                self.unsent += len(run)
