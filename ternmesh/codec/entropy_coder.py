"""The entropy coder of one chunk: trits, most of them zero, to bytes and back.

A chunk takes one of three forms, which its `coding` byte names.

- Sparse: the gaps between nonzeros in Golomb-Rice code (Rice and Plaunt 1971), split into three
  streams: unary quotients, remainders, signs. Each direction is a few array operations here and
  three bit pointers on a microcontroller. The code stays within 1.3 % of the entropy of ternary
  vectors from 50 % to 99.5 % zeros.
- Dense: five trits to a byte, for chunks with more than about 60 % nonzeros.
- Codebook: indices of dense codewords, for low rates (codebook.py).

Bits are numbered from the least significant bit of each byte.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec import codebook
from ternmesh.errors import WireError
from ternmesh.types import Trits

RICE_MAX = 15  # the low four bits of `coding` hold the Rice parameter of the sparse form
DENSE = 0x80
CODEBOOK = 0xC0

Bits = NDArray[np.uint8]  # one bit an element
Integers = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Coded:
    """The code of one chunk."""

    count: int  # of nonzeros
    coding: int  # the form and its parameter
    data: bytes


def encode_trits(values: Trits) -> Coded:
    """The shorter of the sparse and the dense code of a chunk."""
    where = np.flatnonzero(values != 0)
    nonzeros = values[where]
    gaps = np.diff(where, prepend=-1).astype(np.int32) - 1
    rice = best_parameter(gaps)
    streams = [unary(gaps >> rice), _low_bits(gaps, rice), (nonzeros < 0).view(np.uint8)]
    data = np.packbits(np.concatenate(streams), bitorder="little").tobytes()
    if -(-values.size // 5) < len(data):
        return Coded(where.size, DENSE, pack_trits(values))
    return Coded(where.size, rice, data)


def decode_trits(coded: Coded, size: int) -> Trits:
    """The chunk of `size` values; WireError unless the bytes are a complete, canonical code."""
    if coded.count > size:
        raise WireError("coding", f"{coded.count} nonzeros do not fit in {size} places")
    if coded.coding == DENSE:
        values = unpack_trits(coded.data, size)
        if np.count_nonzero(values) != coded.count:
            raise WireError("coding", "the number of nonzeros differs from the chunk's count")
        return values
    if coded.coding == CODEBOOK:
        if coded.count != size:
            raise WireError("coding", "codewords have no zeros: the count must be the size")
        return codebook.decode(coded.data, size)
    if coded.coding & ~RICE_MAX:
        raise WireError("coding", f"0x{coded.coding:02x} is not a coding")
    return _decode_sparse(coded, size)


def _decode_sparse(coded: Coded, size: int) -> Trits:
    rice = coded.coding & RICE_MAX
    count = coded.count
    bits = np.unpackbits(np.frombuffer(coded.data, dtype=np.uint8), bitorder="little")
    ends, at = read_unary(bits, 0, count, left=count * (rice + 1))
    signs_at = at + count * rice
    end = signs_at + count
    remainders, signs = bits[at:signs_at], bits[signs_at:end]
    numbers = np.arange(count)
    where = (ends - numbers << rice) + numbers  # before an end are as many ones as nonzeros
    if rice:
        low = remainders[::rice].astype(np.int64)
        for place in range(1, rice):
            low += remainders[place::rice].astype(np.int64) << place
        where += low.cumsum()
    if count and where[-1] >= size:
        raise WireError("coding", "a nonzero lies beyond the end of the chunk")
    if len(coded.data) != -(-end // 8) or np.count_nonzero(bits[end:]):
        raise WireError("coding", "bytes or bits are left over after the last code")
    values = np.zeros(size, dtype=np.int8)
    values[where] = 1 - 2 * signs.view(np.int8)
    return values


def bits_per_trit(zeros: float) -> float:
    """The mean cost of a trit in bits, given the fraction of zeros; by the better of both forms."""
    density = 1.0 - zeros
    if density <= 0.0:
        return 0.0
    cost, power = 8 / 5, zeros
    for rice in range(RICE_MAX + 1):
        cost = min(cost, density * (1 + rice + 1 / (1 - power)))
        power *= power  # zeros ** (1 << rice)
    return cost


def best_parameter(gaps: Integers) -> int:
    """The Rice parameter with the shortest code, the smallest of equals."""
    best = int(gaps.sum(dtype=np.int64))
    quotients = gaps
    for rice in range(1, RICE_MAX + 1):
        quotients = quotients >> 1
        cost = int(quotients.sum(dtype=np.int64)) + gaps.size * rice
        if cost >= best:
            return rice - 1  # the cost is convex in the parameter
        best = cost
    return RICE_MAX


def unary(numbers: Integers) -> Bits:
    """Each number as that many zeros and a one."""
    ends = np.cumsum(numbers + 1, dtype=np.int64)
    bits = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.uint8)
    ends -= 1
    bits[ends] = 1
    return bits


def read_unary(bits: Bits, at: int, count: int, left: int = 0) -> tuple[NDArray[np.int64], int]:
    """Where the ones of `count` unary numbers are, from bit `at` on, and the place after them.

    At least `left` bits follow. WireError if there are fewer.
    """
    ends = bits[at : max(at, bits.size - left)].view(np.bool_).nonzero()[0][:count]
    if ends.size < count:
        raise WireError("coding", "the code ends before its last nonzero")
    return ends, at + int(ends[-1]) + 1 if count else at


def _low_bits(numbers: Integers, width: int) -> Bits:
    """The `width` lowest bits of each number, lowest first."""
    bits = np.empty((numbers.size, width), dtype=np.uint8)
    for place in range(width):
        bits[:, place] = (numbers >> place) & 1
    return bits.reshape(-1)


TRITS_PER_BYTE = 5
_PLACE = 3 ** np.arange(TRITS_PER_BYTE, dtype=np.int64)
_CODES = 3**TRITS_PER_BYTE


def pack_trits(trits: NDArray[np.int8]) -> bytes:
    """Trits (int8 in -1, 0, 1) as ceil(n / 5) bytes: byte = sum of (trit + 1) * 3**i."""
    padded = np.zeros(-(-trits.size // TRITS_PER_BYTE) * TRITS_PER_BYTE, dtype=np.int64)
    padded[: trits.size] = trits
    return ((padded.reshape(-1, TRITS_PER_BYTE) + 1) @ _PLACE).astype(np.uint8).tobytes()


def unpack_trits(data: bytes, count: int) -> NDArray[np.int8]:
    """The `count` trits of `data`; WireError unless the bytes are exactly what pack_trits gives."""
    if len(data) != -(-count // TRITS_PER_BYTE):
        raise WireError("trits", f"{count} trits do not fit {len(data)} bytes")
    codes = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    if (codes >= _CODES).any():
        raise WireError("trits", "a byte of 243 or more holds no trits")
    trits = (codes[:, None] // _PLACE % 3 - 1).astype(np.int8).reshape(-1)
    if trits[count:].any():
        raise WireError("trits", "the padding after the last trit is not zero")
    return trits[:count]
