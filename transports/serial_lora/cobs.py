"""Frames in a stream of bytes: consistent overhead byte stuffing and a CRC (SPEC.md section 7.3).

COBS: Cheshire and Baker, 1999. An encoded frame has no zero byte, so zeros mark its two ends.
"""

import zlib

ENCODED_MAX = 512  # bytes between two zeros; more is noise
_CRC_BYTES = 4


def encode(data: bytes) -> bytes:
    """`data` without zero bytes: one byte longer, and one more per 254 bytes without a zero."""
    encoded = bytearray()
    for block in data.split(b"\0"):
        while len(block) >= 254:
            encoded += b"\xff" + block[:254]
            block = block[254:]
        encoded += bytes([len(block) + 1]) + block
    return bytes(encoded)


def decode(encoded: bytes) -> bytes:
    """What `encode` was given; ValueError where no encoder wrote this."""
    data = bytearray()
    at = 0
    while at < len(encoded):
        code = encoded[at]
        block = encoded[at + 1 : at + code]
        if code == 0 or len(block) < code - 1 or 0 in block:
            raise ValueError("these bytes are no COBS")
        data += block
        at += code
        if code < 255 and at < len(encoded):
            data.append(0)
    return bytes(data)


def frame(payload: bytes) -> bytes:
    """`payload` as it goes through a stream: zero, COBS of payload and CRC-32, zero."""
    crc = zlib.crc32(payload).to_bytes(_CRC_BYTES, "little")
    return b"\0" + encode(payload + crc) + b"\0"


class Unframer:
    """Finds the frames in a stream; what does not check out is counted and skipped."""

    def __init__(self) -> None:
        self.malformed = 0
        self._part = bytearray()
        self._overlong = False

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that end in `data`."""
        *ends, rest = data.split(b"\0")
        payloads = []
        for piece in ends:
            self._add(piece)
            if (payload := self._finish()) is not None:
                payloads.append(payload)
        self._add(rest)
        return payloads

    def _add(self, piece: bytes) -> None:
        self._overlong |= len(self._part) + len(piece) > ENCODED_MAX
        if self._overlong:
            self._part.clear()
        else:
            self._part += piece

    def _finish(self) -> bytes | None:
        encoded, overlong = bytes(self._part), self._overlong
        self._part.clear()
        self._overlong = False
        if len(encoded) <= 1 and not overlong:
            return None  # Nothing, or the one byte of RSSI that some modems add to each frame.
        try:
            content = decode(encoded)
        except ValueError:
            content = b""
        payload, crc = content[:-_CRC_BYTES], content[-_CRC_BYTES:]
        if not payload or zlib.crc32(payload).to_bytes(_CRC_BYTES, "little") != crc:
            self.malformed += 1
            return None
        return payload
