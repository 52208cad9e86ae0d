"""Objects larger than a frame, cut into fragments and reassembled. SPEC.md section 4.4.

The first four bytes of an object's hash name it in each of its fragments.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from itertools import islice, product

from ternmesh.errors import WireError
from ternmesh.wire.frame import FRAME_OVERHEAD

KIND = 0x04
_HEAD = struct.Struct("<B4sIH")
HEAD_SIZE = _HEAD.size
ID_SIZE = 4
FRAGMENTS_MAX = 0xFFFF
SPARE_MAX = 16  # conflicting fragments that are kept of one object
SEARCHED_MAX = 1 << 20  # bytes hashed at most to find the object that one fragment completes


def fragment_size(frame_mtu: int) -> int:
    """How many bytes of an object one frame carries."""
    return frame_mtu - FRAME_OVERHEAD - HEAD_SIZE


def object_max(frame_mtu: int) -> int:
    """The length of the longest object that frames of this size can carry, in bytes."""
    return FRAGMENTS_MAX * fragment_size(frame_mtu)


def split(content: bytes, frame_mtu: int) -> list[bytes]:
    """The bodies of the fragments of `content`; all are full except the last."""
    size = fragment_size(frame_mtu)
    name = _name(content)
    return [
        _HEAD.pack(KIND, name, len(content), index) + content[start : start + size]
        for index, start in enumerate(range(0, len(content), size))
    ]


def _name(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:ID_SIZE]


@dataclass(slots=True)
class _Partial:
    candidates: dict[int, list[bytes]] = field(default_factory=dict)  # by index
    spare: int = 0  # how many of them conflict with an earlier one of the same index

    def add(self, index: int, data: bytes) -> bool:
        """Keep a fragment; False if it is a duplicate, or if too many conflict already."""
        known = self.candidates.setdefault(index, [])
        if data in known or (known and self.spare >= SPARE_MAX):
            return False
        self.spare += bool(known)
        known.append(data)
        return True

    def find(self, name: bytes, tries: int, index: int, data: bytes) -> bytes | None:
        """The object with this name, built with this fragment, if so many tries find it."""
        choices = [self.candidates[i] for i in range(len(self.candidates))]
        choices[index] = [data]
        for choice in islice(product(*choices), tries):
            content = b"".join(choice)
            if _name(content) == name:
                return content
        return None


class Reassembler:
    """Collects the fragments of at most `objects_max` objects, each of at most `object_max` bytes.

    When one more object begins, the object that has waited longest for a fragment is dropped.
    Memory grows with the bytes that have arrived, never with the size that a fragment claims. A
    member that holds the broadcast key can forge fragments. Conflicting fragments are therefore
    kept side by side until one combination has the hash that names the object; `forged` counts the
    others. A fragment costs the hashes of at most `searched_max` bytes, or of one object.
    """

    def __init__(
        self,
        frame_mtu: int,
        object_max: int,
        objects_max: int = 4,
        searched_max: int = SEARCHED_MAX,
    ) -> None:
        self._fragment_size = fragment_size(frame_mtu)
        self._object_max = min(object_max, FRAGMENTS_MAX * self._fragment_size)
        self._objects_max = objects_max
        self._searched_max = searched_max
        self._partials: dict[tuple[bytes, int], _Partial] = {}  # by name and size
        self.forged = 0

    def add(self, body: bytes) -> bytes | None:
        """Take a fragment; returns the object that it completes, if any. WireError."""
        if len(body) <= HEAD_SIZE:
            raise WireError("length", "a fragment is shorter than its header")
        _, name, size, index = _HEAD.unpack_from(body)
        data = body[HEAD_SIZE:]
        self._check(size, index, len(data))
        count = self._count(size)
        partial = self._partials.pop((name, size), None) or _Partial()
        is_whole = partial.add(index, data) and len(partial.candidates) == count
        tries = max(1, self._searched_max // size)
        content = partial.find(name, tries, index, data) if is_whole else None
        if content is not None:
            self.forged += partial.spare
            return content
        if not is_whole or (count > 1 and partial.spare < SPARE_MAX):
            self._keep((name, size), partial)
        if is_whole:
            raise WireError("piece", "the fragments do not form the object that they name")
        return None

    def _keep(self, key: tuple[bytes, int], partial: _Partial) -> None:
        """Keep an object's fragments as the newest; drop the oldest object if there is no room."""
        while len(self._partials) >= self._objects_max:
            del self._partials[next(iter(self._partials))]
        self._partials[key] = partial

    def _count(self, size: int) -> int:
        return -(-size // self._fragment_size)

    def _check(self, size: int, index: int, length: int) -> None:
        if not 0 < size <= self._object_max:
            raise WireError("piece", f"an object has 1 to {self._object_max} bytes, not {size}")
        last = self._count(size) - 1
        expected = self._fragment_size if index < last else size - last * self._fragment_size
        if index > last or length != expected:
            raise WireError(
                "piece", f"fragment {index} of {length} bytes does not fit an object of {size}"
            )
