"""Inner products of hypervectors on packed trits: two bits a trit, compared by popcounts.

A trit has one bit for "not zero" and one bit for "negative"; every operation works on whole bytes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError

Plane = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """n ternary vectors of `dimension` trits: planes of uint8 [n, ceil(dimension / 8)].

    Bits are numbered from the least significant of each byte. A bit of `negative` is set only where
    the bit of `nonzero` is, and the bits after the last trit are zero.
    """

    dimension: int
    nonzero: Plane
    negative: Plane

    def __len__(self) -> int:
        return len(self.nonzero)


def pack(trits: NDArray[np.int8]) -> PackedMatrix:
    """The packed form of ternary vectors (int8 [n, D] in -1, 0, 1)."""
    return PackedMatrix(
        dimension=trits.shape[1],
        nonzero=np.packbits(trits != 0, axis=1, bitorder="little"),
        negative=np.packbits(trits < 0, axis=1, bitorder="little"),
    )


def unpack(matrix: PackedMatrix) -> NDArray[np.int8]:
    """The ternary vectors of a packed matrix, int8 [n, D]."""
    planes = (matrix.nonzero, matrix.negative)
    nonzero, negative = (
        np.unpackbits(plane, axis=1, count=matrix.dimension, bitorder="little").view(np.int8)
        for plane in planes
    )
    return nonzero - 2 * negative


def inner_products(a: PackedMatrix, b: PackedMatrix) -> NDArray[np.int32]:
    """The exact inner product of each vector of `a` with each of `b`, int32 [n, m]."""
    if a.dimension != b.dimension:
        raise CodecError(f"vectors of {a.dimension} and {b.dimension} trits do not fit together")
    total = np.zeros((len(a), len(b)), dtype=np.int32)
    for row, (nonzero, negative) in enumerate(zip(a.nonzero, a.negative, strict=True)):
        both = nonzero & b.nonzero
        differ = (negative ^ b.negative) & both
        total[row] = np.bitwise_count(both).sum(1, dtype=np.int32)
        total[row] -= 2 * np.bitwise_count(differ).sum(1, dtype=np.int32)
    return total
