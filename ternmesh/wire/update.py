"""The bodies of an update: manifest, chunks and, in a partial aggregate, contributions.

- A manifest describes the update and is signed (SPEC.md section 4.2).
- A chunk carries one slice of the hypervector and can be read alone (section 4.1).
- A partial aggregate has votes in its chunks, and a list of the updates that a gateway has added up
  in the order of the manifest's contributors (section 4.6).
- Receipts and global updates name chunks by a bitmap: chunk 0 is the lowest bit of the first byte.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bitarray import bitarray
from bitarray.util import zeros

from ternmesh.codec.encoder import Slice
from ternmesh.codec.entropy_coder import Coded
from ternmesh.codec.scale import decode_scale
from ternmesh.errors import WireError
from ternmesh.wire.frame import BODY_MAX, FRAME_OVERHEAD

CHUNK_KIND = 0x02
MANIFEST_KIND = 0x03
CONTRIBUTIONS_KIND = 0x05
VOTE_CHUNK_KIND = 0x09  # a node's own chunks and a partial aggregate's may share one address

ROUND_BITS = 16
SIGNATURE_SIZE = 64
DIGEST_SIZE = 4
MODEL_SIZE = 8
NO_SIGNATURE = bytes(SIGNATURE_SIZE)
CONTRIBUTORS_MIN = 2
CONTRIBUTORS_MAX = 32
SAMPLES_MAX = 1 << 20
EVALUATION_MAX = 15  # bytes after its length

_MANIFEST_HEAD = struct.Struct("<BH8sI4sHB")
_VALUE = struct.Struct("<BH")  # of an evaluation: key and value
_CHUNK_HEAD = struct.Struct("<BHHHHB")
_CONTRIBUTIONS_HEAD = struct.Struct("<BH")
_CONTRIBUTION = struct.Struct(f"<{DIGEST_SIZE}s3s")
MANIFEST_SIZE_MIN = _MANIFEST_HEAD.size + SIGNATURE_SIZE  # without contributors and evaluation
CHUNK_HEAD_SIZE = _CHUNK_HEAD.size
_HAS_EVALUATION = 0x80  # flag in the number of contributors


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of an update, with its signature."""

    round_low: int  # the low 16 bits of the round
    model: bytes  # the first 8 bytes of the model hash
    samples: int  # the weight of the update
    digest: bytes  # of all chunks (`update_digest`)
    chunks: int  # how many
    contributors: tuple[int, ...] = ()  # addresses; empty for a node's own update
    evaluation: tuple[tuple[int, int], ...] = ()  # by rising key; empty for a partial aggregate
    signature: bytes = NO_SIGNATURE


def write_manifest(manifest: Manifest) -> bytes:
    """The body of a manifest: 86 bytes, 93 with two values of an evaluation."""
    evaluation = write_evaluation(manifest.evaluation)
    head = _MANIFEST_HEAD.pack(
        MANIFEST_KIND,
        manifest.round_low,
        manifest.model,
        manifest.samples,
        manifest.digest,
        manifest.chunks,
        len(manifest.contributors) | (_HAS_EVALUATION if evaluation else 0),
    )
    contributors = struct.pack(f"<{len(manifest.contributors)}H", *manifest.contributors)
    length = bytes([len(evaluation)]) if evaluation else b""
    return head + contributors + length + evaluation + manifest.signature


def read_manifest(body: bytes) -> Manifest:
    """The manifest in a body; WireError. The signature is not checked here."""
    if len(body) < _MANIFEST_HEAD.size or body[0] != MANIFEST_KIND:
        raise WireError("length", "a manifest is shorter than its header")
    _, low, model, samples, digest, chunks, number = _MANIFEST_HEAD.unpack_from(body)
    count = number & ~_HAS_EVALUATION
    end = _MANIFEST_HEAD.size + 2 * count
    values = body[end:-SIGNATURE_SIZE]
    if len(body) < end + SIGNATURE_SIZE or bool(values) != (number > count):
        raise WireError("length", "a manifest's length does not fit its number of contributors")
    evaluation = _read_evaluation(values) if values else ()
    if count > CONTRIBUTORS_MAX or not 0 < samples <= SAMPLES_MAX:
        raise WireError("manifest", "a manifest's contributors or samples are out of range")
    contributors = struct.unpack_from(f"<{count}H", body, _MANIFEST_HEAD.size)
    if list(contributors) != sorted(set(contributors)):
        raise WireError("manifest", "a manifest must list its contributors once, in rising order")
    if evaluation and contributors:
        raise WireError("manifest", "a partial aggregate must have no evaluation")
    signature = body[-SIGNATURE_SIZE:]
    return Manifest(low, model, samples, digest, chunks, contributors, evaluation, signature)


def write_evaluation(values: Iterable[tuple[int, int]]) -> bytes:
    """Keys and values as bytes, as they are signed."""
    return b"".join(_VALUE.pack(key, value) for key, value in values)


def _read_evaluation(data: bytes) -> tuple[tuple[int, int], ...]:
    """The keys and values after their length; WireError."""
    if len(data) != 1 + data[0] or not 0 < data[0] <= EVALUATION_MAX or data[0] % _VALUE.size:
        raise WireError("length", "an evaluation has one to five values of three bytes")
    values = tuple(_VALUE.iter_unpack(data[1:]))
    keys = [key for key, _ in values]
    if keys != sorted(set(keys)):
        raise WireError("manifest", "an evaluation must list its keys once, in rising order")
    return values


def has_contributors(body: bytes) -> bool:
    """Whether the body of a manifest, not yet checked, belongs to a partial aggregate."""
    number = body[_MANIFEST_HEAD.size - 1] if len(body) >= _MANIFEST_HEAD.size else 0
    return number & ~_HAS_EVALUATION > 0


def update_hash(chunks: Sequence[bytes]) -> bytes:
    """The 32-byte hash of an update: the hash over the hashes of its chunks' bodies, in order.

    A receiver that misses a chunk can check the others if it gets the missing chunk's hash.
    """
    return hashlib.sha256(b"".join(hashlib.sha256(body).digest() for body in chunks)).digest()


def update_digest(chunks: Sequence[bytes]) -> bytes:
    """The 4 bytes that name an update in manifests, receipts and global updates."""
    return update_hash(chunks)[:DIGEST_SIZE]


def whole_round(round_low: int, near: int) -> int:
    """The round nearest to `near` whose low 16 bits are `round_low` (may be below 0)."""
    half = 1 << (ROUND_BITS - 1)
    return near + (round_low - near + half) % (2 * half) - half


@dataclass(frozen=True, slots=True)
class Chunk:
    """One slice of an update, and the low 16 bits of the update's round."""

    round_low: int
    slice: Slice


def write_chunk(round_number: int, item: Slice, kind: int = CHUNK_KIND) -> bytes:
    """The body of one chunk; `kind` is `VOTE_CHUNK_KIND` in a partial aggregate."""
    coded = item.coded
    low = round_number & ((1 << ROUND_BITS) - 1)
    head = _CHUNK_HEAD.pack(kind, low, item.index, item.scale, coded.count, coded.coding)
    return head + coded.data


def read_chunk(body: bytes, kind: int = CHUNK_KIND) -> Chunk:
    """The chunk in a body, its code not yet decoded; WireError."""
    if not CHUNK_HEAD_SIZE <= len(body) <= BODY_MAX or body[0] != kind:
        raise WireError("length", f"a chunk has {CHUNK_HEAD_SIZE} to {BODY_MAX} bytes")
    _, low, index, scale, count, coding = _CHUNK_HEAD.unpack_from(body)
    if (count == 0) != (decode_scale(scale) == 0):
        raise WireError("scale", "a chunk's scale must be zero exactly if it has no nonzeros")
    return Chunk(low, Slice(index, scale, Coded(count, coding, body[CHUNK_HEAD_SIZE:])))


@dataclass(frozen=True, slots=True)
class Contribution:
    """One node's update in a partial aggregate: its digest and its weight."""

    digest: bytes
    samples: int


def contributors_max(frame_mtu: int) -> int:
    """How many contributions one frame can list."""
    room = frame_mtu - FRAME_OVERHEAD - _CONTRIBUTIONS_HEAD.size
    return min(CONTRIBUTORS_MAX, room // _CONTRIBUTION.size)


def write_contributions(round_number: int, rows: Sequence[Contribution]) -> bytes:
    head = _CONTRIBUTIONS_HEAD.pack(CONTRIBUTIONS_KIND, round_number & 0xFFFF)
    return head + b"".join(
        _CONTRIBUTION.pack(row.digest, row.samples.to_bytes(3, "little")) for row in rows
    )


def read_contributions(body: bytes) -> tuple[Contribution, ...]:
    """The contributions in a body; WireError."""
    count, left = divmod(len(body) - _CONTRIBUTIONS_HEAD.size, _CONTRIBUTION.size)
    if left or not CONTRIBUTORS_MIN <= count <= CONTRIBUTORS_MAX or body[0] != CONTRIBUTIONS_KIND:
        raise WireError("length", "a list of contributions has 2 to 32 complete rows")
    rows = tuple(
        Contribution(digest, int.from_bytes(samples, "little"))
        for digest, samples in _CONTRIBUTION.iter_unpack(body[_CONTRIBUTIONS_HEAD.size :])
    )
    if not all(0 < row.samples <= SAMPLES_MAX for row in rows):
        raise WireError("manifest", "a contributor's samples are out of range")
    return rows


def write_bitmap(indices: Iterable[int], count: int) -> bytes:
    """The bitmap of `indices` out of `count` chunks, ceil(count / 8) bytes."""
    bits = zeros(count, "little")
    bits[list(indices)] = 1
    return bits.tobytes()


def read_bitmap(data: bytes, count: int) -> bitarray:
    """The bits of `count` chunks; WireError for a wrong length or a bit after the last chunk."""
    bits = bitarray(data, "little")
    if len(data) != -(-count // 8) or bits[count:].any():
        raise WireError("bitmap", f"these {len(data)} bytes are not a bitmap of {count} chunks")
    return bits[:count]
