"""A seeded bad link around any transport, for demos, simulations and trying a fleet out.

One model of faults for each direction: all peers share its bursts and its rate, as they would
share a radio. A frame that is dropped still counts in what `send` returns: it was on the air.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from transports import batch
from transports.base import Arrival, Busy, FrameTooLarge, NotConnected, Transport
from transports.driver import ARRIVALS_MAX, BUSY_WAIT_S
from transports.faults import FaultModel, Faults

WAITING_MAX = 4096  # frames on their way in one direction
WAITING_BYTES_MAX = 8 << 20
_RUN_MAX = 64  # frames handed over in one call, so that they fit the queue of what is below


@dataclass(frozen=True, slots=True, order=True)
class _Waiting:
    at: float
    order: int  # those of one moment keep their order
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
