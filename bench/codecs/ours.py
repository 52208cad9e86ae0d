"""Our stages as codecs of the same interface: what packets carry, pursuit, and the mixture."""

import struct
from dataclasses import dataclass

import numpy as np

from bench.codecs.base import SHARED, Vector
from ternmesh.hypervector import levels, pursuit, trellis
from ternmesh.hypervector.encoder import Slicing, decode_slice, encode_vector, gather, scatter
from ternmesh.hypervector.permutation import order
from ternmesh.hypervector.rotation import rotate, unrotate
from ternmesh.hypervector.scale import to_vector
from ternmesh.wire import share

_MODEL = bytes(32)
_HALVINGS = 14


class Wire:
    """What packets carry: share bodies, each sparse or by codebook, behind their lengths."""

    name, fixed = "wire", False
    _room = 200
    _length = struct.Struct("<H")

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """The bodies at the share of zeros that meets the budget."""
        low, high, best = 1, 999, b""
        while low <= high:
            zeros = (low + high) // 2
            wire = self._bodies(vector, zeros / 1000, bits_budget // 8)
            if 8 * len(wire) > bits_budget:
                low = zeros + 1
            else:
                high, best = zeros - 1, wire
        return best

    def _bodies(self, vector: Vector, zeros: float, bytes_max: int) -> bytes:
        head = self._length.size + share.HEAD_SIZE
        slicing = self._slicing(vector.size, -(-bytes_max // (self._room + head)))
        room = min(self._room, bytes_max // slicing.count - head)
        places = order(_MODEL, 0, vector.size)
        slices = encode_vector(vector, places, slicing, zeros, max(room, 2))
        bodies = [share.write_share(0, item) for item in slices]
        return b"".join(self._length.pack(len(body)) + body for body in bodies)

    def decode(self, wire: bytes, size: int) -> Vector:
        """Trits times scales, put back to their places."""
        slices, at = [], 0
        while at < len(wire):
            (length,) = self._length.unpack_from(wire, at)
            at += self._length.size + length
            slices.append(share.read_share(wire[at - length : at]).slice)
        slicing = self._slicing(size, len(slices))
        found = gather([(s.index, *decode_slice(s, slicing)) for s in slices], slicing)
        return to_vector(scatter(found.units(), order(_MODEL, 0, size)))

    @staticmethod
    def _slicing(size: int, count: int) -> Slicing:
        return Slicing(size, -(-size // count))


class Pursuit:
    """One codeword of a seeded book for each chunk of the rotated vector; chunks fit the budget."""

    name, fixed = "pursuit", False
    _pick_bits = 17
    _head = struct.Struct("<fH")

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """Amplitude, span, and the codewords' names."""
        chunks = (bits_budget - 8 * self._head.size - 7) // self._pick_bits
        book = self._book(-(-vector.size // chunks))
        names, amplitudes = pursuit.encode(rotate(vector, SHARED), SHARED, book, 1)
        head = self._head.pack(amplitudes[0], book.span)
        return head + pursuit.write_names(names, book)

    def decode(self, wire: bytes, size: int) -> Vector:
        """Codewords times the amplitude, rotated back."""
        amplitude, span = self._head.unpack_from(wire)
        book = self._book(span)
        names = pursuit.read_names(wire[self._head.size :], book, 1, -(-size // span))
        return unrotate(pursuit.decode(names, [amplitude], SHARED, book, size), SHARED)

    def _book(self, span: int) -> pursuit.Book:
        order_bits = max(1, (span - 1).bit_length())
        return pursuit.Book(span, 1 << order_bits, 1 << max(0, self._pick_bits - 1 - order_bits))


@dataclass(frozen=True, slots=True)
class _Split:
    """One way to spend the budget: a sparse layer, then a trellis of 1 / step bits a number."""

    sparse: levels.Levels | None
    step: int  # 0: no trellis
    expected: float


class Mixture:
    """Sparse levels for what stands out, then rotation and a trellis for what is left.

    How many bits go where is decided for each vector by the expected error, with either part left
    out where it does not pay.
    """

    name, fixed = "mixture", False
    _head = struct.Struct("<If")  # with a trellis: bytes of the sparse part, scale of the path

    def __init__(self, window: int = trellis.WINDOW) -> None:
        self._window = window

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """The head, the sparse part, the path."""
        split = self.choose(vector, bits_budget - 8)
        sparse = levels.encode(split.sparse) if split.sparse else b""
        step = bytes([split.step])
        if not split.step:
            return step + sparse
        rest = vector - split.sparse.vector() if split.sparse else vector
        path, scale = trellis.encode(rotate(rest, SHARED), SHARED, split.step, self._window)
        return step + self._head.pack(len(sparse), scale) + sparse + path

    def decode(self, wire: bytes, size: int) -> Vector:
        """The sum of both parts."""
        step, body = wire[0], wire[1:]
        if not step:
            return levels.decode(body, size).vector()
        length, scale = self._head.unpack_from(body)
        sparse, path = body[self._head.size :][:length], body[self._head.size + length :]
        rest = trellis.decode(path, SHARED, step, size, self._window)
        vector: Vector = np.float32(scale) * unrotate(rest, SHARED)
        return vector + levels.decode(sparse, size).vector() if length else vector

    def choose(self, vector: Vector, bits: int) -> _Split:
        """The split with the least expected error."""
        path_bits = bits - 8 * self._head.size
        alone = -(-vector.size // path_bits)
        best = _Split(None, alone, _expected(alone))
        for step in (0, *_steps(alone)):
            left = path_bits - 8 * -(-vector.size // (8 * step)) if step else bits
            sparse = fit_levels(vector, left) if left > 200 else None
            if sparse is not None:
                share = 1 - _error(vector, sparse) / _squared(vector)
                gain = share + (1 - share) * (_expected(step) if step else 0.0)
                if gain > best.expected:
                    best = _Split(sparse, step, gain)
        return best


def fit_levels(vector: Vector, bits: int) -> levels.Levels | None:
    """The best levels within `bits`, thresholds by bisection for a few shapes; None if none fit."""
    best, least = None, _squared(vector)
    magnitudes = np.abs(vector)
    top = float(magnitudes.max())
    # Each value takes two bits at least, so no threshold below this one can fit.
    most = min(vector.size, bits // 2)
    magnitudes.partition(vector.size - most)
    floor = float(magnitudes[vector.size - most])
    del magnitudes
    for layers, step in ((1, 1.0), (2, 1.0), (2, 1.5), (3, 1.0)):
        low, high, found = max(floor, top * 1e-4), top, None
        for _ in range(_HALVINGS):
            threshold = (low * high) ** 0.5
            tried = levels.quantise(vector, threshold, step * threshold, layers)
            if len(levels.encode(tried)) * 8 > bits:
                low = threshold
            else:
                high, found = threshold, tried
        if found is not None:
            error = _error(vector, found)
            if error < least:
                best, least = found, error
    return best


def _error(vector: Vector, found: levels.Levels) -> float:
    """The squared error of levels, worked out where they are not zero."""
    where = np.flatnonzero(found.values)
    kept = vector[where]
    return _squared(vector) - _squared(kept) + _squared(kept - found.vector()[where])


def _squared(vector: Vector) -> float:
    return float(np.dot(vector, vector))


def _steps(alone: int) -> list[int]:
    """Steps worth a try where `alone` would spend all bits on the trellis."""
    return [step for step in (2, 3, 4, 6, 8, 12, 16) if alone < step <= 8 * alone][:4]


def _expected(step: int) -> float:
    """The share of the energy of a Gaussian vector that a path captures (measured, window 13)."""
    return float((0.965 - 0.012 * np.log2(step)) * (1 - 2.0 ** (-2 / step)))
