"""The entropy coder of one frame's share: small integers, most of them zero, to bits and back.

Sparse form: the gaps between nonzeros in Golomb-Rice code (Rice and Plaunt 1971), split into three
streams (unary quotients, remainders, signs), so that both directions are a few array operations
here and three bit pointers on a microcontroller. It stays within 1.3 % of the entropy of ternary
vectors from 50 % to 99.5 % zeros. A bundle's votes add a fourth stream, magnitudes - 1 in unary.
Dense form: five trits to a byte, for shares with more than about 60 % nonzeros.
Codebook form: names of dense codewords, for low rates (codebook.py).
Bits are numbered from the least significant bit of each byte.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError
from ternmesh.hypervector import codebook
from ternmesh.hypervector.rice import RICE_MAX, best_parameter, low_bits, read_unary, take, unary
from ternmesh.hypervector.trits import pack_trits, unpack_trits

MAGNITUDES = 0x40  # flag: a fourth stream holds magnitudes - 1
DENSE = 0x80  # flag: five trits to a byte
CODEBOOK = 0xC0  # flag: names of codewords, see codebook.py
VOTE_MAX = 127


@dataclass(frozen=True, slots=True)
class Coded:
    """One coded share: how many nonzeros, how they are coded, and the bytes."""

    count: int
    coding: int
    data: bytes


def encode(values: NDArray[np.int8]) -> Coded:
    """The shortest coding of a share (int8; -1, 0, 1, or votes up to +-127)."""
    where = np.flatnonzero(values != 0)
    kept = values[where]
    largest = max(int(kept.max()), -int(kept.min())) if kept.size else 0
    if largest > VOTE_MAX:
        raise CodecError(f"a vote is at most {VOTE_MAX}")
    votes = largest > 1
    gaps = np.diff(where, prepend=-1).astype(np.int32) - 1
    rice = best_parameter(gaps)
    streams = [unary(gaps >> rice), low_bits(gaps, rice), (kept < 0).view(np.uint8)]
    if votes:
        streams.append(unary(np.abs(kept.astype(np.int32)) - 1))
    data = np.packbits(np.concatenate(streams), bitorder="little").tobytes()
    if not votes and -(-values.size // 5) < len(data):
        return Coded(where.size, DENSE, pack_trits(values))
    return Coded(where.size, rice | (MAGNITUDES if votes else 0), data)


def decode(coded: Coded, size: int) -> NDArray[np.int8]:
    """The share of `size` values (int8); WireError unless the bytes are a whole, canonical code."""
    if coded.count > size:
        raise WireError("coding", f"{coded.count} nonzeros cannot stand in {size} places")
    if coded.coding == DENSE:
        values = unpack_trits(coded.data, size)
        if np.count_nonzero(values) != coded.count:
            raise WireError("coding", "the count of nonzeros is not what the trits hold")
        return values
    if coded.coding == CODEBOOK:
        if coded.count != size:
            raise WireError("coding", "codewords have no zeros: the count must be all")
        return codebook.decode(coded.data, size)
    if coded.coding & ~(MAGNITUDES | RICE_MAX):
        raise WireError("coding", f"0x{coded.coding:02x} is not a coding")
    return _decode_sparse(coded, size)


def _decode_sparse(coded: Coded, size: int) -> NDArray[np.int8]:
    rice, count = coded.coding & RICE_MAX, coded.count
    bits = np.unpackbits(np.frombuffer(coded.data, dtype=np.uint8), bitorder="little")
    quotients, at = read_unary(bits, 0, count)
    remainders, at = take(bits, at, count * rice)
    signs, at = take(bits, at, count)
    gaps = quotients << rice
    for place in range(rice):
        gaps += remainders[place::rice].astype(np.int64) << place
    gaps += 1
    where = np.cumsum(gaps) - 1
    if count and where[-1] >= size:
        raise WireError("coding", "a nonzero stands beyond the end of the share")
    nonzeros = 1 - 2 * signs.view(np.int8)
    if coded.coding & MAGNITUDES:
        magnitudes = np.ones(count, dtype=np.int64)
        extra, at = read_unary(bits, at, count)
        magnitudes += extra
        if not 1 < magnitudes.max(initial=0) <= VOTE_MAX:
            raise WireError("coding", f"votes must reach 2 and stay within {VOTE_MAX}")
        nonzeros = (nonzeros * magnitudes).astype(np.int8)
    if len(coded.data) != -(-at // 8) or bits[at:].any():
        raise WireError("coding", "bytes or bits are left over after the last code")
    values = np.zeros(size, dtype=np.int8)
    values[where] = nonzeros
    return values


def bits_per_trit(zeros: float) -> float:
    """The mean bits that a trit costs at a share of zeros (0 to 1), by the better of both forms."""
    density = 1.0 - zeros
    if density <= 0.0:
        return 0.0
    sparse = min(
        density * (1 + rice + 1 / (1 - zeros ** (1 << rice))) for rice in range(RICE_MAX + 1)
    )
    return min(sparse, 8 / 5)
