"""Global updates and global snapshots, the objects that every node applies. SPEC.md section 4.5.

A global update leads from one version of the global adapter to the next: it holds the combined
update as chunks, the list of counted updates, and the hash of the global adapter that it leads to.
It may also hold a probe: chunks of a vector that the nodes evaluate with the adapter, and drop.
A global update may return to an older version: it then leads on from the adapter of that one.
A global snapshot holds the whole global adapter, for a node that is too many versions behind. Both
objects end with a certificate: 1 to 16 signatures. The hash of an object does not cover its
certificate. A given adapter is for a host that has lost its own: a global update that the host has
certified, and the adapter that it leads to.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import cbor2
import numpy as np

from ternmesh.errors import WireError
from ternmesh.types import ModelQ24
from ternmesh.wire.control import read_cbor
from ternmesh.wire.update import DIGEST_SIZE, MODEL_SIZE, NO_SIGNATURE, ROOT_SIZE, SIGNATURE_SIZE

UPDATE, SNAPSHOT, GIVEN = 1, 2, 4  # the kinds of object
HASH_SIZE = 16
NO_GLOBAL_HASH = bytes(HASH_SIZE)  # in the hello of a node that has none, or needs a snapshot
NO_MODEL = b""  # in an object whose certificate and adapter hash identify the model
HEAD_MAX = 1 << 22  # room for the longest rows of all nodes
SIGNERS_MAX = 16
COUNTED_MAX = 16_384
CHUNKS_MAX = 1024
_START = struct.Struct("<BI")
_LENGTH = struct.Struct("<H")
_SIGNER_SIZE = 1 + SIGNATURE_SIZE


@dataclass(frozen=True, slots=True)
class Counted:
    """The chunks of one node's update that a global update includes."""

    address: int
    round: int
    digest: bytes  # the digest of the update
    have: bytes  # bitmap of the counted chunks
    root: bytes = b""  # of the rows of a region, which its host has added up in this update


@dataclass(frozen=True, slots=True)
class GlobalUpdate:
    """One step of the global adapter. The first global update leads to version 1."""

    version: int
    adapter_hash: bytes  # of the global adapter of this version (`hash_adapter`)
    model: bytes
    finished: bool  # whether the training run ends with this version
    deadline_ms: int  # the deadline of the round that this version opens
    counted: tuple[Counted, ...]
    chunks: tuple[bytes, ...]
    probe: tuple[bytes, ...] = ()  # chunks of a node's recent updates, coded like an update
    returns_to: int | None = None  # the version to whose adapter the step is added; None: the last
    root: bytes = b""  # of the counted rows, where these are too many for `counted`


@dataclass(frozen=True, slots=True)
class GlobalSnapshot:
    """The whole global adapter at one version, for one node."""

    version: int
    global_hash: bytes  # the hash of the global update that led to this version
    model: bytes
    finished: bool
    deadline_ms: int
    counted: tuple[Counted, ...]  # the node's latest entry, to update its residual
    state: ModelQ24  # the global adapter, which is the sum of all steps


Certificate = tuple[tuple[int, bytes], ...]  # (index of the signer's key, signature) pairs
UNCERTIFIED: Certificate = ((0, NO_SIGNATURE),)


def write_global_update(step: GlobalUpdate) -> bytes:
    """Return the bytes of a global update, without its certificate."""
    probe = _chunks(step.probe) if step.probe else b""
    return _head(UPDATE, step, step.adapter_hash) + _chunks(step.chunks) + probe


def write_global_snapshot(snapshot: GlobalSnapshot) -> bytes:
    """Return the bytes of a global snapshot, without its certificate."""
    return _head(SNAPSHOT, snapshot, snapshot.global_hash) + snapshot.state.astype("<i4").tobytes()


def _chunks(chunks: tuple[bytes, ...]) -> bytes:
    rows = b"".join(_LENGTH.pack(len(body)) + body for body in chunks)
    return _LENGTH.pack(len(chunks)) + rows


def _head(kind: int, item: GlobalUpdate | GlobalSnapshot, link: bytes) -> bytes:
    rows: Any = [plain_row(row) for row in item.counted]
    if isinstance(item, GlobalUpdate) and item.root:
        rows = item.root
    fields = [item.version, link, item.model, int(item.finished), item.deadline_ms, rows]
    if isinstance(item, GlobalUpdate) and item.returns_to is not None:
        fields.append(item.returns_to)
    encoded = cbor2.dumps(fields, canonical=True)
    return _START.pack(kind, len(encoded)) + encoded


def plain_row(row: Counted) -> list[Any]:
    """A row as it travels."""
    return [row.address, row.round, row.digest, row.have, *([row.root] if row.root else [])]


def certify(content: bytes, certificate: Certificate = UNCERTIFIED) -> bytes:
    """Return the object as it is sent: content, certificate rows, and the number of rows."""
    signers = b"".join(bytes([index]) + signature for index, signature in certificate)
    return content + signers + bytes([len(certificate)])


def split_certificate(data: bytes) -> tuple[bytes, Certificate]:
    """Return content and unchecked certificate of a received object. Raises WireError."""
    count = data[-1] if data else 0
    size = 1 + count * _SIGNER_SIZE
    if not 0 < count <= SIGNERS_MAX or len(data) <= size:
        raise WireError("reference", f"a certificate has 1 to {SIGNERS_MAX} signatures")
    starts = range(len(data) - size, len(data) - 1, _SIGNER_SIZE)
    rows = [data[start : start + _SIGNER_SIZE] for start in starts]
    return data[:-size], tuple((row[0], row[1:]) for row in rows)


def hash_global_update(content: bytes) -> bytes:
    """Return the 16-byte hash by which a node names the global update that it has applied."""
    return hashlib.sha256(content).digest()[:HASH_SIZE]


def hash_adapter(genesis: bytes, version: int, model_q24: ModelQ24) -> bytes:
    """Return the 16-byte hash of the global adapter of a version. `genesis` stands for the run."""
    state = model_q24.astype("<i4").tobytes()
    whole = b"ternmesh adapter" + genesis + version.to_bytes(4, "little") + state
    return hashlib.sha256(whole).digest()[:HASH_SIZE]


def write_given(update: bytes, model_q24: ModelQ24) -> bytes:
    """Return the object with a certified global update and the adapter that it leads to."""
    return _START.pack(GIVEN, len(update)) + update + model_q24.astype("<i4").tobytes()


def read_given(data: bytes, dimension: int) -> tuple[bytes, ModelQ24]:
    """Return the certified global update and the adapter in `data`. Raises WireError."""
    size = _START.unpack_from(data)[1] if len(data) >= _START.size else 0
    end = _START.size + size
    if data[:1] != bytes((GIVEN,)) or len(data) != end + 4 * dimension:
        raise WireError("vector length", f"a given adapter here has {dimension} numbers")
    return data[_START.size : end], np.frombuffer(data, "<i4", offset=end).astype(np.int32)


def read_object(content: bytes, dimension: int) -> GlobalUpdate | GlobalSnapshot:
    """Return the object in `content`; a snapshot has `dimension` numbers. Raises WireError."""
    if len(content) < _START.size:
        raise WireError("reference", "an object is shorter than its header")
    kind, length = _START.unpack_from(content)
    end = _START.size + length
    if length > HEAD_MAX or end > len(content):
        raise WireError("reference", "an object ends inside its header")
    fields, root, returns_to = _read_head(content[_START.size : end])
    if kind == UPDATE:
        chunks, end = _read_chunks(content, end)
        probe: tuple[bytes, ...] = ()
        if end < len(content):
            probe, end = _read_chunks(content, end)
            if not probe or end < len(content):
                raise WireError("reference", "bytes are left over at the end of a global update")
        return GlobalUpdate(*fields, chunks=chunks, probe=probe, returns_to=returns_to, root=root)
    if kind == SNAPSHOT and returns_to is None and not root:
        if len(content) - end != 4 * dimension:
            raise WireError("vector length", f"a global snapshot here has {dimension} numbers")
        state = np.frombuffer(content, "<i4", offset=end).astype(np.int32)
        return GlobalSnapshot(*fields, state=state)
    raise WireError("reference", f"{kind} is not a known kind of object")


_FIELDS = 6  # of each head; that of a global update may have one more
_Head = tuple[int, bytes, bytes, bool, int, tuple[Counted, ...]]


def object_max(dimension: int, chunks: int, frame_mtu: int) -> int:
    """Return the largest length of an object, in bytes: `chunks` are those of step and probe."""
    content = 4 * dimension + _START.size + _LENGTH.size + chunks * (_LENGTH.size + frame_mtu)
    return _START.size + HEAD_MAX + content + 1 + SIGNERS_MAX * _SIGNER_SIZE


def _read_head(data: bytes) -> tuple[_Head, bytes, int | None]:
    """The fields that each object has, the root of many rows, and the version to return to."""
    try:
        head = read_cbor(data)
    except WireError as error:
        raise WireError("reference", f"the header of an object: {error}") from error
    returns_to, returns = None, type(head) is tuple and len(head) == _FIELDS + 1
    if returns:
        *head, returns_to = head
    match head:
        case (int(version), bytes(link), bytes(model), 0 | 1 as finished, int(deadline), rows):
            sizes_fit = len(link) == HASH_SIZE and len(model) in (len(NO_MODEL), MODEL_SIZE)
            root, rows = (rows, ()) if type(rows) is bytes and rows else (b"", rows)
            has_rows = type(rows) is tuple and len(rows) <= COUNTED_MAX
            has_rows = has_rows and len(root) in (0, ROOT_SIZE)
            is_older = type(returns_to) is int and 0 <= returns_to < version - 1
            if sizes_fit and has_rows and (is_older or not returns):
                counted = tuple(map(read_row, rows))
                return (version, link, model, bool(finished), deadline, counted), root, returns_to
    raise WireError("reference", "the fields of an object's header are not valid")


def read_row(row: object) -> Counted:
    """A row of `plain_row`, as `read_cbor` gives it. Raises WireError."""
    match row:
        case (int(address), int(number), bytes(digest), bytes(have)):
            root = b""
        case (int(address), int(number), bytes(digest), bytes(have), bytes(root)) if root:
            pass
        case _:
            raise WireError("reference", "an entry of the list of counted updates is not valid")
    if len(digest) != DIGEST_SIZE or len(root) not in (0, ROOT_SIZE):
        raise WireError("reference", "an entry of the list of counted updates has another size")
    return Counted(address, number, digest, have, root)


def _read_chunks(data: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    """The chunks from a position on, and the position after them."""
    if at + _LENGTH.size > len(data):
        raise WireError("reference", "a global update ends before its chunks")
    (count,) = _LENGTH.unpack_from(data, at)
    if count > CHUNKS_MAX:
        raise WireError("reference", f"a global update has at most {CHUNKS_MAX} chunks")
    chunks = []
    at += _LENGTH.size
    for _ in range(count):
        if at + _LENGTH.size > len(data):
            raise WireError("reference", "a global update ends before its chunks")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        if at > len(data):
            raise WireError("reference", "a global update ends inside a chunk")
        chunks.append(data[at - length : at])
    return tuple(chunks), at
