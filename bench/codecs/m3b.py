"""M3b as published: the 30 % largest as signs, two bits a number, base64 (Resonance, 2025)."""

import base64
import struct

import numpy as np

from bench.codecs.base import Vector, pack_bits, unpack_bits


class M3b:
    """Dense two-bit trits as text; its zeros save nothing."""

    name, fixed = "m3b", True

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """A float32 scale and the codes 0, 1 (plus), 2 (minus)."""
        magnitudes = np.abs(vector)
        kept = magnitudes > np.quantile(magnitudes, 0.7)
        codes = np.where(kept, np.where(vector > 0, 1, 2), 0).astype(np.int64)
        scale = struct.pack("<f", magnitudes[kept].mean() if kept.any() else 0.0)
        return base64.b64encode(scale + pack_bits(codes, 2))

    def decode(self, wire: bytes, size: int) -> Vector:
        """Signs times the scale."""
        data = base64.b64decode(wire)
        codes = unpack_bits(data[4:], 2, size)
        values = np.array([0.0, 1.0, -1.0, 0.0], dtype=np.float32)[codes]
        return values * np.float32(struct.unpack_from("<f", data)[0])
