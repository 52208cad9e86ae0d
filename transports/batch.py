"""Several frames in one message, for bearers whose messages are larger than a frame.

A message is one or more frames one after the other, each behind its length as a little-endian u16.
"""

import struct
from collections.abc import Sequence

from ternmesh.errors import WireError
from transports.base import FrameTooLarge

_LENGTH = struct.Struct("<H")
OVERHEAD = _LENGTH.size  # bytes that a frame costs in a message beyond its own
FRAME_MAX = 0xFFFF


def join(frames: Sequence[bytes]) -> bytes:
    """One message that holds `frames` in order; ValueError for no frame or a wrong length."""
    if not frames or not all(1 <= len(frame) <= FRAME_MAX for frame in frames):
        raise ValueError(f"a message holds at least one frame, each of 1 to {FRAME_MAX} bytes")
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)


def split(message: bytes, frame_min: int = 1) -> tuple[bytes, ...]:
    """The frames of `message`; WireError where a length does not fit or there is no frame.

    Also where a frame has less than `frame_min` bytes: a flood of tiny frames costs its first one.
    """
    if not message:
        raise WireError("batch", "a message holds no frame")
    frames, at = [], 0
    while at < len(message):
        body = at + OVERHEAD
        if body > len(message):
            raise WireError("batch", "a message ends inside a frame's length")
        (length,) = _LENGTH.unpack_from(message, at)
        at = body + length
        if length < frame_min or at > len(message):
            raise WireError(
                "batch", "a message ends inside a frame, or holds one that is too short"
            )
        frames.append(message[body:at])
    return tuple(frames)


def fill(frames: Sequence[bytes], message_max: int) -> list[list[bytes]]:
    """`frames` in order, in as few groups as possible whose `join` is at most `message_max` bytes.

    Raises FrameTooLarge where one frame alone is more than that.
    """
    groups: list[list[bytes]] = []
    room = 0
    for frame in frames:
        cost = OVERHEAD + len(frame)
        if cost > message_max:
            raise FrameTooLarge(
                f"a frame of {len(frame)} bytes does not fit a message of {message_max} bytes"
            )
        if cost > room:
            groups.append([])
            room = message_max
        groups[-1].append(frame)
        room -= cost
    return groups
