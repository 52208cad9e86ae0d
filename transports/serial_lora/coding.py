"""Frames in radio payloads (SPEC.md section 7.3).

All radios receive all payloads, so each begins with the addresses of its receiver and its sender.
"""

from dataclasses import dataclass

from ternmesh.errors import WireError

PREFIX = 2  # bytes: receiver, sender


@dataclass(frozen=True, slots=True)
class RadioMessage:
    """A frame with the addresses of its receiver and sender."""

    to: int
    sender: int
    frame: bytes


def write_payload(message: RadioMessage) -> bytes:
    return bytes([message.to, message.sender]) + message.frame


def read_payload(payload: bytes) -> RadioMessage:
    """The message in a payload; WireError."""
    if len(payload) <= PREFIX:
        raise WireError("radio", f"a payload of {len(payload)} bytes holds no frame")
    return RadioMessage(payload[0], payload[1], payload[PREFIX:])
