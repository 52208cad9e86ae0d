"""Objects too large for a frame, cut into pieces and put together again. SPEC.md section 4.4."""

import hashlib
import struct
from dataclasses import dataclass, field

from ternmesh.errors import WireError
from ternmesh.wire.seal import OVERHEAD

KIND = 0x04
_HEAD = struct.Struct("<B4sIH")
HEAD_SIZE = _HEAD.size
ID_SIZE = 4
PIECES_MAX = 0xFFFF


def piece_size(frame_mtu: int) -> int:
    """Bytes of an object that one frame carries."""
    return frame_mtu - OVERHEAD - HEAD_SIZE


def cut(content: bytes, frame_mtu: int) -> list[bytes]:
    """The bodies that carry `content`, all full but the last."""
    size = piece_size(frame_mtu)
    head = hashlib.sha256(content).digest()[:ID_SIZE]
    return [
        _HEAD.pack(KIND, head, len(content), index) + content[start : start + size]
        for index, start in enumerate(range(0, len(content), size))
    ]


@dataclass(slots=True)
class _Partial:
    size: int
    parts: dict[int, bytes] = field(default_factory=dict)


class Assembly:
    """Objects in arrival: at most `objects_max` at once, each of at most `object_max` bytes.

    When one more begins, the one that has waited longest for a piece is forgotten. Memory grows
    with the bytes that have arrived, never with the size that a piece claims.
    """

    def __init__(self, frame_mtu: int, object_max: int, objects_max: int = 4) -> None:
        self._piece_size = piece_size(frame_mtu)
        self._object_max = object_max
        self._objects_max = objects_max
        self._partials: dict[bytes, _Partial] = {}

    def add(self, body: bytes) -> bytes | None:
        """The object that this piece completes, else None; WireError where it fits nothing."""
        if len(body) <= HEAD_SIZE:
            raise WireError("length", "a piece is shorter than its head")
        _, name, size, index = _HEAD.unpack_from(body)
        data = body[HEAD_SIZE:]
        self._check(size, index, len(data))
        partial = self._partials.get(name)
        if partial is None:
            while len(self._partials) >= self._objects_max:
                del self._partials[next(iter(self._partials))]
            partial = _Partial(size)
        if partial.size != size:
            raise WireError("piece", "pieces of one object disagree about its size")
        self._partials.pop(name, None)
        self._partials[name] = partial  # now the last to be forgotten
        partial.parts.setdefault(index, data)
        if len(partial.parts) < self._count(size):
            return None
        del self._partials[name]
        content = b"".join(partial.parts[i] for i in range(self._count(size)))
        if hashlib.sha256(content).digest()[:ID_SIZE] != name:
            raise WireError("piece", "the pieces do not add up to the object that they name")
        return content

    def _count(self, size: int) -> int:
        return -(-size // self._piece_size)

    def _check(self, size: int, index: int, length: int) -> None:
        if not 0 < size <= self._object_max:
            raise WireError("piece", f"an object is of 1 to {self._object_max} bytes, not {size}")
        last = self._count(size) - 1
        expected = self._piece_size if index < last else size - last * self._piece_size
        if index > last or length != expected:
            raise WireError("piece", f"piece {index} of {length} bytes fits no object of {size}")
