"""The seeded order of coordinates in a hypervector.

A Feistel network over the next power of two, repeated until the result is inside the vector (cycle
walking). The place of one coordinate costs 8 multiplies and no table, so a small board can scatter
one frame alone. Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ternmesh.generator import Key, derive_key, words
from ternmesh.types import Places

ROUNDS = 8
BLOCK = 1 << 14  # places computed at a time: so many stay in the processor's cache


@lru_cache(maxsize=2)  # the updates of a round and the step that they make
def order(model_hash: bytes, round_number: int, dimension: int) -> Places:
    """The permutation of `range(dimension)` for one model and round; equal on every node.

    The array is shared and read-only.
    """
    key = derive_key("order", model_hash, round_number.to_bytes(4, "little"))
    places = np.empty(dimension, dtype=np.int64)
    for start in range(0, dimension, BLOCK):
        index = np.arange(start, min(start + BLOCK, dimension), dtype=np.uint32)
        places[start : start + index.size] = permute(key, index, dimension)
    places.flags.writeable = False
    return places


def permute(key: Key, index: NDArray[np.uint32], dimension: int) -> Places:
    """The new place of each of `index` (each below `dimension`)."""
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
    high = value >> low_bits
    low = value & low_mask
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
