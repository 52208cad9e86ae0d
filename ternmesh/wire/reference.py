"""References and snapshots: what every node applies, as one object each. SPEC.md section 4.5.

A reference is the step from one version to the next: the combined update as shares, the list of
what was counted, and the hash of the reference before it. A snapshot is the whole state, for a node
that is too far behind. Both end in a certificate of k signatures, which the hash does not cover.
"""

import hashlib
import struct
from dataclasses import dataclass

import cbor2
import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.wire.control import read_cbor
from ternmesh.wire.manifest import UNSIGNED

REFERENCE, SNAPSHOT = 1, 2
HASH_SIZE = 16
NO_MODEL = b""  # where certificate and parent stand for it
HEAD_MAX = 1 << 20
SIGNERS_MAX = 16
COUNTED_MAX = 4096
SHARES_MAX = 1024
_START = struct.Struct("<BI")
_LENGTH = struct.Struct("<H")
_SIGNER = 1 + len(UNSIGNED)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a reference counted of one node: the shares in `have` of its packet of `round`."""

    context: int
    round: int
    digest: bytes
    have: bytes


@dataclass(frozen=True, slots=True)
class Reference:
    """One step of the chain, from version 1; `deadline_ms` is that of the round it opens."""

    version: int
    parent: bytes
    model: bytes
    finished: bool
    deadline_ms: int
    counted: tuple[Counted, ...]
    shares: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state at `version`: the sum of all steps, int32 in units of 2**-24.

    `counted` holds the last entry that the chain has for the node it is sent to, so that the node
    can settle its residual; `reference` is the hash of the reference of that version.
    """

    version: int
    reference: bytes
    model: bytes
    finished: bool
    deadline_ms: int
    counted: tuple[Counted, ...]
    state: NDArray[np.int32]


Certificate = tuple[tuple[int, bytes], ...]
UNCERTIFIED: Certificate = ((0, UNSIGNED),)


def write_reference(reference: Reference) -> bytes:
    """The bytes of a reference that its hash covers."""
    r = reference
    head = [r.version, r.parent, r.model, int(r.finished), r.deadline_ms, _rows(r.counted)]
    shares = b"".join(_LENGTH.pack(len(body)) + body for body in r.shares)
    return _with_head(REFERENCE, head) + _LENGTH.pack(len(r.shares)) + shares


def write_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot."""
    s = snapshot
    head = [s.version, s.reference, s.model, int(s.finished), s.deadline_ms, _rows(s.counted)]
    return _with_head(SNAPSHOT, head) + s.state.astype("<i4").tobytes()


def certify(content: bytes, certificate: Certificate = UNCERTIFIED) -> bytes:
    """The object that travels: content, each signer's key index and signature, their count."""
    signers = b"".join(bytes([index]) + signature for index, signature in certificate)
    return content + signers + bytes([len(certificate)])


def split_certificate(data: bytes) -> tuple[bytes, Certificate]:
    """Content and certificate (unchecked) of an object that arrived, or WireError."""
    count = data[-1] if data else 0
    size = 1 + count * _SIGNER
    if not 0 < count <= SIGNERS_MAX or len(data) <= size:
        raise WireError("reference", f"a certificate has 1 to {SIGNERS_MAX} signatures")
    rows = [data[at : at + _SIGNER] for at in range(len(data) - size, len(data) - 1, _SIGNER)]
    return data[:-size], tuple((row[0], row[1:]) for row in rows)


def reference_hash(content: bytes) -> bytes:
    """The 16 bytes that link the next reference to this one (without its certificate)."""
    return hashlib.sha256(content).digest()[:HASH_SIZE]


def read_object(content: bytes, dimension: int) -> Reference | Snapshot:
    """The reference or snapshot (of `dimension` numbers) in `content`; WireError."""
    if len(content) < _START.size:
        raise WireError("reference", "an object is shorter than its head")
    kind, length = _START.unpack_from(content)
    end = _START.size + length
    if length > HEAD_MAX or end > len(content):
        raise WireError("reference", "an object ends inside its head")
    fields = _read_head(content[_START.size : end])
    if kind == REFERENCE:
        return Reference(*fields, shares=_read_shares(content[end:]))
    if kind == SNAPSHOT:
        if len(content) - end != 4 * dimension:
            raise WireError("vector length", f"a snapshot here holds {dimension} numbers")
        return Snapshot(*fields, state=np.frombuffer(content, "<i4", offset=end).astype(np.int32))
    raise WireError("reference", f"{kind} is not a kind of object")


_Head = tuple[int, bytes, bytes, bool, int, tuple[Counted, ...]]


def object_max(dimension: int, shares: int, frame_mtu: int) -> int:
    """The most bytes of an object in a run of `dimension` numbers and `shares` shares a step."""
    content = max(4 * dimension, _LENGTH.size + shares * (_LENGTH.size + frame_mtu))
    return _START.size + HEAD_MAX + content + 1 + SIGNERS_MAX * _SIGNER


def _with_head(kind: int, head: list[object]) -> bytes:
    encoded = cbor2.dumps(head, canonical=True)
    return _START.pack(kind, len(encoded)) + encoded


def _rows(counted: tuple[Counted, ...]) -> list[list[object]]:
    return [[c.context, c.round, c.digest, c.have] for c in counted]


def _read_head(data: bytes) -> _Head:
    try:
        head = read_cbor(data)
    except WireError as error:
        raise WireError("reference", f"the head of an object: {error}") from error
    match head:
        case (int(version), bytes(parent), bytes(model), 0 | 1 as finished, int(deadline), rows):
            sizes_fit = len(parent) == HASH_SIZE and len(model) in (len(NO_MODEL), 8)
            if sizes_fit and type(rows) is tuple and len(rows) <= COUNTED_MAX:
                counted = tuple(map(_read_counted, rows))
                return version, parent, model, bool(finished), deadline, counted
    raise WireError("reference", "the head of an object does not hold what it should")


def _read_counted(row: object) -> Counted:
    match row:
        case (int(context), int(round_number), bytes(digest), bytes(have)) if len(digest) == 4:
            return Counted(context, round_number, digest, have)
    raise WireError("reference", "an entry of the counted list does not hold what it should")


def _read_shares(data: bytes) -> tuple[bytes, ...]:
    if len(data) < _LENGTH.size:
        raise WireError("reference", "a reference ends before its shares")
    (count,) = _LENGTH.unpack_from(data)
    if count > SHARES_MAX:
        raise WireError("reference", f"a reference has at most {SHARES_MAX} shares")
    shares, at = [], _LENGTH.size
    for _ in range(count):
        if at + _LENGTH.size > len(data):
            raise WireError("reference", "a reference ends before its shares")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        if at > len(data):
            raise WireError("reference", "a reference ends inside a share")
        shares.append(data[at - length : at])
    if at != len(data):
        raise WireError("reference", "bytes are left over after a reference's last share")
    return tuple(shares)
