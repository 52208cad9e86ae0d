"""Soft labels: probabilities in eighths, at most three of a row, and their size in a code."""

from collections import Counter
from math import log2, perm

import numpy as np
from numpy.typing import NDArray

UNITS = 8  # a probability is a number of eighths
KEPT = 3  # classes with a probability, at most
SHAPES = 10  # ways to divide eight eighths among at most three classes

Units = NDArray[np.uint8]
"""Soft labels: uint8 [rows, classes], each row with sum UNITS and at most KEPT nonzeros."""


def quantise(probabilities: NDArray[np.floating]) -> Units:
    """The nearest soft labels of probabilities [rows, classes], by largest remainders."""
    kept = np.argsort(-probabilities, axis=1, kind="stable")[:, :KEPT]
    largest = np.take_along_axis(probabilities, kept, axis=1)
    exact = largest / largest.sum(axis=1, keepdims=True) * UNITS
    parts = np.floor(exact)
    missing = UNITS - parts.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(parts - exact, axis=1, kind="stable"), axis=1)
    units = np.zeros(probabilities.shape, dtype=np.uint8)
    np.put_along_axis(units, kept, (parts + (rank < missing)).astype(np.uint8), axis=1)
    return units


def to_probabilities(units: Units) -> NDArray[np.float32]:
    """The probabilities that soft labels stand for, float32 [rows, classes]."""
    return units.astype(np.float32) / np.float32(UNITS)


def code_bytes(units: Units) -> int:
    """The bytes of an arithmetic code: shapes by counts that adapt, classes of equal chance."""
    bits, counts = 0.0, Counter[bytes]()
    for row, total in zip(units, range(SHAPES, SHAPES + 2 * len(units), 2), strict=True):
        shape = np.sort(row[row > 0]).tobytes()
        bits += log2(total / (1 + 2 * counts[shape])) + log2(perm(len(row), len(shape)))
        counts[shape] += 1
    return -(-int(bits + 1) // 8)
