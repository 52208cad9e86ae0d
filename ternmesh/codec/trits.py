"""Ternary vectors as bytes: five trits to a byte."""

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError

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
