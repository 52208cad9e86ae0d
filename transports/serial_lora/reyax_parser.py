"""What a REYAX RYLR modem says, out of a stream of bytes that may hold anything.

    +OK            +ERR=<code>       +READY            +<NAME>=<value>
    +RCV=<address>,<length>,<data>,<rssi>,<snr>

Lines end with CR LF. The data of +RCV may hold commas and line ends: only its length counts.
"""

import re
from dataclasses import dataclass

DATA_MAX = 240
_HEAD = re.compile(rb"\+RCV=(\d{1,5}),(\d{1,3}),")
_TAIL = re.compile(rb",(-?\d{1,4}),(-?\d{1,4})\r\n")
_TAIL_MAX = 14
_LINE = re.compile(rb"\+([A-Z]{2,12})(?:=([^\r\n+]{0,64}))?\r\n")
_PARTIAL = re.compile(rb"\+[A-Z]{0,12}(?:=[^\r\n+]{0,64})?\r?")


@dataclass(frozen=True, slots=True)
class Heard:
    """A +RCV."""

    data: bytes
    rssi_dbm: float
    snr_db: float


@dataclass(frozen=True, slots=True)
class Line:
    """Any other line: +NAME or +NAME=value."""

    name: str
    value: str = ""


class ReyaxParser:
    """Messages in a stream; bytes that belong to none are counted in `skipped`.

    At most one incomplete message is kept, so memory is bounded by the longest +RCV.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Heard | Line]:
        """The messages that `data` completes."""
        self._buffer += data
        return self._parse()

    def flush(self) -> list[Heard | Line]:
        """What is still found when the incomplete message at the front is given up."""
        messages: list[Heard | Line] = []
        while self._buffer:
            self._skip(1)
            messages += self._parse()
        return messages

    def _parse(self) -> list[Heard | Line]:
        messages: list[Heard | Line] = []
        while self._buffer:
            start = self._buffer.find(b"+")
            if start:
                self._skip(len(self._buffer) if start < 0 else start)
                continue
            message, size = self._first()
            if message is not None:
                messages.append(message)
                del self._buffer[:size]
            elif size:
                self._skip(size)
            else:
                break
        return messages

    def _first(self) -> tuple[Heard | Line | None, int]:
        """The message at the front and its size; (None, 1) if there is none, (None, 0) if more
        bytes must tell."""
        buffer = self._buffer
        if head := _HEAD.match(buffer):
            end = head.end() + int(head[2])
            if int(head[2]) > DATA_MAX:
                return None, 1
            if tail := _TAIL.match(buffer, end):
                data = bytes(buffer[head.end() : end])
                return Heard(data, float(tail[1]), float(tail[2])), tail.end()
            short = len(buffer) < end + _TAIL_MAX and b"\n" not in buffer[end:]
            return None, int(not short)
        if line := _LINE.match(buffer):
            name, value = line[1].decode(), (line[2] or b"").decode("latin-1")
            return (Line(name, value), line.end()) if name != "RCV" else (None, 1)
        return None, int(not _PARTIAL.fullmatch(buffer))

    def _skip(self, count: int) -> None:
        dropped = bytes(self._buffer[:count])
        self.skipped += len(dropped.strip(b"\r\n"))
        del self._buffer[:count]
