"""A frame on its way out that knows what it says: a new seal makes other bytes of the same body."""

from typing import Self

from ternmesh.wire.seal import HEAD_SIZE, TAG_SIZE


class Frame(bytes):
    """The bytes of a sealed frame, and the body in it."""

    body: bytes

    def __new__(cls, frame: bytes, body: bytes) -> Self:
        """`frame` as its seal made it of `body`."""
        made = super().__new__(cls, frame)
        made.body = body
        return made


def body_of(frame: bytes) -> bytes:
    """What a frame says, whatever its seal; of one that others have sealed, only if it is open."""
    return frame.body if isinstance(frame, Frame) else frame[HEAD_SIZE:-TAG_SIZE]
