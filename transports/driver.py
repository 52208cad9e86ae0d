"""The one loop that joins a sans-I/O endpoint with a transport.

Events are handled and committed to disk before any frame that follows from them is sent. Where the
transport retransmits by itself, its delivery reports go to the endpoint.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from ternmesh.deliveries import Delivery
from transports.base import (
    Busy,
    FrameTooLarge,
    NotConnected,
    ReportingTransport,
    Spare,
    SpareTransport,
    Transport,
)

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)

# Frames after which a poll takes no further arrival: a flood must not starve timers, sending and
# the control socket, which is answered between two polls.
FRAMES_MAX = 4096
PEERS_MAX = 1024  # whose traffic is counted apart; a bearer can bring any number of names
OTHERS = "(others)"  # the traffic of all further peers
BUSY_WAIT_S = 0.02  # how soon frames are offered again that the bearer was too busy for

_log = logging.getLogger(__name__)


class Endpoint(Protocol[Event_co]):
    """A protocol without I/O; `now` and timeouts are seconds of the driver's clock."""

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames that arrived from `peer`; they may be anything."""

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called, or None."""

    def handle_timeout(self, now: float) -> None:
        """Do what is due at `now`."""

    def next_event(self) -> Event_co | None:
        """The next thing that the program must know, or None."""

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:
        """Frames for each peer that should leave now; they are handed out once."""


@runtime_checkable
class DeliveryHandler(Protocol):
    """An endpoint that repeats messages: it holds its timers while the transport does so."""

    def handle_delivery(self, delivery: Delivery, now: float) -> None:
        """Take a report of a transport that retransmits."""


@dataclass(slots=True)
class PeerTraffic:
    """What moved between this end and one peer; bytes are those on the bearer."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Driver(Generic[Event]):
    """Drives `endpoint` over `transport`; call `poll` in a loop, always from the same thread."""

    def __init__(
        self, endpoint: Endpoint[Event], transport: Transport, clock: Callable[[], float]
    ) -> None:
        self.endpoint = endpoint
        self.transport = transport
        self._handler = endpoint if isinstance(endpoint, DeliveryHandler) else None
        self._reporting = transport if isinstance(transport, ReportingTransport) else None
        self.clock = clock
        self.traffic: dict[str, PeerTraffic] = {}
        self.frames_unsent = 0  # the bearer did not take them: too large, or not connected
        # Messages that a busy bearer did not take.
        self._held: deque[tuple[str, list[bytes]]] = deque()
        self._fired: float | None = None  # the timeout that was handled last

    def poll(
        self, wait_s: float, handle_event: Callable[[Event], None], commit: Callable[[], None]
    ) -> bool:
        """Wait at most `wait_s` for an arrival or a timeout, then settle; True if it did anything.

        Settling hands every event to `handle_event`, calls `commit` once if there was one, and only
        then sends. It also comes before the wait, for what the program asked since the last poll.
        """
        moved = self._settle(handle_event, commit)
        received = self._receive(0.0 if moved else self._wait_s(wait_s))
        self._report_deliveries()
        timed = self._handle_timeout()
        return self._settle(handle_event, commit) or received or timed or moved

    def spare(self) -> Spare | None:
        """What the bearer has to spare for frames that can wait; None while others wait."""
        if self._held or not self.transport.connected:
            return None
        if isinstance(self.transport, SpareTransport):
            return self.transport.spare()
        return Spare(self.transport.mtu)

    def _wait_s(self, wait_s: float) -> float:
        if self._held:
            wait_s = min(wait_s, BUSY_WAIT_S)
        due = self.endpoint.next_timeout()
        if due is None:
            return wait_s
        # An endpoint that stays due, say while the bearer is down, must not make the loop spin.
        floor_s = BUSY_WAIT_S if due == self._fired else 0.0
        return min(wait_s, max(floor_s, due - self.clock()))

    def _receive(self, wait_s: float) -> bool:
        taken = 0
        arrival = self.transport.receive(wait_s)
        while arrival is not None:
            traffic = self._traffic(arrival.peer)
            traffic.frames_in += len(arrival.frames)
            traffic.bytes_in += arrival.wire_bytes
            self.endpoint.receive_frames(arrival.peer, arrival.frames, self.clock())
            taken += len(arrival.frames)
            arrival = self.transport.receive(0.0) if taken < FRAMES_MAX else None
        return taken > 0

    def _handle_timeout(self) -> bool:
        due, now = self.endpoint.next_timeout(), self.clock()
        if due is None or due > now:
            return False
        self._fired = due
        self.endpoint.handle_timeout(now)
        return True

    def _settle(self, handle_event: Callable[[Event], None], commit: Callable[[], None]) -> bool:
        happened = False
        while (event := self.endpoint.next_event()) is not None:
            handle_event(event)
            happened = True
        if happened:
            commit()
        return self._send() or happened

    def _send(self) -> bool:
        """Send what the endpoint has; what a busy bearer did not take is held for the next poll."""
        if not self.transport.connected:
            self._drop_held()  # The endpoint sends it again: nothing may pile up while offline.
            return False
        if not self._held:
            self._held.extend(self.endpoint.frames_to_send(self.clock()))
        sent = False
        while self._held:
            try:
                self._send_to(*self._held[0])
            except Busy:
                break
            except NotConnected:
                self._drop_held()
                break
            self._held.popleft()
            sent = True
        self._report_deliveries()
        return sent

    def _report_deliveries(self) -> None:
        if self._reporting is None:
            return
        for delivery in self._reporting.deliveries():
            if self._handler is not None:
                self._handler.handle_delivery(delivery, self.clock())

    def _send_to(self, peer: str, frames: Sequence[bytes]) -> None:
        mtu = self.transport.mtu
        fitting = [frame for frame in frames if len(frame) <= mtu]
        try:
            wire_bytes = self.transport.send(peer, fitting) if fitting else 0
        except FrameTooLarge:  # The mtu shrank meanwhile: a broker's limit may.
            fitting, wire_bytes = [], 0
        if refused := len(frames) - len(fitting):
            self.frames_unsent += refused
            _log.warning("%d frames for %s exceed the mtu of %d bytes", refused, peer, mtu)
        traffic = self._traffic(peer)
        traffic.frames_out += len(fitting)
        traffic.bytes_out += wire_bytes

    def _drop_held(self) -> None:
        if self._held:
            self.frames_unsent += sum(len(frames) for _, frames in self._held)
            _log.info("not connected: %d frames stay unsent", self.frames_unsent)
            self._held.clear()

    def _traffic(self, peer: str) -> PeerTraffic:
        if peer not in self.traffic and len(self.traffic) >= PEERS_MAX:
            peer = OTHERS
        return self.traffic.setdefault(peer, PeerTraffic())
