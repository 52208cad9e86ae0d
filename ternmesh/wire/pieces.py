"""Objects too large for a frame, cut into pieces and put together again. SPEC.md section 4.4."""

import hashlib
import struct
from dataclasses import dataclass, field
from itertools import islice, product

from ternmesh.errors import WireError
from ternmesh.wire.seal import OVERHEAD

KIND = 0x04
_HEAD = struct.Struct("<B4sIH")
HEAD_SIZE = _HEAD.size
ID_SIZE = 4
PIECES_MAX = 0xFFFF
SPARE_MAX = 16  # pieces of one object beside others for the same place
SEARCHED_MAX = 1 << 20  # bytes that are hashed at most to find what one piece completes


def piece_size(frame_mtu: int) -> int:
    """Bytes of an object that one frame carries."""
    return frame_mtu - OVERHEAD - HEAD_SIZE


def object_max(frame_mtu: int) -> int:
    """Bytes of the longest object that travels in frames of this size."""
    return PIECES_MAX * piece_size(frame_mtu)


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
    """What has arrived of an object: by index, all that was said to be there."""

    parts: dict[int, list[bytes]] = field(default_factory=dict)
    spare: int = 0  # pieces beside others for the same place

    def take(self, index: int, data: bytes) -> bool:
        """Take a piece in; False for one that is here, or one too many for its place."""
        found = self.parts.setdefault(index, [])
        if data in found or (found and self.spare >= SPARE_MAX):
            return False
        self.spare += bool(found)
        found.append(data)
        return True

    def find(self, name: bytes, size: int, index: int, data: bytes) -> bytes | None:
        """The object of this name in a choice of pieces with this one, if a search finds it."""
        places = [[data] if i == index else self.parts[i] for i in range(len(self.parts))]
        for choice in islice(product(*places), max(1, SEARCHED_MAX // size)):
            content = b"".join(choice)
            if hashlib.sha256(content).digest()[:ID_SIZE] == name:
                return content
        return None


class Assembly:
    """Objects in arrival: at most `objects_max` at once, each of at most `object_max` bytes.

    When one more begins, the one that has waited longest for a piece is forgotten. Memory grows
    with the bytes that have arrived, never with the size that a piece claims. Who can seal what is
    said to all can forge pieces: they are kept beside the true ones, and the name tells which are
    true. `forged` counts those that were found out.
    """

    def __init__(self, frame_mtu: int, object_max: int, objects_max: int = 4) -> None:
        self._piece_size = piece_size(frame_mtu)
        self._object_max = min(object_max, PIECES_MAX * self._piece_size)
        self._objects_max = objects_max
        self._partials: dict[tuple[bytes, int], _Partial] = {}  # by name and size
        self.forged = 0

    def add(self, body: bytes) -> bytes | None:
        """The object that this piece completes, else None; WireError where it fits nothing."""
        if len(body) <= HEAD_SIZE:
            raise WireError("length", "a piece is shorter than its head")
        _, name, size, index = _HEAD.unpack_from(body)
        data = body[HEAD_SIZE:]
        self._check(size, index, len(data))
        count = self._count(size)
        partial = self._partials.pop((name, size), None) or _Partial()
        is_whole = partial.take(index, data) and len(partial.parts) == count
        content = partial.find(name, size, index, data) if is_whole else None
        if content is not None:
            self.forged += partial.spare
            return content
        if not is_whole or (count > 1 and partial.spare < SPARE_MAX):
            self._keep((name, size), partial)
        if is_whole:
            raise WireError("piece", "the pieces do not add up to the object that they name")
        return None

    def _keep(self, key: tuple[bytes, int], partial: _Partial) -> None:
        """What waits for a piece from now on is the last to be forgotten."""
        while len(self._partials) >= self._objects_max:
            del self._partials[next(iter(self._partials))]
        self._partials[key] = partial

    def _count(self, size: int) -> int:
        return -(-size // self._piece_size)

    def _check(self, size: int, index: int, length: int) -> None:
        if not 0 < size <= self._object_max:
            raise WireError("piece", f"an object is of 1 to {self._object_max} bytes, not {size}")
        last = self._count(size) - 1
        expected = self._piece_size if index < last else size - last * self._piece_size
        if index > last or length != expected:
            raise WireError("piece", f"piece {index} of {length} bytes fits no object of {size}")
