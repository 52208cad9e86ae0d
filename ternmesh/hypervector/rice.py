"""Golomb-Rice code (Rice and Plaunt 1971) as array operations on streams of single bits.

Bits are numbered from the least significant bit of each byte.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError

RICE_MAX = 15

Bits = NDArray[np.uint8]
Ints = NDArray[np.int32] | NDArray[np.int64]


def best_parameter(gaps: Ints) -> int:
    """The parameter with the shortest code, the first of equals: the cost is convex in it."""
    best, quotients = int(gaps.sum(dtype=np.int64)), gaps
    for rice in range(1, RICE_MAX + 1):
        quotients = quotients >> 1
        cost = int(quotients.sum(dtype=np.int64)) + gaps.size * rice
        if cost >= best:
            return rice - 1
        best = cost
    return RICE_MAX


def unary(numbers: Ints) -> Bits:
    """Each number as that many zeros and a one."""
    ends = np.cumsum(numbers + 1, dtype=np.int64)
    bits = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.uint8)
    ends -= 1
    bits[ends] = 1
    return bits


def low_bits(numbers: Ints, width: int) -> Bits:
    """The `width` lowest bits of each number, lowest first."""
    bits = np.empty((numbers.size, width), dtype=np.uint8)
    for place in range(width):
        bits[:, place] = (numbers >> place) & 1
    return bits.reshape(-1)


def read_unary(bits: Bits, at: int, count: int) -> tuple[NDArray[np.int64], int]:
    """`count` unary numbers from bit `at`, and where they end."""
    end = min(bits.size, at + 2 * count)
    # Each number ends with a one; the bits behind the last of them are none of ours.
    while end < bits.size and np.count_nonzero(bits[at:end]) < count:
        end = min(bits.size, 2 * end - at)
    ends = np.flatnonzero(bits[at:end].view(np.bool_))[:count]
    if ends.size < count:
        raise WireError("coding", "the code ends before its last nonzero")
    end = at + int(ends[-1]) + 1 if count else at
    return np.diff(ends, prepend=-1) - 1, end


def take(bits: Bits, at: int, count: int) -> tuple[Bits, int]:
    """`count` bits from bit `at`, and where they end; WireError if they are not there."""
    if at + count > bits.size:
        raise WireError("coding", "the code ends before its last nonzero")
    return bits[at : at + count], at + count
