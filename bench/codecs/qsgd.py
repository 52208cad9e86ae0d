"""QSGD: stochastic levels of the vector's norm (1610.02132), in our entropy code."""

import struct

import numpy as np

from bench.codecs.base import Vector
from ternmesh.hypervector.coding import VOTE_MAX, Coded, decode, encode

_HEAD = struct.Struct("<fBI")
_HALVINGS = 18


class Qsgd:
    """The number of levels is the largest that the budget allows."""

    name, fixed = "qsgd", False

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:
        """A float32 unit, coding, count, and the coded levels."""
        noise = rng.random(vector.size, dtype=np.float32)
        norm = float(np.linalg.norm(vector)) or 1.0
        low, high = norm * 1e-5, norm
        best = b""
        for _ in range(_HALVINGS):
            unit = (low * high) ** 0.5
            levels = np.minimum(np.floor(np.abs(vector) / unit + noise), VOTE_MAX)
            coded = encode((levels * np.sign(vector)).astype(np.int8))
            wire = _HEAD.pack(unit, coded.coding, coded.count) + coded.data
            if len(wire) * 8 > bits_budget:
                low = unit
            else:
                high, best = unit, wire
        return best

    def decode(self, wire: bytes, size: int) -> Vector:
        """Levels times the unit."""
        unit, coding, count = _HEAD.unpack_from(wire)
        values = decode(Coded(count, coding, wire[_HEAD.size :]), size)
        return values.astype(np.float32) * np.float32(unit)
