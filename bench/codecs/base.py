"""What a codec is here: a vector and a budget in, bytes out, and the vector back from the bytes."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ternmesh.generator import derive_key

Vector = NDArray[np.float32]
SHARED = derive_key("bench", b"codec")  # the seed that both ends know: no bytes


class Codec(Protocol):
    """Encodes a float32 vector; everything the decoder needs but the length is in the bytes."""

    name: str
    fixed: bool  # it has one rate of its own and takes no budget

    def encode(self, vector: Vector, bits_budget: int, rng: np.random.Generator) -> bytes:
        """The wire bytes, at most `bits_budget` bits unless the rate is fixed."""
        ...

    def decode(self, wire: bytes, size: int) -> Vector:
        """The vector of `size` numbers that the bytes stand for."""
        ...


def captured(vector: Vector, decoded: Vector) -> float:
    """The share of the energy that the decoded vector explains, at its optimal scale (0 to 1).

    The optimal scale is granted to every codec, so a biased or unbiased scale makes no difference.
    """
    x, y = vector.astype(np.float64), decoded.astype(np.float64)
    energy = float(np.dot(y, y))
    return float(np.dot(x, y)) ** 2 / (energy * float(np.dot(x, x))) if energy else 0.0


def pack_bits(numbers: NDArray[np.int64], width: int) -> bytes:
    """Numbers of `width` bits each, lowest bit first."""
    bits = (numbers[:, None] >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def unpack_bits(data: bytes, width: int, count: int) -> NDArray[np.int64]:
    """The inverse of `pack_bits`."""
    raw = np.frombuffer(data, dtype=np.uint8)
    bits = np.unpackbits(raw, count=count * width, bitorder="little").reshape(count, width)
    numbers: NDArray[np.int64] = bits.astype(np.int64) @ (1 << np.arange(width))
    return numbers
