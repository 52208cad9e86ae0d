"""Numbers as they are, in 32, 16 or 8 bits."""

import numpy as np

from bench.codecs.base import Vector


class Float:
    """IEEE numbers of `dtype`."""

    fixed = True

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self._dtype = name, dtype

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """All numbers."""
        return vector.astype(self._dtype).tobytes()

    def decode(self, wire: bytes, size: int) -> Vector:
        """All numbers."""
        return np.frombuffer(wire, dtype=self._dtype, count=size).astype(np.float32)


class Blockwise8:
    """A signed byte a number and one float32 maximum a block of 4,096 (Dettmers et al., 2022)."""

    name, fixed = "blockwise8", True
    _block = 4096

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:  # noqa: ARG002
        """The maxima, then the bytes."""
        blocks = -(-vector.size // self._block)
        padded = np.zeros((blocks, self._block), dtype=np.float32)
        padded.reshape(-1)[: vector.size] = vector
        tops = np.abs(padded).max(axis=1)
        codes = np.rint(padded * (127 / np.where(tops > 0, tops, 1))[:, None]).astype(np.int8)
        return bytes(tops.astype("<f4").tobytes() + codes.reshape(-1)[: vector.size].tobytes())

    def decode(self, wire: bytes, size: int) -> Vector:
        """Bytes times maxima."""
        blocks = -(-size // self._block)
        tops = np.frombuffer(wire, dtype="<f4", count=blocks)
        codes = np.frombuffer(wire, dtype=np.int8, offset=4 * blocks).astype(np.float32)
        units = np.repeat(tops / np.float32(127), self._block)[:size]
        return (codes * units).astype(np.float32)
