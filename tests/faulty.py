"""A seeded bad link: drops, bursts, copies, delays and flipped bits.

`FaultModel` is pure: it holds no frame, clock or thread, and simulations use it alone. The same
seed gives the same faults. `FaultyTransport` puts a model for each direction around a transport;
all peers share its bursts, as they would share a radio. A dropped frame counts in what `send`
returns: it was on the air.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from transports import batch
from transports.base import Arrival, Busy, FrameTooLarge, NotConnected, Transport, check_sizes
from transports.driver import BUSY_WAIT_S

ARRIVALS_MAX = 256  # taken from below in one call
WAITING_MAX = 4096  # frames on their way in one direction
WAITING_BYTES_MAX = 8 << 20
_RUN_MAX = 64  # frames passed on in one call, so that they fit the queue of the transport below


@dataclass(frozen=True, slots=True)
class Bursts:
    """Gilbert-Elliott losses: a state, good or bad, with its own loss, that may change each frame.

    All four are probabilities; a frame is lost by the state it finds, then the state moves.
    """

    good_to_bad: float
    bad_to_good: float
    loss_good: float
    loss_bad: float

    @property
    def bad_share(self) -> float:
        """The share of frames that find the bad state (0 where the state never changes)."""
        moves = self.good_to_bad + self.bad_to_good
        return self.good_to_bad / moves if moves else 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """What to do to frames; the defaults do nothing.

    `drop`, `duplicate`, `reorder` and `flip` are probabilities: of a frame to be lost or to arrive
    twice; of each copy to be late by up to `reorder_s`, or to have one bit flipped.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 1.0
    flip: float = 0.0
    delay_s: float = 0.0
    burst: Bursts | None = None
    direction: str = "both"  # or "send" or "receive", as the wrapped end sees it


class FaultModel:
    """The faults of one direction; it keeps the burst's state."""

    def __init__(self, faults: Faults, rng: np.random.Generator) -> None:
        self.faults = faults
        self._rng = rng
        self._bad: bool | None = None  # None before the first frame

    def apply(self, frame: bytes, now: float) -> list[tuple[float, bytes]]:
        """What arrives of `frame`, sent at `now`: none, one or two of (when, bytes)."""
        burst_lost = self._burst_loses()
        if burst_lost or self._happens(self.faults.drop):
            return []
        twice = self._happens(self.faults.duplicate)
        return [self._copy(frame, now + self.faults.delay_s) for _ in range(1 + twice)]

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

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
            at += self._rng.uniform(0.0, self.faults.reorder_s)
        if frame and self._happens(self.faults.flip):
            bit = int(self._rng.integers(8 * len(frame)))
            frame = (int.from_bytes(frame, "little") ^ 1 << bit).to_bytes(len(frame), "little")
        return at, frame


@dataclass(frozen=True, slots=True, order=True)
class _Waiting:
    at: float
    order: int  # frames of the same time keep their order
    peer: str = field(compare=False)
    frame: bytes = field(compare=False)
    wire_bytes: int = field(compare=False, default=0)


class _Line:
    """The frames on their way in one direction, the next to arrive first."""

    def __init__(self, faults: Faults, rng: np.random.Generator) -> None:
        self._model = FaultModel(faults, rng)
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
        for at, copy in self._model.apply(frame, now):
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
        self, inner: Transport, faults: Faults, rng: np.random.Generator, clock: Callable[[], float]
    ) -> None:
        outward, inward = rng.spawn(2)  # One direction's faults do not depend on the other's.
        none = Faults()
        self.unsent = 0
        self.overflowed = 0
        self._inner = inner
        self._clock = clock
        self._leaving = _Line(none if faults.direction == "receive" else faults, outward)
        self._arriving = _Line(none if faults.direction == "send" else faults, inward)

    @property
    def mtu(self) -> int:
        return self._inner.mtu

    @property
    def connected(self) -> bool:
        return self._inner.connected

    def open(self) -> None:
        self._inner.open()

    def close(self) -> None:
        """Close what is below and lose what is on its way."""
        self._inner.close()
        self._leaving.clear()
        self._arriving.clear()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Put frames on their way; returns the bytes that messages with all of them would hold."""
        if not self.connected:
            raise NotConnected("the transport below the faults is not connected")
        check_sizes(frames, self.mtu)
        if self._leaving.full:
            raise Busy("too many delayed frames are on their way: offer these again soon")
        now = self._clock()
        for frame in frames:
            self._leaving.enter(peer, frame, now)
        self._flush()
        return sum(map(len, frames)) + batch.OVERHEAD * len(frames)

    def receive(self, timeout_s: float) -> Arrival | None:
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
