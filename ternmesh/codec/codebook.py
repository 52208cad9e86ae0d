"""A slice at less than a bit a number: the nearest of 65,536 seeded hypervectors for each chunk.

Codewords are the rows of Walsh-Hadamard matrices under seeded signs, each with both signs. The name
of a codeword is its number among all of them, 16 bits: all that is sent of a chunk is the name of
the codeword with the largest inner product (the first pick of matching pursuit, Mallat and Zhang
1993; in hyperdimensional computing an item memory, and its cleanup). What arrives is a dense
ternary vector with one scale, like any other slice. The energy that a codeword captures does not
depend on how the values are distributed, so codewords beat sparse coding where no few values are
large: they capture about 1.1 times a vector's energy per bit, ternary coding of such values half of
that.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.exact import wholes
from ternmesh.generator import derive_key, seeded_signs
from ternmesh.types import Trits, Vector

NAME_BITS = 16
NAME_BYTES = 2
SPAN_MAX = 1024  # longer chunks would need matrices that a small board cannot hold
BATCH = 32  # chunks that are searched together, so that memory stays bounded
COLUMNS = 512  # codewords that they are compared with at a time
_KEY = derive_key("codebook")


@dataclass(frozen=True, slots=True)
class Book:
    """The codewords for chunks of `span` coordinates: rows of `diagonals` signed matrices.

    `order`, the size of the Walsh-Hadamard matrix, and `diagonals` are powers of two.
    """

    span: int
    order: int
    diagonals: int

    def signs(self) -> NDArray[np.int8]:
        """The sign vectors, int8 [diagonals, span]."""
        return _signs(self.diagonals, self.order)[:, : self.span]

    def codewords(self, names: NDArray[np.int64]) -> Vector:
        """The codewords (entries -1 and 1) of names = (index * 2 + sign), float32 [n, span]."""
        diagonal, row = np.divmod(names >> 1, self.order)
        sign = 1 - 2 * (names & 1).astype(np.float32)
        # Only the rows that are named: the whole Walsh-Hadamard matrix may have a million entries.
        return _hadamard(row, self.span) * self.signs()[diagonal] * sign[:, None]

    def nearest(self, chunks: Vector) -> tuple[NDArray[np.int64], Vector]:
        """For each chunk (float32 [n, span]) the name of the codeword with the largest inner
        product, the lowest of equals, and that product (float32 [n]). Memory grows with n.

        Products of whole numbers below 2**24 / span are exact."""
        best = np.full(len(chunks), -1.0, dtype=np.float32)
        names = np.zeros(len(chunks), dtype=np.int64)
        every = np.arange(len(chunks))
        rows, signs = _hadamard(np.arange(self.order), self.span), self.signs()
        group = max(1, COLUMNS // self.order)  # of diagonals, for a large enough matrix product
        for first in range(0, self.diagonals, group):
            words = (signs[first : first + group, None] * rows).reshape(-1, self.span)
            products = chunks @ words.T
            high, low = products.argmax(axis=1), products.argmin(axis=1)
            is_minus = -products[every, low] > products[every, high]
            column = np.where(is_minus, low, high)
            size = np.abs(products[every, column])
            better = np.flatnonzero(size > best)
            best[better] = size[better]
            names[better] = (first * self.order + column[better]) * 2 + is_minus[better]
        return names, best


def expected_share(size: int, size_max: int) -> float:
    """About how much of the energy of `size` values names of `size_max` bytes capture (measured).

    0 where there is no such book: chunks would be longer than `SPAN_MAX`, or not longer than what
    their signs alone would take.
    """
    names = size_max // NAME_BYTES
    span = size / names if names else np.inf
    return 18.5 / (span + 8) if NAME_BITS < span <= SPAN_MAX else 0.0


def encode(values: Vector, size_max: int) -> tuple[float, bytes, Trits]:
    """The scale of the codewords nearest to `values` (float32), their names, and their trits.

    The names take at most `size_max` bytes. Only where `expected_share` is not 0.
    """
    book = _book(values.size, size_max // NAME_BYTES)
    numbers, unit = wholes(values, 24 - (book.span - 1).bit_length())
    chunks = np.zeros((-(-values.size // book.span), book.span), dtype=np.float32)
    chunks.reshape(-1)[: values.size] = numbers
    nearest = [book.nearest(chunks[at : at + BATCH]) for at in range(0, len(chunks), BATCH)]
    names, products = map(np.concatenate, zip(*nearest, strict=True))
    scale = float(products.sum(dtype=np.float64)) * unit / values.size
    return scale, names.astype("<u2").tobytes(), _trits(book, names, values.size)


def decode(data: bytes, size: int) -> Trits:
    """The trits (int8, `size`) that the names in `data` stand for; WireError."""
    count = len(data) // NAME_BYTES
    book = _book(size, count) if count and size else None
    if book is None or book.span > SPAN_MAX or len(data) != NAME_BYTES * -(-size // book.span):
        raise WireError("coding", f"{len(data)} bytes of names do not make a slice of {size}")
    return _trits(book, np.frombuffer(data, dtype="<u2").astype(np.int64), size)


def _trits(book: Book, names: NDArray[np.int64], size: int) -> Trits:
    return book.codewords(names).reshape(-1)[:size].astype(np.int8)


def _book(size: int, names: int) -> Book:
    """The book for `size` values in at most `names` chunks of the same length."""
    longest = -(-size // names)
    chunks = -(-size // longest)
    span = -(-size // chunks)
    order_bits = max(1, (span - 1).bit_length())
    return Book(span, 1 << order_bits, 1 << max(0, NAME_BITS - 1 - order_bits))


@lru_cache(maxsize=2)
def _signs(diagonals: int, order: int) -> NDArray[np.int8]:
    signs = seeded_signs(_KEY, diagonals * order).reshape(diagonals, order).astype(np.int8)
    signs.flags.writeable = False
    return signs


def _hadamard(rows: NDArray[np.int64], span: int) -> Vector:
    """The begin of these rows of a Walsh-Hadamard matrix: -1 and 1, float32 [n, span]."""
    parity = np.bitwise_count(rows[:, None] & np.arange(span)) & 1
    matrix: Vector = 1 - 2 * parity.astype(np.float32)
    return matrix
