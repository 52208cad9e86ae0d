"""What the machines of node and host have alike: sealed frames out, events, counted refusals.

A machine owns one `Channel`. It opens and seals frames through it, and hands out what the program
must save before it sends.

A body is sealed only when the transport takes it. Each sealed frame uses a new counter. Counters
are reserved in blocks. A reservation must be on disk before the first counter of the block is used:
after a crash the sender continues with the first counter after the reserved block.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from ternmesh.errors import WireError
from ternmesh.federated.events import (
    REFUSED_SHOWN_MAX,
    CountersReserved,
    Refused,
    SecurityChanged,
    SessionEvent,
)
from ternmesh.security.authenticator import SecurityLayer
from ternmesh.security.sealing import OpenSealing, Sealing
from ternmesh.security.signatures import SIGNED, SIGNED_HEAD
from ternmesh.wire import fragments

Event = TypeVar("Event")

BLOCK = 4096  # counters in one reservation
QUEUE_MAX = 65_536  # bodies
KNOCKING_MAX = 8  # strangers that are named
KNOCKS = ("unknown key", "other host")


class SealedQueue:
    """The outgoing queue of one node or host.

    `counter` is the first counter that was never reserved. A body whose peer is no longer a member
    cannot be sealed: the queue drops and counts the body.
    """

    def __init__(self, counter: int, sealing: Sealing | None = None) -> None:
        self._sealing = sealing or OpenSealing()
        self.dropped = 0  # bodies
        self._next = counter  # the counter of the next frame
        self._limit = counter  # counters below it are reserved on disk
        self._queue: deque[tuple[str, int, bytes]] = deque()  # peer, address, body
        self._has_acted = False  # an event came since the replay windows were written

    def push(self, peer: str, address: int, bodies: Iterable[bytes]) -> None:
        """Queue bodies for a peer. Bodies that do not fit are dropped and counted."""
        for body in bodies:
            if len(self._queue) >= QUEUE_MAX:
                self.dropped += 1
            else:
                self._queue.append((peer, address, body))

    def push_objects(
        self, peer: str, address: int, objects: Iterable[bytes], frame_mtu: int
    ) -> None:
        """Cut objects into fragments for frames of `frame_mtu` bytes, and queue the fragments."""
        for item in objects:
            self.push(peer, address, fragments.split(item, frame_mtu))

    def discard(self, address: int, kind: int | None = None) -> None:
        """Remove the queued bodies for an address, of one kind or of all: newer bodies follow."""
        self._queue = deque(
            item
            for item in self._queue
            if item[1] != address or (kind is not None and _kind_of(item[2]) != kind)
        )

    def holds(self, address: int, kind: int) -> bool:
        return any(item[1] == address and _kind_of(item[2]) == kind for item in self._queue)

    def push_handshakes(self, now: float) -> None:
        """Queue the handshake and key messages that the sealing has to send now."""
        for peer, address, body in self._sealing.due(now):
            self.push(peer, address, [body])

    def next_event(self, events: deque[Event]) -> Event | SecurityChanged | CountersReserved | None:
        """Return the next event; when there are none left, what to save to disk; then None.

        Call this until it returns None, then call `drain`. Replay windows are saved only if a frame
        led to an event or an answer: an attacker gains nothing by repeating a frame that changed
        nothing, and announces and refused frames must not wear out a memory card.
        """
        if events:
            event = events.popleft()
            self._has_acted |= not isinstance(event, Refused)
            return event
        changes = self._sealing.changes() if self._has_acted or self._queue else ()
        self._has_acted = False
        if changes:
            return SecurityChanged(changes)
        limit = self.reserve()
        return None if limit is None else CountersReserved(limit)

    def reserve(self) -> int | None:
        """Reserve counters for all queued bodies.

        Return the new limit, which must be saved to disk; None if enough counters are reserved.
        """
        missing = len(self._queue) - (self._limit - self._next)
        if missing <= 0:
            return None
        self._limit += -(-missing // BLOCK) * BLOCK
        return self._limit

    def drain(self) -> list[tuple[str, list[bytes]]]:
        """Seal queued bodies in order, at most as many as there are reserved counters.

        Return (peer, frames) groups. Only consecutive frames for one peer form a group, so a peer
        can appear more than once.
        """
        groups: list[tuple[str, list[bytes]]] = []
        while self._queue and self._next < self._limit:
            peer, address, body = self._queue.popleft()
            counter = self._next
            self._next += 1
            try:
                frame = self._sealing.seal(peer, address, counter, body)
            except WireError:
                self.dropped += 1
                continue
            if not groups or groups[-1][0] != peer:
                groups.append((peer, []))
            groups[-1][1].append(frame)
        return groups


class Channel(Generic[Event]):
    """The sealed frames and the events of one end. `counter` is the first one never reserved."""

    def __init__(self, *, run: bytes, counter: int, security: SecurityLayer) -> None:
        self.sealing = security.sealing
        self.authenticator = security.authenticator
        self.outgoing = SealedQueue(counter, security.sealing)
        self.refused: Counter[str] = Counter()  # by reason
        self.knocking: dict[str, str] = {}  # peers that are refused as strangers, and why
        self.events: deque[Event | SessionEvent] = deque()  # what the program has to save
        self._in_clear: list[tuple[str, list[bytes]]] = []  # frames without a seal, by peer
        self.sealing.bind(run)

    def next_event(self) -> Event | SessionEvent | None:
        """The next event to save or handle; None if there are no more."""
        return self.outgoing.next_event(self.events)

    def send_in_clear(self, peer: str, frames: Sequence[bytes]) -> None:
        """Send frames without a seal, to a peer that shares no keys with this end."""
        self._in_clear.append((peer, list(frames)))

    def frames_to_send(self) -> list[tuple[str, list[bytes]]]:
        """Frames by peer. Call this after the events are on disk."""
        in_clear, self._in_clear = self._in_clear, []
        return in_clear + self.outgoing.drain()

    def show_refusal(self, peer: str, reason: str) -> None:
        """Count a refused frame, and report it unless too many events wait."""
        self.refused[reason] += 1
        if reason in KNOCKS and (peer in self.knocking or len(self.knocking) < KNOCKING_MAX):
            self.knocking[peer] = reason
        if len(self.events) < REFUSED_SHOWN_MAX:
            self.events.append(Refused(peer, reason))


def _kind_of(body: bytes) -> int:
    """The kind of a body, or of what a signed body carries."""
    return body[SIGNED_HEAD] if body[0] == SIGNED else body[0]
