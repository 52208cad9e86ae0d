"""Ternary vectors in memory: five trits to a byte, and two bit-planes that compare by popcount."""

from dataclasses import dataclass

import numpy as np
from bitarray import bitarray, frozenbitarray
from bitarray.util import count_and
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError

TRITS_PER_BYTE = 5
_PLACE = 3 ** np.arange(TRITS_PER_BYTE, dtype=np.int64)
_CODES = 3**TRITS_PER_BYTE


def pack_trits(trits: NDArray[np.int8]) -> bytes:
    """Trits (int8 in -1, 0, 1) as ceil(n / 5) bytes: byte = sum of (trit + 1) * 3**i."""
    padded = np.zeros(-(-trits.size // TRITS_PER_BYTE) * TRITS_PER_BYTE, dtype=np.int64)
    padded[: trits.size] = trits
    return ((padded.reshape(-1, TRITS_PER_BYTE) + 1) @ _PLACE).astype(np.uint8).tobytes()


def unpack_trits(data: bytes, count: int) -> NDArray[np.int8]:
    """The `count` trits of `data`; WireError unless the bytes are exactly what pack_trits gives."""
    if len(data) != -(-count // TRITS_PER_BYTE):
        raise WireError("trits", f"{count} trits do not fit {len(data)} bytes")
    codes = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    if (codes >= _CODES).any():
        raise WireError("trits", "a byte of 243 or more holds no trits")
    trits = (codes[:, None] // _PLACE % 3 - 1).astype(np.int8).reshape(-1)
    if trits[count:].any():
        raise WireError("trits", "the padding after the last trit is not zero")
    return trits[:count]


@dataclass(frozen=True, slots=True)
class Planes:
    """A ternary vector as two bit-planes: where it is +1 and where it is -1."""

    plus: frozenbitarray
    minus: frozenbitarray

    def __len__(self) -> int:
        return len(self.plus)


def to_planes(trits: NDArray[np.int8]) -> Planes:
    """The bit-planes of a ternary vector (int8 in -1, 0, 1)."""
    return Planes(_plane(trits > 0), _plane(trits < 0))


def from_planes(planes: Planes) -> NDArray[np.int8]:
    """The ternary vector of two bit-planes, int8."""
    plus = np.frombuffer(planes.plus.unpack(), dtype=np.int8)
    minus = np.frombuffer(planes.minus.unpack(), dtype=np.int8)
    return plus - minus


def inner_product(a: Planes, b: Planes) -> int:
    """The exact inner product of two ternary vectors of the same length, by popcount."""
    if len(a) != len(b):
        raise CodecError(f"vectors of {len(a)} and {len(b)} trits cannot be compared")
    same = count_and(a.plus, b.plus) + count_and(a.minus, b.minus)
    return same - count_and(a.plus, b.minus) - count_and(a.minus, b.plus)


def _plane(mask: NDArray[np.bool_]) -> frozenbitarray:
    bits = bitarray(endian="little")
    bits.frombytes(np.packbits(mask, bitorder="little").tobytes())
    return frozenbitarray(bits[: mask.size])
