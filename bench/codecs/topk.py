"""Top-k in its two common forms: whole floats with whole indexes, and SparseLoCo's packing."""

import numpy as np

from bench.codecs.base import Vector, pack_bits, unpack_bits


class TopK:
    """The k largest as float32 and uint32; at 10 % this is what ncrsh-Swarm describes."""

    name, fixed = "topk", False

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """Indexes, then values."""
        kept = max(1, min(vector.size, bits_budget // 64))
        where = np.argpartition(np.abs(vector), -kept)[-kept:]
        return where.astype("<u4").tobytes() + vector[where].astype("<f4").tobytes()

    def decode(self, wire: bytes, size: int) -> Vector:
        """The values at their places."""
        kept = len(wire) // 8
        vector = np.zeros(size, dtype=np.float32)
        where = np.frombuffer(wire, dtype="<u4", count=kept)
        vector[where] = np.frombuffer(wire, dtype="<f4", offset=4 * kept)
        return vector


class SparseLoCo:
    """Chunks of 4,096; of each the k largest (64 as published): 12-bit index, 2-bit value.

    The four values are the means of their bins for the whole vector (arXiv 2508.15706).
    """

    name, fixed = "sparseloco", False
    _chunk, _bits = 4096, 14

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """The four bin means, then index and bin of each kept number."""
        chunks = -(-vector.size // self._chunk)
        kept = max(1, (bits_budget - 128) // (self._bits * chunks))
        padded = np.zeros((chunks, self._chunk), dtype=np.float32)
        padded.reshape(-1)[: vector.size] = vector
        kept = min(kept, self._chunk)
        where = np.argpartition(np.abs(padded), self._chunk - kept, axis=1)[:, -kept:]
        values = np.take_along_axis(padded, where, axis=1).reshape(-1)
        large = np.abs(values) > np.abs(values).mean()
        bins = large.astype(np.int64) + 2 * (values < 0)
        means = [values[bins == b].mean() if (bins == b).any() else 0.0 for b in range(4)]
        numbers = where.reshape(-1).astype(np.int64) + self._chunk * bins
        return np.array(means, dtype="<f4").tobytes() + pack_bits(numbers, self._bits)

    def decode(self, wire: bytes, size: int) -> Vector:
        """Bin means at their places."""
        chunks = -(-size // self._chunk)
        means = np.frombuffer(wire, dtype="<f4", count=4)
        kept = (len(wire) - 16) * 8 // (self._bits * chunks)
        numbers = unpack_bits(wire[16:], self._bits, kept * chunks).reshape(chunks, kept)
        padded = np.zeros((chunks, self._chunk), dtype=np.float32)
        np.put_along_axis(padded, numbers % self._chunk, means[numbers // self._chunk], axis=1)
        return padded.reshape(-1)[:size]
