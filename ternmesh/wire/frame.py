"""A frame on its way out that knows what it says: a new seal makes other bytes of the same body."""

import hashlib
from typing import Self

from ternmesh.wire.seal import HEAD_SIZE, TAG_SIZE


class Frame(bytes):
    """The bytes of a sealed frame, and the name of the body in it (32 bytes)."""

    body_name: bytes

    def __new__(cls, frame: bytes, body: bytes) -> Self:
        """`frame` as its seal made it of `body`."""
        made = super().__new__(cls, frame)
        made.body_name = _name(body)
        return made


def body_name(frame: bytes) -> bytes:
    """What a frame says, whatever its seal; of one that others have sealed, only if it is open."""
    return frame.body_name if isinstance(frame, Frame) else _name(frame[HEAD_SIZE:-TAG_SIZE])


def _name(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
