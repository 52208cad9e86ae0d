"""Codecs in a seeded rotation: EDEN at one bit and less, and zeroth-order scalars."""

import struct

import numpy as np
from numpy.typing import NDArray

from bench.codecs.base import SHARED, Vector
from ternmesh.hypervector.permutation import permute
from ternmesh.hypervector.rotation import rotate, unrotate


def _places(size: int, kept: int) -> NDArray[np.int64]:
    """The first `kept` places of a seeded permutation: both ends know them."""
    return permute(SHARED, np.arange(kept, dtype=np.uint32), size)


class Eden:
    """The signs of the rotated vector; under one bit a number, of a seeded subset (2108.08842)."""

    name, fixed = "eden", False

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """A float32 scale and one bit for each number of the subset."""
        kept = min(vector.size, bits_budget - 72)
        part = rotate(vector, SHARED)[_places(vector.size, kept)]
        scale = struct.pack("<f", np.abs(part).mean())
        return scale + kept.to_bytes(4, "little") + np.packbits(part < 0).tobytes()

    def decode(self, wire: bytes, size: int) -> Vector:
        """The signs in their places, rotated back."""
        kept = int.from_bytes(wire[4:8], "little")
        bits = np.unpackbits(np.frombuffer(wire, dtype=np.uint8, offset=8), count=kept)
        rotated = np.zeros(size, dtype=np.float32)
        rotated[_places(size, kept)] = 1 - 2 * bits.astype(np.float32)
        return unrotate(rotated, SHARED) * np.float32(struct.unpack_from("<f", wire)[0])


class ZerothOrder:
    """Projections on shared random directions, 8 bits each, as FedKSeed or SeedFlood send them.

    The directions here are orthogonal (rows of a seeded rotation) and the projections exact: the
    best that random directions can do; real ones come from noisy loss differences.
    """

    name, fixed = "zeroth_order", False

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """A float32 unit and one signed byte for each direction."""
        kept = min(vector.size, (bits_budget - 32) // 8)
        part = rotate(vector, SHARED)[_places(vector.size, kept)]
        top = max(float(np.abs(part).max()), 1e-30)
        codes = np.rint(part * (127 / top)).astype(np.int8)
        return bytes(struct.pack("<f", top / 127) + codes.tobytes())

    def decode(self, wire: bytes, size: int) -> Vector:
        """The projections in their places, rotated back."""
        codes = np.frombuffer(wire, dtype=np.int8, offset=4).astype(np.float32)
        rotated = np.zeros(size, dtype=np.float32)
        rotated[_places(size, codes.size)] = codes
        return unrotate(rotated, SHARED) * np.float32(struct.unpack_from("<f", wire)[0])
