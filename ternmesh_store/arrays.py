"""Arrays as the raw little-endian bytes that stores keep: no pickle, no header."""

import numpy as np
from numpy.typing import NDArray


def write_floats(vector: NDArray[np.float32]) -> bytes:
    """float32 as bytes."""
    return vector.astype("<f4").tobytes()


def read_floats(data: bytes) -> NDArray[np.float32]:
    """The float32 of `write_floats`, as an array of its own; ValueError for what is none."""
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("a vector has NaN or infinity")
    return vector


def write_fixed(vector: NDArray[np.int32]) -> bytes:
    """int32 as bytes."""
    return vector.astype("<i4").tobytes()


def read_fixed(data: bytes) -> NDArray[np.int32]:
    """The int32 of `write_fixed`, as an array of its own; ValueError for another length."""
    return np.frombuffer(data, dtype="<i4").astype(np.int32)
