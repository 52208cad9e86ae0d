"""The proof that a global update counts an update, in place of the list of all rows. SPEC 4.6.

The rows of a round are the leaves of a hash tree, those of eight addresses in each, so that a leaf
also shows that an update was not counted. A certified object holds the root, in place of a long
list or in the row of an aggregator; a node gets its leaf and the hashes beside the way to the
root, from whoever it has its session with.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Any

import cbor2

from ternmesh.errors import WireError
from ternmesh.wire.control import read_cbor, read_plain
from ternmesh.wire.frame import NODE_MAX
from ternmesh.wire.global_update import Counted, GlobalUpdate, plain_row, read_row
from ternmesh.wire.update import ROOT_SIZE

PROOF = 5  # the kind of object
LEAF = 8  # addresses
LEVELS_MAX = 4  # of hosts between a node and the certified object, and one
PATH_MAX = (NODE_MAX // LEAF).bit_length()
ROW_FIELDS = 5
_START = struct.Struct("<BI")
_LEAF, _JOINED = b"\0", b"\1"  # what is hashed


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a tree, and the way from it to the root."""

    index: int  # it has the rows of the addresses from LEAF * index on
    leaves: int  # of the tree
    rows: tuple[Counted, ...]
    path: tuple[bytes, ...]  # the hashes beside the way, from the leaf on


@dataclass(frozen=True, slots=True)
class Proof:
    """Leads from the global update to `version` to the rows of some addresses.

    Each address of `via` is that of an aggregator at the host above it, the highest first.
    """

    version: int
    via: tuple[int, ...]
    leaves: tuple[Leaf, ...]  # of a host that has sent a root, then of each host in `via`


def _hash(kind: bytes, *parts: bytes) -> bytes:
    return sha256(kind + b"".join(parts)).digest()[:ROOT_SIZE]


def _leaf_hash(index: int, rows: Sequence[Counted]) -> bytes:
    """With its index, so that no leaf shows that what another one has was not counted."""
    return _hash(_LEAF, cbor2.dumps([index, *map(plain_row, rows)], canonical=True))


def _joined(hashes: Sequence[bytes]) -> list[bytes]:
    """The level above: a hash without a neighbour goes up as it is."""
    pairs = [hashes[at : at + 2] for at in range(0, len(hashes), 2)]
    return [_hash(_JOINED, *pair) if len(pair) == 2 else pair[0] for pair in pairs]


class Tree:
    """The hash tree of the rows of a round.

    >>> tree = Tree([Counted(1, 7, b"1234", b"\\1"), Counted(20, 7, b"5678", b"\\1")])
    >>> leaf = tree.leaf_of(20)
    >>> [row.address for row in leaf.rows], root_of(leaf) == tree.root
    ([20], True)
    """

    def __init__(self, rows: Iterable[Counted]) -> None:
        self._rows: dict[int, list[Counted]] = {}
        for row in sorted(rows, key=lambda row: row.address):
            self._rows.setdefault(row.address // LEAF, []).append(row)
        self.leaves = max(self._rows, default=0) + 1
        level = [_leaf_hash(index, self._rows.get(index, ())) for index in range(self.leaves)]
        self._levels = [level]
        while len(level) > 1:
            level = _joined(level)
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def leaf_of(self, address: int) -> Leaf:
        """The leaf that shows what is counted of an address: above all rows, the last one."""
        index = min(address // LEAF, self.leaves - 1)
        path, at = [], index
        for level in self._levels[:-1]:
            path += level[at ^ 1 : (at ^ 1) + 1]
            at //= 2
        return Leaf(index, self.leaves, tuple(self._rows.get(index, ())), tuple(path))


@dataclass(frozen=True)
class RoundRows:
    """What a host must know to prove to its nodes which of their updates a global update counts."""

    version: int
    via: tuple[int, ...] = ()
    above: tuple[Leaf, ...] = ()  # leaves of the hosts above
    rows: tuple[Counted, ...] | None = None  # None: nothing of this host's region counts

    @cached_property
    def _tree(self) -> Tree:
        return Tree(self.rows or ())

    @property
    def root(self) -> bytes:
        """Of the rows of this host's region."""
        return self._tree.root

    def proofs(self, addresses: Iterable[int]) -> list[Proof]:
        """Proofs that together show what is counted of these addresses."""
        if self.rows is None:
            return [Proof(self.version, self.via, self.above)]
        leaves = {(leaf := self._tree.leaf_of(address)).index: leaf for address in addresses}
        return [Proof(self.version, self.via, (*self.above, leaf)) for leaf in leaves.values()]

    def stored(self) -> bytes:
        """What must be on disk."""
        above = [_plain_leaf(leaf) for leaf in self.above]
        rows = None if self.rows is None else [plain_row(row) for row in self.rows]
        return cbor2.dumps([self.version, self.via, above, rows])


def restored(data: bytes) -> RoundRows:
    """What `stored` has returned. Raises ValueError or WireError."""
    version, via, above, rows = read_plain(data)
    found = None if rows is None else tuple(read_row(tuple(row)) for row in rows)
    return RoundRows(version, tuple(via), tuple(map(_read_leaf, map(tuple, above))), found)


def root_of(leaf: Leaf) -> bytes:
    """The root to which a leaf and its path lead. Raises WireError."""
    own, at = _leaf_hash(leaf.index, leaf.rows), leaf.index
    count, path = leaf.leaves, list(leaf.path)
    while count > 1:
        if at ^ 1 < count:
            if not path:
                raise WireError("reference", "a proof ends before the root")
            beside = path.pop(0)
            own = _hash(_JOINED, *((own, beside) if at % 2 == 0 else (beside, own)))
        at, count = at // 2, (count + 1) // 2
    if path or not 0 <= leaf.index < leaf.leaves:
        raise WireError("reference", "a proof has hashes beside no way")
    return own


def proved_rows(step: GlobalUpdate, proof: Proof, address: int) -> tuple[Counted, ...]:
    """What a proof shows to be counted of an address, at most one row. Raises WireError."""
    if proof.version != step.version:
        raise WireError("reference", "a proof is of another version")
    leaves, rows, root = list(proof.leaves), step.counted, step.root
    for wanted in (*proof.via, address):
        if root:
            leaf = leaves.pop(0) if leaves else None
            if leaf is None or root_of(leaf) != root:
                raise WireError("reference", "a proof does not lead to the certified root")
            if leaf.index != min(wanted // LEAF, leaf.leaves - 1):
                raise WireError("reference", "a proof is for other addresses")
            rows = leaf.rows
        rows = tuple(row for row in rows if row.address == wanted)
        if not rows:
            return ()  # nothing of this region counts
        if wanted != address and not rows[0].root:
            raise WireError("reference", "a proof leads over a node that is no aggregator")
        root = rows[0].root
    return rows


def write_proof(proof: Proof) -> bytes:
    """The bytes of a proof, an object that travels beside its global update."""
    fields = [proof.version, list(proof.via), *map(_plain_leaf, proof.leaves)]
    encoded = cbor2.dumps(fields, canonical=True)
    return _START.pack(PROOF, len(encoded)) + encoded


def write_proofs(rows: RoundRows, addresses: Iterable[int]) -> list[bytes]:
    """The objects that prove to these addresses what is counted of them."""
    return [write_proof(proof) for proof in rows.proofs(addresses)]


def read_proof(data: bytes) -> Proof:
    """The proof in these bytes, not checked yet (`proved_rows`). Raises WireError."""
    if len(data) < _START.size or _START.unpack_from(data) != (PROOF, len(data) - _START.size):
        raise WireError("reference", "a proof has another length than it says")
    match read_cbor(data[_START.size :]):
        case (int(version), tuple(via), *leaves) if (
            len(via) < LEVELS_MAX
            and len(leaves) <= LEVELS_MAX
            and all(type(address) is int and 0 < address <= NODE_MAX for address in via)
        ):
            return Proof(version, via, tuple(map(_read_leaf, leaves)))
    raise WireError("reference", "the fields of a proof are not valid")


def _plain_leaf(leaf: Leaf) -> list[Any]:
    rows = [(row.address, row.round, row.digest, row.have, row.root) for row in leaf.rows]
    return [leaf.index, leaf.leaves, b"".join(leaf.path), *chain.from_iterable(rows)]


def _read_leaf(content: Any) -> Leaf:
    match content:
        case (int(index), int(leaves), bytes(path), *fields) if (
            0 <= index < leaves <= NODE_MAX // LEAF + 1
            and len(path) <= PATH_MAX * ROOT_SIZE
            and len(path) % ROOT_SIZE == len(fields) % ROW_FIELDS == 0
            and len(fields) <= LEAF * ROW_FIELDS
        ):
            rows = tuple(
                _read_row(fields[at : at + ROW_FIELDS]) for at in range(0, len(fields), ROW_FIELDS)
            )
            if any(row.address // LEAF != index for row in rows):
                raise WireError("reference", "a leaf has a row of another one")
            parts = range(0, len(path), ROOT_SIZE)
            return Leaf(index, leaves, rows, tuple(path[at : at + ROOT_SIZE] for at in parts))
    raise WireError("reference", "a leaf of a proof is not valid")


def _read_row(fields: Sequence[Any]) -> Counted:
    *row, root = fields
    return read_row(tuple(row) if root == b"" else (*row, root))
