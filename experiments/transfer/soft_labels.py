"""Soft labels: probabilities in eighths, at most three of a row nonzero."""

import numpy as np
from numpy.typing import NDArray

UNITS = 8  # a probability is a number of eighths
KEPT = 3  # classes with a probability, at most


def quantise(probabilities: NDArray[np.floating]) -> NDArray[np.float32]:
    """The nearest soft labels of probabilities [rows, classes], by largest remainders."""
    kept = np.argsort(-probabilities, axis=1, kind="stable")[:, :KEPT]
    largest = np.take_along_axis(probabilities, kept, axis=1)
    exact = largest / largest.sum(axis=1, keepdims=True) * UNITS
    parts = np.floor(exact)
    missing = UNITS - parts.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(parts - exact, axis=1, kind="stable"), axis=1)
    soft = np.zeros(probabilities.shape, dtype=np.float32)
    np.put_along_axis(soft, kept, (parts + (rank < missing)).astype(np.float32) / UNITS, axis=1)
    return soft
