"""Proofs show just what a global update counts, over any number of aggregators."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.wire.global_update import Counted, GlobalUpdate
from ternmesh.wire.proof import (
    Leaf,
    Proof,
    RoundRows,
    Tree,
    proved_rows,
    read_proof,
    restored,
    write_proof,
)

ADDRESSES = st.sets(st.integers(1, 300), min_size=1, max_size=60)


def row(address: int, root: bytes = b"") -> Counted:
    return Counted(address, 6, address.to_bytes(4, "little"), b"\x0f", root)


def step(rows: tuple[Counted, ...] = (), root: bytes = b"") -> GlobalUpdate:
    return GlobalUpdate(7, bytes(16), b"", False, 1000, rows, (), root=root)


@given(ADDRESSES, st.integers(1, 320))
def test_each_address_is_proved_to_count_or_not(counted: set[int], address: int) -> None:
    # R4.6-6, R4.6-8
    rows = RoundRows(7, rows=tuple(map(row, sorted(counted))))
    assert rows.rows is not None
    [proof] = rows.proofs([address])
    made = step(root=Tree(rows.rows).root)
    assert read_proof(write_proof(proof)) == proof
    expected = (row(address),) if address in counted else ()
    assert proved_rows(made, proof, address) == expected
    assert restored(rows.stored()) == rows


@given(ADDRESSES, st.data())
def test_no_other_row_leads_to_the_root(counted: set[int], data: st.DataObject) -> None:
    address = data.draw(st.sampled_from(sorted(counted)))
    rows = tuple(map(row, sorted(counted)))
    [proof] = RoundRows(7, rows=rows).proofs([address])
    [leaf] = proof.leaves
    without = tuple(one for one in leaf.rows if one.address != address)
    others = [replace(leaf, rows=without), replace(leaf, index=leaf.index + 1)]
    others += [replace(leaf, rows=(*without, replace(row(address), digest=b"fake")))]
    others += [replace(leaf, path=(*leaf.path, bytes(16)))]
    for other in others:
        with pytest.raises(WireError):
            proved_rows(step(root=Tree(rows).root), replace(proof, leaves=(other,)), address)


def test_a_board_two_aggregators_away_is_proved() -> None:
    boards = tuple(map(row, range(1, 40)))
    shed = row(3, Tree(boards).root)
    house = row(40, Tree((row(1), shed)).root)
    street = (*map(row, range(1, 40)), house)
    [above] = RoundRows(7, rows=street).proofs([40])
    middle = RoundRows(7, (40,), above.leaves, (row(1), shed))
    [through] = middle.proofs([3])
    lowest = RoundRows(7, (40, 3), through.leaves, boards)
    made = step(root=Tree(street).root)
    for address in (1, 17, 39):
        [proof] = lowest.proofs([address])
        assert proved_rows(made, proof, address) == (row(address),)
        assert len(write_proof(proof)) < 700
    nothing = RoundRows(7, (40, 5), through.leaves).proofs([1])
    assert proved_rows(made, nothing[0], 1) == ()  # that aggregator does not count
    with pytest.raises(WireError, match="no aggregator"):
        proved_rows(made, replace(proof, via=(40, 1)), 39)
    with pytest.raises(WireError, match="version"):
        proved_rows(replace(made, version=8), proof, 39)


@pytest.mark.parametrize(
    "proof",
    [
        Proof(7, (1, 2, 3, 4), ()),
        Proof(7, (0,), ()),
        Proof(7, (), (Leaf(0, 1, (row(9),), ()),)),
        Proof(7, (), (Leaf(2, 1, (), ()),)),
        Proof(7, (), (Leaf(0, 1, (), (b"short",)),)),
    ],
)
def test_what_is_no_proof_is_refused(proof: Proof) -> None:  # R4.6-6
    with pytest.raises(WireError):
        read_proof(write_proof(proof))


def test_a_damaged_proof_is_refused() -> None:  # R4.6-6
    data = write_proof(Proof(7, (), (Tree([row(1)]).leaf_of(1),)))
    for damaged in (b"", data[:-1], data + b"\0", b"\6" + data[1:]):
        with pytest.raises(WireError):
            read_proof(damaged)
