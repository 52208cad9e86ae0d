"""A seeded rotation that spreads every coordinate over its block, and the measure that asks for it.

Random signs, then a Walsh-Hadamard transform (Ailon and Chazelle, "The fast Johnson-Lindenstrauss
transform", 2009): whatever the values were, afterwards they are close to Gaussian, and a lost frame
costs every coordinate a little. A vector that is sparse or heavy-tailed loses by it: there the few
large values are the message, so the kurtosis decides.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ternmesh.generator import Key, words

BLOCK = 4096
BATCH = 8  # blocks that are transformed together
HEAVY_TAIL = 4.0  # from this kurtosis on, direct coding beats rotation; a Gaussian has 3

Vector = NDArray[np.float32]


def rotate(vector: Vector, key: Key) -> Vector:
    """The vector (float32, D) with seeded signs, block by block in the Walsh-Hadamard basis."""
    signed = seeded_signs(key, vector.size)
    signed *= vector
    return _transform(signed)


def unrotate(vector: Vector, key: Key) -> Vector:
    """The inverse of `rotate`."""
    turned = _transform(vector.copy())
    turned *= seeded_signs(key, vector.size)
    return turned


def seeded_signs(key: Key, count: int) -> Vector:
    """`count` signs (float32, -1 or 1): the bits of the key's words, lowest first, 1 is minus."""
    bits = words(key, -(-count // 32)).astype("<u4").view(np.uint8)
    signs: Vector = np.unpackbits(bits, count=count, bitorder="little").astype(np.float32)
    signs *= -2
    signs += 1
    return signs


def kurtosis(vector: Vector) -> float:
    """The fourth moment over the squared second: 3 for a Gaussian, 6 for Laplace, 0 for zeros."""
    squares = np.square(vector, dtype=np.float64)
    second = float(squares.mean()) if vector.size else 0.0
    return float(np.dot(squares, squares)) / vector.size / second**2 if second else 0.0


def hadamard(order: int) -> Vector:
    """The Walsh-Hadamard matrix of a power of two, entries -1 and 1 (float32)."""
    index = np.arange(order)
    parity = np.bitwise_count(index[:, None] & index) & 1
    matrix: Vector = 1 - 2 * parity.astype(np.float32)
    return matrix


def _transform(vector: Vector) -> Vector:
    """Every block in the orthonormal Walsh-Hadamard basis, in place, as two small products."""
    for start, count, size in _blocks(vector.size):
        low = 1 << (size.bit_length() - 1) // 2
        grid = vector[start : start + count * size].reshape(count, size // low, low)
        turned = hadamard(size // low) @ grid @ hadamard(low)
        np.divide(turned, np.float32(size**0.5), out=grid)
    return vector


def _blocks(dimension: int) -> Iterator[tuple[int, int, int]]:
    """(start, count, size): whole blocks, some at a time, then the powers of two of the rest."""
    start, size = 0, BLOCK
    while start < dimension:
        count = min((dimension - start) // size, BATCH)
        if count:
            yield start, count, size
            start += count * size
        else:
            size //= 2
