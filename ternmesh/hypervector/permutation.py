"""The seeded order in which coordinates are dealt to frames.

A Feistel network over the next power of two, walked until it lands inside the vector (cycle
walking): the place of one coordinate costs 8 multiplies and no table, so a small board can scatter
a frame alone. Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.generator import Key, derive_key, words

ROUNDS = 8
BLOCK = 1 << 14  # places worked out at a time: they stay in the cache


def order(model_hash: bytes, round_number: int, dimension: int) -> NDArray[np.int64]:
    """The permutation of `range(dimension)` for one model and round; the same on every node."""
    key = derive_key("order", model_hash, round_number.to_bytes(4, "little"))
    places = np.empty(dimension, dtype=np.int64)
    for start in range(0, dimension, BLOCK):
        index = np.arange(start, min(start + BLOCK, dimension), dtype=np.uint32)
        places[start : start + index.size] = permute(key, index, dimension)
    return places


def permute(key: Key, index: NDArray[np.uint32], dimension: int) -> NDArray[np.int64]:
    """Where each of `index` (uint32, below `dimension`) goes, int64."""
    round_keys = words(key, ROUNDS)
    bits = max(2, (dimension - 1).bit_length())
    place = _network(round_keys, index, bits)
    while True:
        outside = np.flatnonzero(place >= dimension)
        if outside.size == 0:
            return place.astype(np.int64)
        place[outside] = _network(round_keys, place[outside], bits)


def _network(
    round_keys: NDArray[np.uint32], value: NDArray[np.uint32], bits: int
) -> NDArray[np.uint32]:
    low_bits = np.uint32((bits + 1) // 2)
    low_mask = np.uint32((1 << int(low_bits)) - 1)
    high_mask = np.uint32((1 << (bits - int(low_bits))) - 1)
    high, low = value >> low_bits, value & low_mask
    for number, key in enumerate(round_keys):
        if number % 2 == 0:
            high = high ^ (_mix(low + key) & high_mask)
        else:
            low = low ^ (_mix(high + key) & low_mask)
    return (high << low_bits) | low


def _mix(value: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's 32-bit finaliser (Appleby, public domain)."""
    value = (value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return value ^ (value >> np.uint32(16))
