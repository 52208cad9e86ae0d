"""How one thread ends another one's wait for bytes."""

import contextlib
import os
import threading


class Waker:
    """Ends a wait from another thread; it outlives the ports that are opened one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """What `select` waits for."""
        return self._read_end

    def wake(self) -> None:
        """End a wait, or the next one; from any thread, at any time."""
        with self._lock, contextlib.suppress(BlockingIOError):  # Full: it is awake already.
            if not self._closed:
                os.write(self._write_end, b"!")

    def clear(self) -> None:
        """Forget all calls of `wake`."""
        with contextlib.suppress(BlockingIOError):  # Nobody called.
            os.read(self._read_end, 4096)

    def close(self) -> None:
        """Free both ends; nobody may wait any more."""
        with self._lock:
            self._closed = True
            os.close(self._read_end)
            os.close(self._write_end)
