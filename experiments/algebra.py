"""Inner products of hypervectors on packed trits: two bits a trit, never unpacked as a whole.

A trit has one bit for "not zero" and one bit for "negative"; every operation works on whole bytes
or words of them. A few vectors are compared by
popcounts, many by a matrix product over unpacked tiles of at most `TILE_ROWS` x `TILE_BYTES`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError

TILE_ROWS = 512
TILE_BYTES = 120  # 960 trits: a sum of so many keeps within half of PAIR
PAIR = 4096.0  # two queries share one float: q0 + PAIR * q1, exact below 2**24
MATMUL_ROWS = 16  # from so many vectors on each side a matrix product beats popcounts

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
    return _spread(matrix.nonzero, matrix.negative)[:, : matrix.dimension]


def inner_products(a: PackedMatrix, b: PackedMatrix) -> NDArray[np.int32]:
    """The exact inner product of each vector of `a` with each of `b`, int32 [n, m]."""
    few = min(len(a), len(b)) < MATMUL_ROWS
    return products(a, b, popcount_tile if few else matmul_tile)


Tile = tuple[Plane, Plane]


def products(
    a: PackedMatrix, b: PackedMatrix, multiply: Callable[[Tile, Tile], NDArray[np.int32]]
) -> NDArray[np.int32]:
    """All inner products tile by tile, so that the extra memory does not grow with the input."""
    _check_dimensions(a, b)
    total = np.zeros((len(a), len(b)), dtype=np.int32)
    for first in range(0, a.nonzero.shape[1], TILE_BYTES):
        for rows_a, tile_a in _tiles(a, first):
            for rows_b, tile_b in _tiles(b, first):
                total[rows_a, rows_b] += multiply(tile_a, tile_b)
    return total


def popcount_tile(a: Tile, b: Tile) -> NDArray[np.int32]:
    """Inner products of two tiles by popcounts of 64-bit words."""
    nonzero_a, negative_a, nonzero_b, negative_b = (_word_columns(plane) for plane in (*a, *b))
    shape = (nonzero_a.shape[1], nonzero_b.shape[1])
    both, differ = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
    count, less = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
    total = np.zeros(shape, np.int16)
    for word in range(len(nonzero_a)):
        np.bitwise_and(nonzero_a[word, :, None], nonzero_b[word], out=both)
        np.bitwise_xor(negative_a[word, :, None], negative_b[word], out=differ)
        np.bitwise_and(differ, both, out=differ)
        np.bitwise_count(both, out=count)
        np.bitwise_count(differ, out=less)
        count -= less
        count -= less  # wraps to a signed byte: one word holds -64 to 64
        total += count.view(np.int8)
    return total.astype(np.int32)


def matmul_tile(a: Tile, b: Tile) -> NDArray[np.int32]:
    """Inner products of two tiles by one float32 matrix product, two queries in each number."""
    queries = _spread(*a).astype(np.float32)
    half = len(queries) // 2
    pairs = queries[: len(queries) - half].copy()
    pairs[:half] += PAIR * queries[len(queries) - half :]
    mixed = pairs @ _spread(*b).astype(np.float32).T
    high = np.rint(mixed * (1 / PAIR))
    return np.concatenate([mixed - PAIR * high, high[:half]]).astype(np.int32)


def _tiles(matrix: PackedMatrix, first: int) -> Iterator[tuple[slice, Tile]]:
    columns = slice(first, first + TILE_BYTES)
    for start in range(0, len(matrix), TILE_ROWS):
        rows = slice(start, start + TILE_ROWS)
        yield rows, (matrix.nonzero[rows, columns], matrix.negative[rows, columns])


def _spread(nonzero: Plane, negative: Plane) -> NDArray[np.int8]:
    trits = np.unpackbits(nonzero, axis=1, bitorder="little").view(np.int8)
    signs = np.unpackbits(negative, axis=1, bitorder="little").view(np.int8)
    trits -= signs
    trits -= signs
    return trits


def _word_columns(plane: Plane) -> NDArray[np.uint64]:
    """The 64-bit words of each row as columns: [words, n]."""
    padded = np.zeros((len(plane), -(-plane.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : plane.shape[1]] = plane
    return np.ascontiguousarray(padded.view(np.uint64).T)


def _check_dimensions(a: PackedMatrix, b: PackedMatrix) -> None:
    if a.dimension != b.dimension:
        raise CodecError(f"vectors of {a.dimension} and {b.dimension} trits do not fit together")
