"""Frames in: values put in order, frames cut out of their stream."""

import struct

from ternmesh.errors import WireError
from transports.ble.values import FRAME_MAX, WINDOW, Data, Status

LENGTH = struct.Struct("<H")  # before each frame in the stream


class Receiver:
    """At most `WINDOW` values out of order and one unfinished frame are held."""

    def __init__(self) -> None:
        self.frames_taken = 0  # since this peer's program began, modulo 2**32
        self.reading = True  # False: no credits are granted
        self.restart()

    def restart(self) -> None:
        """Begin a session: an unfinished frame is forgotten, as it will be sent again whole."""
        self._next = 0  # the count of the first missing value, modulo 256
        self._ahead: dict[int, bytes] = {}
        self._stream = bytearray()

    @property
    def window(self) -> int:
        """How many values are taken now from the first missing one on."""
        return WINDOW if self.reading else 0

    def take(self, data: Data) -> list[bytes]:
        """The frames that `data` completed; WireError where its stream holds no frames."""
        if (data.seq - self._next) % 256 < WINDOW:  # Else it is here already.
            self._ahead.setdefault(data.seq, data.payload)
        while (payload := self._ahead.pop(self._next, None)) is not None:
            self._stream += payload
            self._next = (self._next + 1) % 256
        return self._frames()

    def status(self) -> Status:
        """What is here and what may come."""
        later = sum(1 << ((seq - self._next) % 256 - 1) for seq in self._ahead)
        return Status(self._next, self.window, later)

    def _frames(self) -> list[bytes]:
        frames: list[bytes] = []
        while len(self._stream) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._stream)
            if not 1 <= length <= FRAME_MAX:
                if frames:
                    break  # They are good; the next value brings us here again.
                raise WireError("frame", f"the stream has a frame of {length} bytes")
            end = LENGTH.size + length
            if len(self._stream) < end:
                break
            frames.append(bytes(self._stream[LENGTH.size : end]))
            del self._stream[:end]
            self.frames_taken = (self.frames_taken + 1) % 2**32
        return frames
