"""Which shares of a packet: a bitmap in bytes, share 0 in the lowest bit of the first byte."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError


def write_bitmap(indices: Iterable[int], count: int) -> bytes:
    """The bitmap of `indices` out of `count` shares, ceil(count / 8) bytes."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[list(indices)] = True
    return np.packbits(mask, bitorder="little").tobytes()


def read_bitmap(data: bytes, count: int) -> NDArray[np.bool_]:
    """Whether each of `count` shares is in the bitmap; WireError where bytes or bits are off."""
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if len(data) != -(-count // 8) or bits[count:].any():
        raise WireError("bitmap", f"these {len(data)} bytes are no bitmap of {count} shares")
    return bits[:count].astype(np.bool_)


def read_counted(shares: Sequence[bytes], have: bytes) -> list[bytes]:
    """Those of a packet's `shares` that bitmap `have` names; WireError."""
    counted = read_bitmap(have, len(shares))
    return [share for share, has in zip(shares, counted, strict=True) if has]
