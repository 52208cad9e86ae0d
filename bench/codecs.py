"""What packets carry, and published codecs, behind one interface.

Each takes a float32 vector and a budget in bits, and returns bytes from which the vector of a known
length is decoded. Seeds that both ends share cost nothing.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec.encoder import Slicing, decode_slice, encode_vector, gather, scatter
from ternmesh.codec.permutation import order, permute
from ternmesh.codec.scale import to_vector
from ternmesh.generator import derive_key, seeded_signs
from ternmesh.wire.update import CHUNK_HEAD_SIZE, read_chunk, write_chunk

Vector = NDArray[np.float32]
SHARED = derive_key("bench", b"codec")
MODEL_HASH = bytes(32)
BODY_BYTES = 200  # of a chunk on the wire
LENGTH = struct.Struct("<H")
CHUNK, CHUNK_BITS = 4096, 14  # of SparseLoCo: 12 bits of index and 2 of value


@dataclass(frozen=True, slots=True)
class Codec:
    """`encode` takes a vector and the most bits; `decode` takes the bytes and the vector's size."""

    name: str
    encode: Callable[[Vector, int], bytes]
    decode: Callable[[bytes, int], Vector]


def captured(vector: Vector, decoded: Vector) -> float:
    """The share of the energy that the decoded vector explains at its optimal scale (0 to 1)."""
    x, y = vector.astype(np.float64), decoded.astype(np.float64)
    energy = float(np.dot(y, y))
    return float(np.dot(x, y)) ** 2 / (energy * float(np.dot(x, x))) if energy else 0.0


def encode_wire(vector: Vector, bits: int) -> bytes:
    """Chunk bodies as packets carry them, behind their lengths, with as few zeros as fit."""
    low, high, best = 1, 999, b""
    while low <= high:
        zeros = (low + high) // 2
        wire = _bodies(vector, zeros / 1000, bits // 8)
        if 8 * len(wire) > bits:
            low = zeros + 1
        else:
            high, best = zeros - 1, wire
    return best


def _bodies(vector: Vector, zeros: float, bytes_max: int) -> bytes:
    head = LENGTH.size + CHUNK_HEAD_SIZE
    count = -(-bytes_max // (BODY_BYTES + head))
    slicing = Slicing(vector.size, -(-vector.size // count))
    room = min(BODY_BYTES, bytes_max // slicing.count - head)
    places = order(MODEL_HASH, 0, vector.size)
    slices = encode_vector(vector, places, slicing, zeros, max(room, 2))[0]
    bodies = [write_chunk(0, item) for item in slices]
    return b"".join(LENGTH.pack(len(body)) + body for body in bodies)


def decode_wire(wire: bytes, size: int) -> Vector:
    """Trits times scales, in the vector's order."""
    slices, at = [], 0
    while at < len(wire):
        (length,) = LENGTH.unpack_from(wire, at)
        at += LENGTH.size + length
        slices.append(read_chunk(wire[at - length : at]).slice)
    slicing = Slicing(size, -(-size // len(slices)))
    found = gather([(s.index, *decode_slice(s, slicing)) for s in slices], slicing)
    return to_vector(scatter(found.delta_q24(), order(MODEL_HASH, 0, size)))


def encode_sparseloco(vector: Vector, bits: int) -> bytes:
    """The largest of each 4,096 numbers in two bits each (arXiv 2508.15706).

    The four values are the means of their bins over the whole vector; they come first.
    """
    padded = _in_chunks(vector)
    kept = min(max(1, (bits - 128) // (CHUNK_BITS * len(padded))), CHUNK)
    where = np.argpartition(np.abs(padded), CHUNK - kept, axis=1)[:, -kept:]
    values = np.take_along_axis(padded, where, axis=1).reshape(-1)
    large = np.abs(values) > np.abs(values).mean()
    bins = large.astype(np.int64) + 2 * (values < 0)
    means = [values[bins == b].mean() if (bins == b).any() else 0.0 for b in range(4)]
    numbers = where.reshape(-1).astype(np.int64) + CHUNK * bins
    return np.array(means, dtype="<f4").tobytes() + pack_bits(numbers, CHUNK_BITS)


def decode_sparseloco(wire: bytes, size: int) -> Vector:
    """The means of the bins in their places."""
    padded = _in_chunks(np.zeros(size, dtype=np.float32))
    means = np.frombuffer(wire, dtype="<f4", count=4)
    kept = (len(wire) - 16) * 8 // (CHUNK_BITS * len(padded))
    numbers = unpack_bits(wire[16:], CHUNK_BITS, kept * len(padded)).reshape(-1, kept)
    np.put_along_axis(padded, numbers % CHUNK, means[numbers // CHUNK], axis=1)
    return padded.reshape(-1)[:size]


def _in_chunks(vector: Vector) -> Vector:
    padded = np.zeros((-(-vector.size // CHUNK), CHUNK), dtype=np.float32)
    padded.reshape(-1)[: vector.size] = vector
    return padded


def encode_eden(vector: Vector, bits: int) -> bytes:
    """The signs of the rotated vector, or of a seeded subset of it, after a scale (2108.08842).

    The rotation is a cosine transform under seeded signs; theirs is a Hadamard transform.
    """
    from scipy.fft import dct

    kept = min(vector.size, bits - 72)
    rotated = dct(seeded_signs(SHARED, vector.size) * vector, norm="ortho")
    part = rotated[_subset(vector.size, kept)]
    head = struct.pack("<fI", np.abs(part).mean(), kept)
    return head + np.packbits(part < 0).tobytes()


def decode_eden(wire: bytes, size: int) -> Vector:
    """The signs times the scale in their places, rotated back."""
    from scipy.fft import idct

    scale, kept = struct.unpack_from("<fI", wire)
    signs = np.unpackbits(np.frombuffer(wire, dtype=np.uint8, offset=8), count=kept)
    rotated = np.zeros(size, dtype=np.float32)
    rotated[_subset(size, kept)] = scale * (1 - 2 * signs.astype(np.float32))
    vector: Vector = seeded_signs(SHARED, size) * idct(rotated, norm="ortho")
    return vector


def _subset(size: int, kept: int) -> NDArray[np.int64]:
    return permute(SHARED, np.arange(kept, dtype=np.uint32), size)


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


WIRE = Codec("wire", encode_wire, decode_wire)
PEERS = (
    Codec("sparseloco", encode_sparseloco, decode_sparseloco),
    Codec("eden", encode_eden, decode_eden),
)
