"""The bodies of an update: its manifest and its chunks.

- A manifest describes the update and is signed (SPEC.md section 4.2).
- A chunk carries one slice of the hypervector and can be read alone (section 4.1).
- The update of an aggregator is what its boards' updates come to; its manifest names how many
  and the root of their rows (`wire.proof`, section 4.6).
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
from ternmesh.wire.frame import BODY_MAX

CHUNK_KIND = 0x02
MANIFEST_KIND = 0x03

ROUND_BITS = 16
SIGNATURE_SIZE = 64
DIGEST_SIZE = 4
MODEL_SIZE = 8
NO_SIGNATURE = bytes(SIGNATURE_SIZE)
MEMBERS_MAX = (1 << 16) - 1  # boards of which an aggregator adds up the updates
ROOT_SIZE = 16
SAMPLES_MAX = 1 << 20
EVALUATION_MAX = 15  # bytes after its length

_MANIFEST_HEAD = struct.Struct("<BH8sI4sHB")
_VALUE = struct.Struct("<BH")  # of an evaluation: key and value
_CHUNK_HEAD = struct.Struct("<BHHHHB")
_MEMBERS = struct.Struct(f"<H{ROOT_SIZE}s{ROOT_SIZE}s")
MANIFEST_SIZE_MIN = _MANIFEST_HEAD.size + SIGNATURE_SIZE  # of a board, without an evaluation
CHUNK_HEAD_SIZE = _CHUNK_HEAD.size
AGGREGATOR_FRAME_MIN = 150  # bytes: its longest manifest in a frame
_HAS_EVALUATION, _HAS_MEMBERS = 0x80, 0x40  # flags after the number of chunks


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of an update, with its signature."""

    round_low: int  # the low 16 bits of the round
    model: bytes  # the first 8 bytes of the model hash
    samples: int  # the weight of the update
    digest: bytes  # of all chunks (`update_digest`)
    chunks: int  # how many
    evaluation: tuple[tuple[int, int], ...] = ()  # by rising key
    members: int = 0  # boards whose updates an aggregator has added up; 0: its own update
    root: bytes = b""  # of the rows of these updates (`wire.proof`)
    state: bytes = b""  # a hash of the residual that was added to them
    signature: bytes = NO_SIGNATURE


def write_manifest(manifest: Manifest) -> bytes:
    """The body of a manifest: 86 bytes; two values of an evaluation take 7, members 34."""
    evaluation = write_evaluation(manifest.evaluation)
    flags = (_HAS_EVALUATION if evaluation else 0) | (_HAS_MEMBERS if manifest.members else 0)
    head = _MANIFEST_HEAD.pack(
        MANIFEST_KIND,
        manifest.round_low,
        manifest.model,
        manifest.samples,
        manifest.digest,
        manifest.chunks,
        flags,
    )
    length = bytes([len(evaluation)]) if evaluation else b""
    return head + write_members(manifest) + length + evaluation + manifest.signature


def read_manifest(body: bytes) -> Manifest:
    """The manifest in a body; WireError. The signature is not checked here."""
    if len(body) < MANIFEST_SIZE_MIN or body[0] != MANIFEST_KIND:
        raise WireError("length", "a manifest is shorter than its header")
    _, low, model, samples, digest, chunks, flags = _MANIFEST_HEAD.unpack_from(body)
    values, members, root, state = body[_MANIFEST_HEAD.size : -SIGNATURE_SIZE], 0, b"", b""
    if flags & _HAS_MEMBERS:
        if len(values) < _MEMBERS.size:
            raise WireError("length", "a manifest ends inside the number of its members")
        members, root, state = _MEMBERS.unpack_from(values)
        values = values[_MEMBERS.size :]
    is_known = not flags & ~(_HAS_EVALUATION | _HAS_MEMBERS)
    if not is_known or bool(values) != bool(flags & _HAS_EVALUATION):
        raise WireError("length", "a manifest's length does not fit its flags")
    evaluation = _read_evaluation(values) if values else ()
    if not 0 < samples <= SAMPLES_MAX or bool(members) != bool(flags & _HAS_MEMBERS):
        raise WireError("manifest", "a manifest's members or samples are out of range")
    signature = body[-SIGNATURE_SIZE:]
    return Manifest(
        low, model, samples, digest, chunks, evaluation, members, root, state, signature
    )


def write_members(manifest: Manifest) -> bytes:
    """What a manifest says of the updates that were added up, as it is signed; empty for none."""
    if not manifest.members:
        return b""
    return _MEMBERS.pack(manifest.members, manifest.root, manifest.state)


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


def write_chunk(round_number: int, item: Slice) -> bytes:
    """The body of one chunk."""
    coded = item.coded
    low = round_number & ((1 << ROUND_BITS) - 1)
    head = _CHUNK_HEAD.pack(CHUNK_KIND, low, item.index, item.scale, coded.count, coded.coding)
    return head + coded.data


def read_chunk(body: bytes) -> Chunk:
    """The chunk in a body, its code not yet decoded; WireError."""
    if not CHUNK_HEAD_SIZE <= len(body) <= BODY_MAX or body[0] != CHUNK_KIND:
        raise WireError("length", f"a chunk has {CHUNK_HEAD_SIZE} to {BODY_MAX} bytes")
    _, low, index, scale, count, coding = _CHUNK_HEAD.unpack_from(body)
    if (count == 0) != (decode_scale(scale) == 0):
        raise WireError("scale", "a chunk's scale must be zero exactly if it has no nonzeros")
    return Chunk(low, Slice(index, scale, Coded(count, coding, body[CHUNK_HEAD_SIZE:])))


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
