"""From the threads of callers to the thread of the link: frames that wait, and a way to wake it."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from transports.base import Busy


@dataclass(slots=True)
class QueuedFrame:
    """One frame on its way."""

    to: int
    frame: bytes
    tries: int = 0


class SendQueue:
    """First in, first out; what a refusal puts back goes to the front."""

    def __init__(self, queue_max: int) -> None:
        self._queue_max = queue_max
        self._waiting: deque[QueuedFrame] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, items: Sequence[QueuedFrame]) -> None:
        """Take all of them, or Busy; an empty queue takes more than `queue_max`."""
        with self._lock:
            if self._waiting and len(self._waiting) + len(items) > self._queue_max:
                raise Busy(f"{len(self._waiting)} frames wait for the modem: try again soon")
            self._waiting.extend(items)

    def put_back(self, item: QueuedFrame) -> None:
        with self._lock:
            self._waiting.appendleft(item)

    def first(self) -> QueuedFrame | None:
        """The next one; it stays in the queue."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def take(self) -> QueuedFrame:
        with self._lock:
            return self._waiting.popleft()

    def clear(self) -> int:
        """Remove all; returns how many frames that were."""
        with self._lock:
            count = len(self._waiting)
            self._waiting.clear()
            return count


class Waker:
    """Ends a wait of another thread; one waker serves all ports that are opened in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read_end

    def wake(self) -> None:
        """End a wait, or the next one; from any thread, at any time."""
        with self._lock, contextlib.suppress(BlockingIOError):  # Full: it is awake already.
            if not self._closed:
                os.write(self._write_end, b"!")

    def clear(self) -> None:
        """Discard all calls of `wake`."""
        with contextlib.suppress(BlockingIOError):  # There was no call.
            os.read(self._read_end, 4096)

    def close(self) -> None:
        """Free both ends; no thread may wait any more."""
        with self._lock:
            self._closed = True
            os.close(self._read_end)
            os.close(self._write_end)
