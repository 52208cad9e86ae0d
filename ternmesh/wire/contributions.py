"""What a bundle is made of, in the order of its manifest's contributors. SPEC.md section 4.6."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ternmesh.errors import WireError
from ternmesh.wire.manifest import CONTRIBUTORS_MAX, DIGEST_SIZE, SAMPLES_MAX
from ternmesh.wire.seal import OVERHEAD

KIND = 0x05
SHARE_KIND = 0x09  # of a bundle's shares: a node's own may come in the same name
CONTRIBUTORS_MIN = 2
_HEAD = struct.Struct("<BH")
_ROW = struct.Struct(f"<{DIGEST_SIZE}s3s")


@dataclass(frozen=True, slots=True)
class Contribution:
    """One node's packet in a bundle: its digest and its weight."""

    digest: bytes
    samples: int


def contributors_max(frame_mtu: int) -> int:
    """The most contributors whose rows fit a frame."""
    return min(CONTRIBUTORS_MAX, (frame_mtu - OVERHEAD - _HEAD.size) // _ROW.size)


def write_contributions(round_number: int, rows: Sequence[Contribution]) -> bytes:
    """The body that lists them."""
    head = _HEAD.pack(KIND, round_number & 0xFFFF)
    return head + b"".join(_ROW.pack(r.digest, r.samples.to_bytes(3, "little")) for r in rows)


def read_contributions(body: bytes) -> tuple[Contribution, ...]:
    """The rows of a body; WireError."""
    count, left = divmod(len(body) - _HEAD.size, _ROW.size)
    if left or not CONTRIBUTORS_MIN <= count <= CONTRIBUTORS_MAX or body[0] != KIND:
        raise WireError("length", "contributions are rows of 2 to 32 nodes")
    rows = [
        Contribution(digest, int.from_bytes(samples, "little"))
        for digest, samples in _ROW.iter_unpack(body[_HEAD.size :])
    ]
    if not all(0 < row.samples <= SAMPLES_MAX for row in rows):
        raise WireError("manifest", "a contributor's samples are out of range")
    return tuple(rows)
