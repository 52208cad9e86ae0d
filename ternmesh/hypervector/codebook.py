"""A slice at less than a bit a number: the nearest of 65,536 seeded hypervectors for each chunk.

Codewords are the rows of Walsh-Hadamard matrices under seeded signs, each with both signs; a chunk
names the one with the largest inner product (the first pick of matching pursuit, Mallat and Zhang
1993; a cleanup memory, in the words of hyperdimensional computing). What arrives is a dense ternary
vector with one scale, like any other slice. A chunk's best codeword does not care how its values
are distributed, so it beats sparse coding wherever no few values stand out: it captures about 1.1
times a vector's energy per bit, where ternary coding of such values captures half of that.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.generator import derive_key
from ternmesh.hypervector import pursuit
from ternmesh.hypervector.pursuit import Book, Vector

NAME_BITS = 16
NAME_BYTES = 2
SPAN_MAX = 1024  # longer chunks would need matrices that a small board cannot hold
_KEY = derive_key("codebook")


def expected_share(size: int, size_max: int) -> float:
    """About how much of the energy of `size` values names of `size_max` bytes capture (measured).

    0 where there is no such book: chunks would be longer than `SPAN_MAX`, or not longer than what
    their signs alone would take.
    """
    names = size_max // NAME_BYTES
    span = size / names if names else np.inf
    return 18.5 / (span + 8) if NAME_BITS < span <= SPAN_MAX else 0.0


def encode(values: Vector, size_max: int) -> tuple[float, bytes]:
    """The scale of the codewords nearest to `values` (float32), and at most `size_max` bytes.

    Only where `expected_share` is not 0.
    """
    book = _book(values.size, size_max // NAME_BYTES)
    names, gains = pursuit.nearest(pursuit.chunks(values, book), _KEY, book)
    return float(gains.sum(dtype=np.float64)) / values.size, names.astype("<u2").tobytes()


def decode(data: bytes, size: int) -> NDArray[np.int8]:
    """The trits (int8, `size`) that the names in `data` stand for; WireError."""
    count = len(data) // NAME_BYTES
    book = _book(size, count) if count and size else None
    if book is None or book.span > SPAN_MAX or len(data) != NAME_BYTES * -(-size // book.span):
        raise WireError("coding", f"{len(data)} bytes of names do not make a slice of {size}")
    names = np.frombuffer(data, dtype="<u2").astype(np.int64)
    return book.codewords(names, _KEY).reshape(-1)[:size].astype(np.int8)


def _book(size: int, names: int) -> Book:
    """The book for `size` values in at most `names` chunks of the same length."""
    span = -(-size // -(-size // -(-size // names)))
    order_bits = max(1, (span - 1).bit_length())
    return Book(span, 1 << order_bits, 1 << max(0, NAME_BITS - 1 - order_bits))
