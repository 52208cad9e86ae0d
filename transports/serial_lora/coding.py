"""Frames in radio payloads: addresses, and text where bytes may be damaged (SPEC.md section 7.3).

All radios receive all payloads, so each begins with the addresses of its receiver and its sender.
Most modems carry any bytes. For REYAX modems that is disputed, so there a payload is text unless
the settings say otherwise (`ReyaxCoding`).
"""

import base64
from dataclasses import dataclass

from ternmesh.errors import WireError

PREFIX = 2  # bytes: receiver, sender


@dataclass(frozen=True, slots=True)
class RadioMessage:
    """A frame with the addresses of its receiver and sender."""

    to: int
    sender: int
    frame: bytes


class PrefixCoding:
    """The payload is addresses and frame."""

    def __init__(self, own: int) -> None:
        self._own = own

    def frame_max(self, payload_max: int) -> int:
        """The longest frame in bytes that fits a payload."""
        return payload_max - PREFIX

    def size(self, frame_bytes: int) -> int:
        """The size in bytes of the payload for a frame."""
        return PREFIX + frame_bytes

    def encode(self, to: int, frame: bytes) -> bytes:
        """The payload with `frame` for the address `to`."""
        return bytes([to, self._own]) + frame

    def decode(self, payload: bytes) -> RadioMessage:
        """The frame in a payload; WireError."""
        return _message(payload)


BINARY = b"\x01"  # not in the alphabet of base85


class ReyaxCoding(PrefixCoding):
    """Base85, or with `is_binary` the bytes as they are; both are understood."""

    def __init__(self, own: int, *, is_binary: bool) -> None:
        super().__init__(own)
        self._is_binary = is_binary

    def frame_max(self, payload_max: int) -> int:
        room = payload_max - len(BINARY) if self._is_binary else payload_max * 4 // 5
        return room - PREFIX

    def size(self, frame_bytes: int) -> int:
        content = PREFIX + frame_bytes
        return len(BINARY) + content if self._is_binary else -(-content * 5 // 4)

    def encode(self, to: int, frame: bytes) -> bytes:
        content = super().encode(to, frame)
        return BINARY + content if self._is_binary else base64.b85encode(content)

    def decode(self, payload: bytes) -> RadioMessage:
        is_binary = payload.startswith(BINARY)
        return _message(payload[len(BINARY) :] if is_binary else _text(payload))


def _message(content: bytes) -> RadioMessage:
    if len(content) <= PREFIX:
        raise WireError("radio", f"a payload of {len(content)} bytes holds no frame")
    return RadioMessage(content[0], content[1], content[PREFIX:])


def _text(payload: bytes) -> bytes:
    try:
        return base64.b85decode(payload)
    except ValueError as error:
        raise WireError("radio", "a payload that is neither binary nor base85") from error
