"""Bodies on their way out: queued, and sealed only when the transport takes them.

Each seal takes a fresh counter. Counters are reserved in blocks, and a reservation must be on disk
before the first counter of its block is used: after a crash the sender goes on behind the block.
"""

from collections import deque
from collections.abc import Iterable

from ternmesh.wire.seal import Header, seal

BLOCK = 4096
QUEUE_MAX = 65_536


class Outgoing:
    """The queue of one endpoint. `counter` is the first counter that was never reserved."""

    def __init__(self, counter: int) -> None:
        self._next = counter
        self._limit = counter
        self._queue: deque[tuple[str, int, bytes]] = deque()
        self.dropped = 0

    def push(self, peer: str, context: int, bodies: Iterable[bytes]) -> None:
        """Queue bodies for a peer; what does not fit in the queue is dropped and counted."""
        for body in bodies:
            if len(self._queue) >= QUEUE_MAX:
                self.dropped += 1
            else:
                self._queue.append((peer, context, body))

    def discard(self, context: int, kind: int | None = None) -> None:
        """Forget what is queued for a context (of a kind): something newer takes its place."""
        self._queue = deque(
            item
            for item in self._queue
            if item[1] != context or (kind is not None and item[2][0] != kind)
        )

    def reserve(self) -> int | None:
        """The limit to put on disk before `drain`, where what is queued needs more counters."""
        missing = len(self._queue) - (self._limit - self._next)
        if missing <= 0:
            return None
        self._limit += -(-missing // BLOCK) * BLOCK
        return self._limit

    def drain(self) -> list[tuple[str, list[bytes]]]:
        """Sealed frames in order, grouped by peer, as many as there are reserved counters."""
        groups: list[tuple[str, list[bytes]]] = []
        while self._queue and self._next < self._limit:
            peer, context, body = self._queue.popleft()
            frame = seal(Header(context, self._next), body)
            self._next += 1
            if not groups or groups[-1][0] != peer:
                groups.append((peer, []))
            groups[-1][1].append(frame)
        return groups
