"""Frames that wait for the modem: bounded, filled by callers, emptied by the link's thread."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from transports.base import Busy


@dataclass(slots=True)
class Outgoing:
    """One frame on its way; a payload without frame belongs to the coding."""

    to: int
    frame: bytes
    payload: bytes | None = None  # set: it is sent as it is
    tries: int = 0


class SendQueue:
    """First in, first out; what the coding or a refusal puts back goes to the front."""

    def __init__(self, queue_max: int) -> None:
        self._queue_max = queue_max
        self._waiting: deque[Outgoing] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, items: Sequence[Outgoing]) -> None:
        """Take all of them, or Busy; more than the queue holds are taken if nothing waits."""
        with self._lock:
            if self._waiting and len(self._waiting) + len(items) > self._queue_max:
                raise Busy(f"{len(self._waiting)} frames wait for the modem: try again soon")
            self._waiting.extend(items)

    def put_back(self, items: Sequence[Outgoing]) -> None:
        """To the front, in this order."""
        with self._lock:
            self._waiting.extendleft(reversed(items))

    def first(self) -> Outgoing | None:
        """The next one; it stays in the queue."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def take(self) -> Outgoing:
        """Remove the next one."""
        with self._lock:
            return self._waiting.popleft()

    def clear(self) -> int:
        """Forget all; returns how many frames that were."""
        with self._lock:
            count = sum(item.payload is None for item in self._waiting)
            self._waiting.clear()
            return count
