"""Questions to a modem and its answers, one at a time, on an open serial port."""

import time
from collections.abc import Callable
from typing import TypeVar

from firmware_tools.errors import NoAnswer
from transports.serial_lora.dialect import StreamReader
from transports.serial_lora.port import SerialPort
from transports.serial_lora.send_queue import Waker

M = TypeVar("M")
T = TypeVar("T")

WRITE_TIMEOUT_S = 2.0
ROUND_S = 0.05  # the longest that one read waits


class Line:
    """A port that no other program can open meanwhile; PortError where that fails."""

    def __init__(self, path: str, baud: int) -> None:
        self.path, self.baud = path, baud
        self._waker = Waker()
        try:
            self._port = SerialPort(path, baud, WRITE_TIMEOUT_S, self._waker)
        except BaseException:
            self._waker.close()
            raise

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._port.close()
        self._waker.close()

    def write(self, data: bytes) -> None:
        """Write all of `data`; PortError."""
        self._port.write(data)

    def read(self, timeout_s: float) -> bytes:
        """What came, empty after `timeout_s`; PortError."""
        return self._port.read(timeout_s)

    def messages(self, reader: StreamReader[M], seconds: float) -> list[M]:
        """All messages that come in so many seconds; PortError."""
        found: list[M] = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            found += reader.feed(self._port.read(min(ROUND_S, left)))
        return found

    def ask(
        self,
        command: bytes,
        reader: StreamReader[M],
        answer: Callable[[M], T | None],
        what: str,
        timeout_s: float = 2.0,
    ) -> T:
        """Write a command; the first answer that is not None. NoAnswer names `what` was asked."""
        self._port.write(command)
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            for message in reader.feed(self._port.read(min(ROUND_S, left))):
                if (found := answer(message)) is not None:
                    return found
        raise NoAnswer(f"{self.path}: the modem does not answer {what}: check wiring and baud rate")
