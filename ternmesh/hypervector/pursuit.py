"""A vector as a few codewords out of a seeded book: cleanup memory used as a vector quantiser.

The book holds, for each of `diagonals` seeded sign vectors, every row of a Walsh-Hadamard matrix
under these signs, each with both signs. A chunk of the vector names the codeword with the largest
inner product; further picks code what is left (matching pursuit, Mallat and Zhang 1993). All
chunks of a pick share one amplitude. Any subset of picks decodes: absent ones count as zero.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError
from ternmesh.generator import Key
from ternmesh.hypervector.rotation import hadamard, seeded_signs

BATCH = 32  # chunks that are searched side by side, so that memory stays bounded
COLUMNS = 512  # codewords that they are held against at a time

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Book:
    """The codewords for chunks of `span` coordinates; `order` and `diagonals` are powers of two."""

    span: int
    order: int
    diagonals: int

    @property
    def pick_bits(self) -> int:
        """Bits that name a codeword and its sign."""
        return (self.order * self.diagonals).bit_length()

    def signs(self, key: Key) -> NDArray[np.int8]:
        """The sign vectors, int8 [diagonals, span]."""
        return _signs(key, self.diagonals, self.order)[:, : self.span]

    def codewords(self, names: NDArray[np.int64], key: Key) -> Vector:
        """The codewords (entries -1 and 1) of names = (index * 2 + sign), float32 [n, span]."""
        diagonal, row = np.divmod(names >> 1, self.order)
        # Only the rows in question of the Walsh-Hadamard matrix, which may have a million entries.
        minus = np.bitwise_count(row[:, None] & np.arange(self.span)) + (names & 1)[:, None] & 1
        signed: Vector = (1 - 2 * minus.astype(np.float32)) * self.signs(key)[diagonal]
        return signed


def encode(
    vector: Vector, key: Key, book: Book, picks: int
) -> tuple[NDArray[np.int64], list[float]]:
    """Codeword names (int64 [picks, chunks]) and one amplitude for each pick."""
    if not np.isfinite(vector).all():
        raise CodecError("a vector with NaN or infinity has no codewords")
    rest = chunks(vector, book)
    names = np.empty((picks, len(rest)), dtype=np.int64)
    amplitudes = []
    for pick in range(picks):
        names[pick], gains = nearest(rest, key, book)
        amplitude = float(gains.mean(dtype=np.float64)) / book.span if gains.size else 0.0
        for start in range(0, len(rest), BATCH):
            part = slice(start, start + BATCH)
            rest[part] -= np.float32(amplitude) * book.codewords(names[pick, part], key)
        amplitudes.append(amplitude)
    return names, amplitudes


def decode(
    names: NDArray[np.int64], amplitudes: list[float], key: Key, book: Book, size: int
) -> Vector:
    """The vector (float32, `size`) that the given picks add up to."""
    total = np.zeros((names.shape[1], book.span), dtype=np.float32)
    for row, amplitude in zip(names, amplitudes, strict=True):
        total += np.float32(amplitude) * book.codewords(row, key)
    return total.reshape(-1)[:size]


def write_names(names: NDArray[np.int64], book: Book) -> bytes:
    """Codeword names as `pick_bits` each, lowest bit first."""
    bits = (names.reshape(-1, 1) >> np.arange(book.pick_bits)) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def read_names(data: bytes, book: Book, picks: int, count: int) -> NDArray[np.int64]:
    """The names (int64 [picks, count]) in `data`; WireError for another length."""
    size = picks * count * book.pick_bits
    if len(data) != -(-size // 8):
        raise WireError("coding", f"{picks * count} codewords do not fit {len(data)} bytes")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if bits[size:].any():
        raise WireError("coding", "bits are left over after the last codeword")
    names = bits[:size].reshape(picks, count, book.pick_bits).astype(np.int64)
    return names @ (1 << np.arange(book.pick_bits))


def chunks(vector: Vector, book: Book) -> Vector:
    """The vector (float32) in chunks, float32 [chunks, span], the last one padded with zeros."""
    padded = np.zeros((-(-vector.size // book.span), book.span), dtype=np.float32)
    padded.reshape(-1)[: vector.size] = vector
    return padded


def nearest(rest: Vector, key: Key, book: Book) -> tuple[NDArray[np.int64], Vector]:
    """For each chunk the name of the codeword with the largest inner product, and that product."""
    names = np.empty(len(rest), dtype=np.int64)
    gains = np.empty(len(rest), dtype=np.float32)
    for start in range(0, len(rest), BATCH):
        part = slice(start, start + BATCH)
        names[part], gains[part] = _nearest(rest[part], key, book)
    return names, gains


@lru_cache(maxsize=2)
def _signs(key: Key, diagonals: int, order: int) -> NDArray[np.int8]:
    signs = seeded_signs(key, diagonals * order).reshape(diagonals, order).astype(np.int8)
    signs.flags.writeable = False
    return signs


def _nearest(rest: Vector, key: Key, book: Book) -> tuple[NDArray[np.int64], Vector]:
    """`nearest` for a few chunks: a group of diagonals makes one matrix product large enough."""
    best = np.full(len(rest), -1.0, dtype=np.float32)
    names = np.zeros(len(rest), dtype=np.int64)
    every = np.arange(len(rest))
    rows, signs = hadamard(book.order)[:, : book.span], book.signs(key)
    group = max(1, COLUMNS // book.order)
    for first in range(0, book.diagonals, group):
        words = (signs[first : first + group, None] * rows).reshape(-1, book.span)
        products = rest @ words.T
        high, low = products.argmax(axis=1), products.argmin(axis=1)
        is_minus = -products[every, low] > products[every, high]
        column = np.where(is_minus, low, high)
        size = np.abs(products[every, column])
        better = np.flatnonzero(size > best)
        best[better] = size[better]
        names[better] = (first * book.order + column[better]) * 2 + is_minus[better]
    return names, best
