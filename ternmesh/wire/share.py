"""The body that carries one slice of a hypervector. SPEC.md section 4.1."""

import struct
from dataclasses import dataclass

from ternmesh.errors import WireError
from ternmesh.hypervector.coding import Coded
from ternmesh.hypervector.encoder import Slice
from ternmesh.hypervector.scale import decode_scale
from ternmesh.wire.seal import BODY_MAX

KIND = 0x02
_HEAD = struct.Struct("<BHHHHB")
HEAD_SIZE = _HEAD.size
ROUND_BITS = 16


@dataclass(frozen=True, slots=True)
class Share:
    """A slice and the low 16 bits of the round that it belongs to."""

    round_low: int
    slice: Slice


def write_share(round_number: int, item: Slice, kind: int = KIND) -> bytes:
    """The body of one share; `kind` is another one in a bundle."""
    coded = item.coded
    low = round_number & ((1 << ROUND_BITS) - 1)
    return _HEAD.pack(kind, low, item.index, item.scale, coded.count, coded.coding) + coded.data


def read_share(body: bytes, kind: int = KIND) -> Share:
    """The share of a body, its code not yet decoded; WireError."""
    if not HEAD_SIZE <= len(body) <= BODY_MAX or body[0] != kind:
        raise WireError("length", f"a share is of {HEAD_SIZE} to {BODY_MAX} bytes")
    _, low, index, scale, count, coding = _HEAD.unpack_from(body)
    if (count == 0) != (decode_scale(scale) == 0):
        raise WireError("scale", "a share has a scale of zero exactly when it has no nonzero")
    return Share(low, Slice(index, scale, Coded(count, coding, body[HEAD_SIZE:])))


def whole_round(round_low: int, near: int) -> int:
    """The round nearest to `near` whose low 16 bits are `round_low` (may be below 0)."""
    half = 1 << (ROUND_BITS - 1)
    return near + (round_low - near + half) % (2 * half) - half
