"""A seeded bad link: drops, bursts, copies, delays and flipped bits.

`FaultModel` is pure: it holds no frame, clock or thread, and simulations use it alone. The same
seed gives the same faults. `FaultyTransport` puts a model for each direction around a transport;
all peers share its bursts, as they would share a radio. A dropped frame counts in what `send`
returns: it was on the air.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from transports import batch
from transports.base import Arrival, Busy, FrameTooLarge, NotConnected, Transport, check_sizes
from transports.driver import BUSY_WAIT_S


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
    direction: str = "both"  # or "send", as the wrapped end sees it


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


class _Line:
    """The frames on their way in one direction, the next to arrive first."""

    def __init__(self, faults: Faults, rng: np.random.Generator) -> None:
        self._model = FaultModel(faults, rng)
        self._order = itertools.count()  # frames of the same time keep their order
        self.heap: list[tuple[float, int, Arrival]] = []

    @property
    def next_at(self) -> float:
        return self.heap[0][0] if self.heap else math.inf

    def enter(self, peer: str, frame: bytes, now: float, wire_bytes: int = 0) -> None:
        for at, copy in self._model.apply(frame, now):
            heapq.heappush(self.heap, (at, next(self._order), Arrival(peer, (copy,), wire_bytes)))


class FaultyTransport:
    """`inner` with `faults`; see `transports.base.Transport`. Use it from one thread.

    `clock` is the driver's, in seconds. Delayed frames move on in `send` and `receive`. Besides the
    faults only frames are lost that come due while `inner` is down.
    """

    def __init__(
        self, inner: Transport, faults: Faults, rng: np.random.Generator, clock: Callable[[], float]
    ) -> None:
        outward, inward = rng.spawn(2)  # One direction's faults do not depend on the other's.
        self._inner = inner
        self._clock = clock
        self._leaving = _Line(faults, outward)
        self._arriving = _Line(Faults() if faults.direction == "send" else faults, inward)

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
        self._leaving.heap.clear()
        self._arriving.heap.clear()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Put frames on their way; returns the bytes that messages with all of them would hold."""
        if not self.connected:
            raise NotConnected("the transport below the faults is not connected")
        check_sizes(frames, self.mtu)
        for frame in frames:
            self._leaving.enter(peer, frame, self._clock())
        self._flush()
        return sum(map(len, frames)) + batch.OVERHEAD * len(frames)

    def receive(self, timeout_s: float) -> Arrival | None:
        left_s, deadline = timeout_s, self._clock() + timeout_s
        while (arrival := self._next()) is None:
            due_s = min(self._leaving.next_at, self._arriving.next_at) - self._clock()
            wait_s = min(left_s, due_s if due_s > 0 else BUSY_WAIT_S)
            took = self._take(wait_s)
            # What was waited is taken off by hand: a simulation's clock may stand still.
            left_s = deadline - self._clock() if took else left_s - wait_s
            if left_s <= 0:
                return self._next()
        return arrival

    def _next(self) -> Arrival | None:
        self._flush()
        is_due = self._arriving.next_at <= self._clock()
        return heapq.heappop(self._arriving.heap)[2] if is_due else None

    def _take(self, wait_s: float) -> bool:
        """Take what arrives below within `wait_s`, and what is there by then; True for any."""
        taken = False
        while (arrival := self._inner.receive(0.0 if taken else wait_s)) is not None:
            taken = True
            overhead = arrival.wire_bytes - sum(map(len, arrival.frames))
            for frame in arrival.frames:
                cost = len(frame) + overhead // len(arrival.frames)
                self._arriving.enter(arrival.peer, frame, self._clock(), cost)
        return taken

    def _flush(self) -> None:
        """Hand over what has come due; what a busy transport does not take stays due."""
        while self._leaving.next_at <= self._clock():
            due = heapq.heappop(self._leaving.heap)
            try:
                self._inner.send(due[2].peer, due[2].frames)
            except Busy:
                heapq.heappush(self._leaving.heap, due)
                return
            except (NotConnected, FrameTooLarge):
                pass  # It is lost, as on a link that went down.
