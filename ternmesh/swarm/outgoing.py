"""Bodies on their way out: queued, and sealed only when the transport takes them.

Each seal takes a fresh counter. Counters are reserved in blocks, and a reservation must be on disk
before the first counter of its block is used: after a crash the sender goes on behind the block.
"""

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from ternmesh.errors import WireError
from ternmesh.swarm.events import CountersReserved, Refused, TrustChanged
from ternmesh.trust.sealing import OpenSealing, Sealing
from ternmesh.wire import pieces
from ternmesh.wire.frame import Frame

Event = TypeVar("Event")

BLOCK = 4096
QUEUE_MAX = 65_536


class Outgoing:
    """The queue of one endpoint. `counter` is the first counter that was never reserved.

    What cannot be sealed, because its peer is no member any more, is dropped and counted.
    """

    def __init__(self, counter: int, sealing: Sealing | None = None) -> None:
        self._sealing = sealing or OpenSealing()
        self._next = counter
        self._limit = counter
        self._queue: deque[tuple[str, int, bytes]] = deque()
        self.dropped = 0
        self._has_acted = False

    def push(self, peer: str, context: int, bodies: Iterable[bytes]) -> None:
        """Queue bodies for a peer; what does not fit in the queue is dropped and counted."""
        for body in bodies:
            if len(self._queue) >= QUEUE_MAX:
                self.dropped += 1
            else:
                self._queue.append((peer, context, body))

    def cut(self, peer: str, context: int, objects: Iterable[bytes], frame_mtu: int) -> None:
        """Queue objects in pieces that fit frames of so many bytes."""
        for item in objects:
            self.push(peer, context, pieces.cut(item, frame_mtu))

    def discard(self, context: int, kind: int | None = None) -> None:
        """Forget what is queued for a context (of a kind): something newer takes its place."""
        self._queue = deque(
            item
            for item in self._queue
            if item[1] != context or (kind is not None and item[2][0] != kind)
        )

    def holds(self, context: int, kind: int) -> bool:
        """Whether a body of a kind is queued for a context."""
        return any(item[1] == context and item[2][0] == kind for item in self._queue)

    def ask(self, now: float) -> None:
        """Queue what the seals themselves have to say to peers."""
        for peer, context, body in self._sealing.due(now):
            self.push(peer, context, [body])

    def next_event(self, events: deque[Event]) -> Event | TrustChanged | CountersReserved | None:
        """The next of `events`, then what must be on disk before `drain`, until None.

        Windows that moved are kept only with what came of a frame: nobody repeats with gain what
        has changed nothing, and neither announces nor frames that are refused must wear a card.
        """
        if events:
            event = events.popleft()
            self._has_acted |= not isinstance(event, Refused)
            return event
        changes = self._sealing.changes() if self._has_acted or self._queue else ()
        self._has_acted = False
        if changes:
            return TrustChanged(changes)
        limit = self.reserve()
        return None if limit is None else CountersReserved(limit)

    def reserve(self) -> int | None:
        """The limit to put on disk where what is queued needs more counters."""
        missing = len(self._queue) - (self._limit - self._next)
        if missing <= 0:
            return None
        self._limit += -(-missing // BLOCK) * BLOCK
        return self._limit

    def drain(self) -> list[tuple[str, list[bytes]]]:
        """Sealed frames in order, grouped by peer, as many as there are reserved counters.

        Each is a `Frame`: a link knows what it says when it is offered again under another seal.
        """
        groups: list[tuple[str, list[bytes]]] = []
        while self._queue and self._next < self._limit:
            peer, context, body = self._queue.popleft()
            counter, self._next = self._next, self._next + 1
            try:
                frame = Frame(self._sealing.seal(peer, context, counter, body), body)
            except WireError:
                self.dropped += 1
                continue
            if not groups or groups[-1][0] != peer:
                groups.append((peer, []))
            groups[-1][1].append(frame)
        return groups
