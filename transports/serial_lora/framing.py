"""Frames in a serial stream: KISS, and COBS with a CRC (SPEC.md section 7.3).

KISS: Chepponis and Karn, 1987. COBS, consistent overhead byte stuffing: Cheshire and Baker, 1999.
In both, one byte value delimits the frames and never occurs within one.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from ternmesh.errors import WireError

T = TypeVar("T")

_FEND, _FESC = b"\xc0", b"\xdb"
_ESCAPED_FEND, _ESCAPED_FESC = b"\xdb\xdc", b"\xdb\xdd"
_CRC_BYTES = 4


def kiss_frame(command: int, data: bytes = b"") -> bytes:
    """One KISS command with its data, ready to write."""
    content = bytes([command]) + data
    content = content.replace(_FESC, _ESCAPED_FESC).replace(_FEND, _ESCAPED_FEND)
    return _FEND + content + _FEND


def cobs_encode(data: bytes) -> bytes:
    """`data` without zero bytes: one byte longer, and one more per 254 bytes without a zero."""
    encoded = bytearray()
    for block in data.split(b"\0"):
        while len(block) >= 254:
            encoded += b"\xff" + block[:254]
            block = block[254:]
        encoded += bytes([len(block) + 1]) + block
    return bytes(encoded)


def cobs_decode(encoded: bytes) -> bytes:
    """The data in COBS bytes, with or without an empty block after a last full one; ValueError."""
    data = bytearray()
    at = 0
    while at < len(encoded):
        code = encoded[at]
        block = encoded[at + 1 : at + code]
        if code == 0 or len(block) < code - 1 or 0 in block:
            raise ValueError("these bytes are not COBS")
        data += block
        at += code
        if code < 255 and at < len(encoded):
            data.append(0)
    return bytes(data)


def cobs_frame(payload: bytes) -> bytes:
    """`payload` as it goes through a stream: zero, COBS of payload and CRC-32, zero."""
    crc = zlib.crc32(payload).to_bytes(_CRC_BYTES, "little")
    return b"\0" + cobs_encode(payload + crc) + b"\0"


class Unframer(ABC, Generic[T]):
    """Finds the frames in a stream; `malformed` counts damaged ones, and noise without an end."""

    delimiter: bytes
    bytes_max: int  # between two delimiters; more is noise
    idle_bytes_max = 0  # so few bytes between two delimiters are no frame, but no damage either

    def __init__(self) -> None:
        self.malformed = 0
        self._part = bytearray()
        self._overlong = False

    def feed(self, data: bytes) -> list[T]:
        """The frames that end in `data`."""
        *ends, begun = data.split(self.delimiter)
        frames: list[T] = []
        for end in ends:
            self._add(end)
            frames += self._finish()
        self._add(begun)
        return frames

    def flush(self) -> list[T]:
        """Nothing: the next delimiter ends an incomplete frame."""
        return []

    @abstractmethod
    def _decode(self, part: bytes) -> T | None:
        """The frame between two delimiters, None where it is damaged."""

    def _add(self, part: bytes) -> None:
        self._part += part
        if len(self._part) > self.bytes_max:
            whole = (len(self._part) - 1) // self.bytes_max
            self._overlong = True
            self.malformed += whole  # noise may have no end
            del self._part[: whole * self.bytes_max]

    def _finish(self) -> list[T]:
        part = bytes(self._part)
        overlong = self._overlong
        self._part.clear()
        self._overlong = False
        if len(part) <= self.idle_bytes_max or overlong:
            return []
        frame = self._decode(part)
        if frame is None:
            self.malformed += 1
            return []
        return [frame]


class KissUnframer(Unframer[tuple[int, bytes]]):
    """Finds KISS commands, each with its data."""

    delimiter = _FEND
    bytes_max = 600

    def _decode(self, part: bytes) -> tuple[int, bytes] | None:
        escapes = part.count(_ESCAPED_FEND) + part.count(_ESCAPED_FESC)
        content = part.replace(_ESCAPED_FEND, _FEND).replace(_ESCAPED_FESC, _FESC)
        if not content or part.count(_FESC) != escapes:
            return None
        return content[0], content[1:]


class CobsUnframer(Unframer[bytes]):
    """Finds the payloads of COBS frames."""

    delimiter = b"\0"
    bytes_max = 512
    idle_bytes_max = 1  # Some modems add one byte of RSSI to each frame.

    def _decode(self, part: bytes) -> bytes | None:
        try:
            content = cobs_decode(part)
        except ValueError:
            return None
        payload, crc = content[:-_CRC_BYTES], content[-_CRC_BYTES:]
        sound = zlib.crc32(payload).to_bytes(_CRC_BYTES, "little") == crc
        return payload if payload and sound else None


@dataclass
class LengthUnframer(Generic[T]):
    """Finds frames of a magic, the length in two bytes and a content, and skips what is between.

    `decode` may raise WireError: then these bytes were no frame, and one may begin inside.
    """

    magic: bytes
    order: Literal["little", "big"]
    size_max: int
    decode: Callable[[bytes], T]
    malformed: int = 0
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[T]:
        """The contents of the frames that `data` completes."""
        self._buffer += data
        buffer, head = self._buffer, len(self.magic) + 2
        contents: list[T] = []
        while (start := buffer.find(self.magic)) >= 0:
            del buffer[:start]
            size = int.from_bytes(buffer[head - 2 : head], self.order)
            if len(buffer) < head or len(buffer) < head + size <= head + self.size_max:
                return contents
            try:
                if not 0 < size <= self.size_max:
                    raise WireError("size", "the frame is empty or too long")
                contents.append(self.decode(bytes(buffer[head : head + size])))
                del buffer[: head + size]
            except WireError:
                self.malformed += 1
                del buffer[:1]
        begun = len(self.magic) > 1 and buffer.endswith(self.magic[:1])
        del buffer[: len(buffer) - begun]
        return contents

    def flush(self) -> list[T]:
        """What follows where the frame that is incomplete was none."""
        contents = []
        while self._buffer:
            del self._buffer[:1]
            contents += self.feed(b"")
        return contents
