"""The serial line of one emulated modem: a pseudo-terminal with faults behind a constant path.

One thread makes all calls. `now` is in seconds of the wall clock.
"""

import contextlib
import os
import pty
import random
import termios
import tty
from collections import deque
from pathlib import Path

READ_MAX = 4096
WAITING_MAX = 65_536  # bytes that wait for the host; more are lost, as on a real line
SPLIT_GAP_S = 0.001
GLUE_S = 0.05
SHAPES = ("whole", "split", "glued")


class SerialLine:
    """`shape` of the output: "whole" messages, "split" into small parts, or several "glued"."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.shape = "whole"
        self.reads = True  # False: the modem takes no bytes, and soon neither does the terminal
        self.stuck = False  # output waits for the host to read
        self.dropped = 0  # bytes that did not fit
        self._rng = rng
        self._ends: tuple[int, int] | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._waiting_bytes = 0

    @property
    def plugged(self) -> bool:
        """Whether the path leads to a terminal."""
        return self._ends is not None

    @property
    def baud(self) -> int:
        """The rate that the host has set."""
        assert self._ends is not None
        code = termios.tcgetattr(self._ends[1])[4]
        names = (name for name in vars(termios) if name[0] == "B" and name[1:].isdecimal())
        return next((int(name[1:]) for name in names if getattr(termios, name) == code), 0)

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
        self._waiting_bytes = 0
        self.stuck = False

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):  # A wake without bytes.
            return os.read(self.fileno(), READ_MAX)
        return b""

    def write(self, data: bytes, now: float) -> None:
        """Queue one message for the host, in the shape of the line."""
        if self._waiting_bytes + len(data) > WAITING_MAX or not self.plugged:
            self.dropped += len(data)
            return
        self._waiting_bytes += len(data)
        last = self._waiting[-1][0] if self._waiting else now
        if self.shape == "glued":
            self._waiting.append((max(last, now // GLUE_S * GLUE_S + GLUE_S), data))
            return
        due = max(last, now)
        while self.shape == "split" and len(data) > 1:
            size = self._rng.randint(1, len(data) - 1)
            self._waiting.append((due, data[:size]))
            data = data[size:]
            due += SPLIT_GAP_S
        self._waiting.append((due, data))

    def next_due(self) -> float | None:
        """When `flush` must be called; None while nothing waits, or the host must read first."""
        return self._waiting[0][0] if self._waiting and not self.stuck else None

    def flush(self, now: float) -> None:
        due = bytearray()
        while self._waiting and self._waiting[0][0] <= now:
            due += self._waiting.popleft()[1]
        if not due:
            return
        self._waiting_bytes -= len(due)
        written = 0
        with contextlib.suppress(BlockingIOError):  # The terminal is full.
            written = os.write(self.fileno(), due)
        unwritten = bytes(due[written:])
        self.stuck = bool(unwritten)
        if unwritten:
            self._waiting.appendleft((now, unwritten))
            self._waiting_bytes += len(unwritten)
