"""Emulated radio modems with faults of power, line and host, between two steps of their thread."""

import heapq
import queue
import random
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transports.serial_lora.emulator.line import SerialLine
from transports.serial_lora.emulator.modem import EmulatedModem
from transports.serial_lora.emulator.radios import EmulatedRadios

SPLIT_GAP_S, GLUE_S = 0.001, 0.05
SHAPES = ("whole", "split", "glued")


class FaultyLine(SerialLine):
    """`shape` of the output: "whole" messages, "split" into small parts, or several "glued".

    Where host and modem have different rates, both hear other bytes. Output comes `late_s` too
    late.
    """

    def __init__(self, path: Path, modem: EmulatedModem, rng: random.Random) -> None:
        super().__init__(path)
        self.shape = "whole"
        self.late_s = 0.0
        self._modem = modem
        self._rng = rng
        self._held: deque[tuple[float, bytes]] = deque()

    def next_due(self) -> float | None:
        return self._held[0][0] if self._held else None

    def unplug(self) -> None:
        super().unplug()
        self._held.clear()

    def read(self) -> bytes:
        return self._as_heard(super().read())

    def write(self, data: bytes) -> None:
        data, now = self._as_heard(data), time.monotonic() + self.late_s
        last = self._held[-1][0] if self._held else now
        if self.shape == "glued":
            self._held.append((max(last, now // GLUE_S * GLUE_S + GLUE_S), data))
            return
        due = max(last, now)
        while self.shape == "split" and len(data) > 1:
            size = self._rng.randint(1, len(data) - 1)
            self._held.append((due, data[:size]))
            data = data[size:]
            due += SPLIT_GAP_S
        self._held.append((due, data))
        self.release(time.monotonic())

    def release(self, now: float) -> None:
        """Write what is due."""
        due = b""
        while self._held and self._held[0][0] <= now:
            due += self._held.popleft()[1]
        if due:
            super().write(due)

    def _as_heard(self, data: bytes) -> bytes:
        rate = getattr(self._modem, "baud", 0)  # 0: it takes every rate
        if not rate or self._ends is None:
            return data
        code = termios.tcgetattr(self._ends[1])[4]
        names = (name for name in vars(termios) if name[0] == "B" and name[1:].isdecimal())
        baud = next((int(name[1:]) for name in names if getattr(termios, name) == code), 0)
        return data if baud == rate else bytes(b ^ 0x55 | 0x80 for b in data)


class FaultyRadios(EmulatedRadios):
    """See `EmulatedRadios`; each call returns once its fault is there."""

    def __init__(self, modems: list[EmulatedModem], *, seed: int = 0, **options: Any) -> None:
        super().__init__(modems, seed=seed, **options)
        self.lines = [
            FaultyLine(Path(path), modem, random.Random(f"{seed} line {index}"))
            for index, (path, modem) in enumerate(zip(self.paths, modems, strict=True))
        ]
        self._lines = [*self.lines]
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def __enter__(self) -> "FaultyRadios":
        self.start()
        return self

    def unplug(self, index: int) -> None:
        """Remove modem `index`: its path disappears, and its transmission is cut off."""
        self._do(lambda: self._unplug(index))

    def replug(self, index: int) -> None:
        """Put modem `index` on its path, where it is not; it starts anew."""
        self._do(lambda: self._plug(index))

    def garble(self, index: int, data: bytes) -> None:
        """Send `data` to the host between two messages, as a bad line does."""
        self._do(lambda: self._lines[index].write(data))

    def shape(self, index: int, shape: str) -> None:
        """Change how the host gets messages: "whole", "split" or "glued"."""
        assert shape in SHAPES
        self._do(lambda: setattr(self._lines[index], "shape", shape))

    def set_reading(self, index: int, reads: bool) -> None:
        """Let the modem take bytes or none: writes of the host then block once the line is full."""
        self._do(lambda: setattr(self._lines[index], "reads", reads))

    def fail_next(self, index: int, *codes: int) -> None:
        """Let the next sends of the modem fail with these error codes."""
        self._do(lambda: self.modems[index].fail_next.extend(codes))

    def _step(self) -> None:
        while not self._tasks.empty():
            self._tasks.get()()
        for line in self.lines:
            line.release(time.monotonic())
        super()._step()

    def _wait_s(self) -> float:
        due = [at for line in self.lines if (at := line.next_due()) is not None]
        wait_s = super()._wait_s()
        return min(wait_s, max(0.0, min(due) - time.monotonic())) if due else wait_s

    def _unplug(self, index: int) -> None:
        channel = self._channel
        channel._under_way = [each for each in channel._under_way if each.sender != index]
        heapq.heapify(channel._under_way)
        self._pauses.pop(index, None)
        self._lines[index].unplug()

    def _do(self, task: Callable[[], object]) -> None:
        """Run `task` in the thread and wait for its end; nothing happens after `close`."""
        done = threading.Event()

        def wrapped() -> None:
            task()
            done.set()

        self._tasks.put(wrapped)
        self._waker.wake()
        while not done.wait(0.1) and self._thread.is_alive():
            continue
