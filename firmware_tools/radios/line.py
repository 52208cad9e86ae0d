"""Questions to a modem and its answers, one at a time, on an open serial port."""

import time
from collections.abc import Callable
from typing import TypeVar

from firmware_tools.errors import NoAnswer
from transports.serial_lora.port import BOTH_ON, Lines, SerialPort
from transports.serial_lora.send_queue import Waker

M = TypeVar("M")
T = TypeVar("T")

WRITE_TIMEOUT_S = 2.0
ROUND_S = 0.05  # the longest that one read waits


class Line:
    """A port that is open for us alone (other programs that lock ports keep off); PortError."""

    def __init__(self, path: str, baud: int, lines: Lines = BOTH_ON) -> None:
        self.path, self.baud = path, baud
        self._waker = Waker()
        try:
            self._port = SerialPort(path, baud, WRITE_TIMEOUT_S, self._waker, lines)
        except BaseException:
            self._waker.close()
            raise

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._port.close()
        self._waker.close()

    def set_baud(self, baud: int) -> None:
        """Go on at another rate."""
        self.baud = baud
        self._port.set_baud(baud)

    def write(self, data: bytes) -> None:
        """Write all of `data`; PortError."""
        self._port.write(data)

    def ask(
        self,
        command: bytes,
        feed: Callable[[bytes], list[M]],
        answer: Callable[[M], T | None],
        what: str,
        timeout_s: float,
    ) -> T:
        """Write a command; the first answer that is not None. NoAnswer names `what` was asked.

        `feed` finds the messages in what comes; what came before the command is no answer.
        """
        while data := self._port.read(0.0):
            feed(data)
        self._port.write(command)
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            for message in feed(self._port.read(min(ROUND_S, left))):
                if (result := answer(message)) is not None:
                    return result
        raise NoAnswer(f"{self.path}: the modem does not answer {what} at {self.baud} baud")
