"""Sums, products and powers with the same bits on every processor.

numpy and BLAS choose another order of addition by the processor, and another logarithm. Whole
numbers have one sum in any order, as long as no partial sum passes 2**53 (float64) or 2**24
(float32). So vectors are rounded to whole numbers of a unit first, and divisions and square roots,
which IEEE 754 rounds correctly, come last.
"""

import math
from bisect import bisect_right
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ternmesh.types import Vector

Wholes = NDArray[np.float64]  # whole numbers
LENGTH_BITS = 24  # vectors have at most 2**24 numbers (`plan.DIMENSION_MAX`)
SUM_BITS, PRODUCT_BITS = 28, 14  # of a number: 28 + 24 and 14 + 14 + 24 are below 53
BLOCK = 1024  # products of int8 whose sum float32 holds: 127**2 * 1024 < 2**24
STEPS, ONE = 1 << 10, 1 << 16  # of the table of a power, and 1 in it


def wholes(vector: NDArray[np.floating], bits: int) -> tuple[Wholes, float]:
    """The nearest whole numbers, at most 2**bits, and their unit, a power of two."""
    if not vector.size:
        return np.zeros(0), 1.0
    exponent = math.frexp(max(float(vector.max()), -float(vector.min())))[1]
    unit = math.ldexp(1.0, exponent - bits)
    numbers = vector * np.float64(1 / unit)
    return np.rint(numbers, out=numbers), unit


def total(vector: NDArray[np.floating]) -> float:
    numbers, unit = wholes(vector, SUM_BITS)
    return float(numbers.sum()) * unit


def energy(vector: NDArray[np.floating]) -> float:
    """The sum of the squares."""
    numbers, unit = wholes(vector, PRODUCT_BITS)
    return float(numbers @ numbers) * unit * unit


def norm(vector: NDArray[np.floating]) -> float:
    numbers, unit = wholes(vector, PRODUCT_BITS)
    return math.sqrt(float(numbers @ numbers)) * unit


def cosine(a: Vector, b: Vector) -> float:
    """The similarity of two vectors, their cosine; 0 where one is zero."""
    (left, _), (right, _) = wholes(a, PRODUCT_BITS), wholes(b, PRODUCT_BITS)
    norms = math.sqrt(float(left @ left)) * math.sqrt(float(right @ right))
    return float(left @ right) / norms if norms else 0.0


def to_int8(vector: Vector) -> tuple[NDArray[np.int8], float]:
    """A vector as int8 and their scale; 1 for zeros."""
    scale = max(float(vector.max()), -float(vector.min())) / 127 or 1.0
    return np.rint(vector / np.float32(scale)).astype(np.int8), scale


def inner_products_int8(rows: NDArray[np.int8]) -> NDArray[np.float64]:
    """The inner products of all pairs of rows [n, D], whole numbers [n, n]."""
    products = np.zeros((len(rows), len(rows)))
    for at in range(0, rows.shape[1], BLOCK):
        block = rows[:, at : at + BLOCK].astype(np.float32)
        with np.errstate(all="ignore"):  # on Arm lanes that nobody reads raise flags
            products += block @ block.T
    return products


def power(base: float, p: int, q: int) -> float:
    """base ** (p / q) for a base of 0 to 1, between the entries of a table."""
    table, place = _powers(p, q), base * STEPS
    low = min(int(place), STEPS - 1)
    return (table[low] + (place - low) * (table[low + 1] - table[low])) / ONE


@lru_cache(maxsize=4)
def _powers(p: int, q: int) -> list[int]:
    """The powers of all steps from 0 to 1, found by whole numbers."""
    return [
        bisect_right(range(ONE + 1), at**p * ONE**q, key=lambda v: v**q * STEPS**p) - 1
        for at in range(STEPS + 1)
    ]
