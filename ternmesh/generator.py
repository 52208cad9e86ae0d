"""The generator of every seeded object: Philox4x32-10, counter-based, in 32-bit arithmetic.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Any word can be
computed alone, so a Cortex-M0 needs no table and no state. SPEC.md section 2 defines it bit for
bit.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
ROUNDS = 10

Key = tuple[int, int]  # two 32-bit words
Lanes = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]


def derive_key(label: str, *parts: bytes) -> Key:
    """The key for a purpose: the first 8 bytes of SHA-256 over length-prefixed parts."""
    digest = hashlib.sha256()
    for part in (label.encode("ascii"), *parts):
        digest.update(len(part).to_bytes(2, "little") + part)
    head = digest.digest()
    return int.from_bytes(head[:4], "little"), int.from_bytes(head[4:8], "little")


def words(key: Key, count: int, start: int = 0) -> NDArray[np.uint32]:
    """Words `start` to `start + count` of the stream of `key`, uint32."""
    first = start // 4
    last = (start + count + 3) // 4
    index = np.arange(first, last, dtype=np.uint64)
    zero = np.zeros_like(index)
    blocks = np.stack(philox(key, (index & _LOW, index >> _HALF, zero, zero)), axis=1)
    offset = start - 4 * first
    return blocks.astype(np.uint32).reshape(-1)[offset : offset + count]


def seeded_signs(key: Key, count: int) -> NDArray[np.float32]:
    """`count` signs (float32, -1 or 1): the bits of the key's words, lowest first, 1 is minus."""
    raw = words(key, -(-count // 32)).astype("<u4").view(np.uint8)
    signs = np.unpackbits(raw, count=count, bitorder="little").astype(np.float32)
    signs *= -2
    signs += 1
    return signs


def philox(key: Key, counter: Lanes) -> Lanes:
    """Ten rounds of Philox4x32 over many counters at once (uint64 arrays of 32-bit words)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c2 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & _LOW, product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3
