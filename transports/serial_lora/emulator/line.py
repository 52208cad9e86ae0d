"""The serial line of one emulated modem: a pseudo-terminal behind a constant path.

One thread makes all calls.
"""

import contextlib
import os
import pty
import tty
from pathlib import Path

READ_MAX = 4096
WAITING_MAX = 65_536  # bytes that wait for the host; more are lost, as on a real line


class SerialLine:
    """The modem's end of the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = True  # False: the modem takes no bytes, and soon neither does the terminal
        self._ends: tuple[int, int] | None = None
        self._waiting = bytearray()  # the host must read first

    @property
    def plugged(self) -> bool:
        """Whether the path leads to a terminal."""
        return self._ends is not None

    @property
    def stuck(self) -> bool:
        """Whether output waits for the host to read."""
        return bool(self._waiting)

    def fileno(self) -> int:
        """Our end of the pseudo-terminal."""
        assert self._ends is not None
        return self._ends[0]

    def plug(self) -> None:
        """Make a new terminal behind the path."""
        # The far end stays open here as well, or reading would fail while no host has it open.
        ours, theirs = pty.openpty()
        tty.setraw(theirs)
        os.set_blocking(ours, False)
        self._ends = (ours, theirs)
        fresh = self.path.with_name(f".{self.path.name}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.ttyname(theirs))
        fresh.replace(self.path)

    def unplug(self) -> None:
        """Remove the device: a program that has it open gets an error."""
        if self._ends is None:
            return
        self.path.unlink(missing_ok=True)
        for end in self._ends:
            os.close(end)
        self._ends = None
        self._waiting.clear()

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):  # A wake without bytes.
            return os.read(self.fileno(), READ_MAX)
        return b""

    def write(self, data: bytes) -> None:
        if self.plugged and len(self._waiting) + len(data) <= WAITING_MAX:
            self._waiting += data
            self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the terminal takes it."""
        with contextlib.suppress(BlockingIOError):  # The terminal is full.
            while self._waiting:
                del self._waiting[: os.write(self.fileno(), self._waiting)]
