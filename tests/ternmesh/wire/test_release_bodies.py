"""ReleaseOffer, symbol and status of a release: what is written is read, and nothing else."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import ModelPackageError, WireError
from ternmesh.link.erasure_code import Layout, encode_symbols
from ternmesh.release import read_object
from ternmesh.wire import release
from ternmesh.wire.release import (
    BAD,
    GENERATIONS_MAX,
    RECEIVING,
    REFUSED,
    ReleaseOffer,
    ReleaseStatus,
    ReleaseSymbol,
)

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "release.json").read_text())
OFFER = ReleaseOffer(
    bytes(range(32)), 400_000, 200, "keyword", 7, 1_800_000_000, 1, 65_536, 2, 40_000
)
READERS = {
    "ReleaseOffer": release.read_offer,
    "ReleaseSymbol": release.read_symbol,
    "ReleaseStatus": release.read_status,
}
WRITERS: dict[str, Any] = {
    "ReleaseOffer": release.write_offer,
    "ReleaseSymbol": release.write_symbol,
    "ReleaseStatus": release.write_status,
}
numbers = st.integers(0, 0xFFFF)
texts = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=release.REASON_MAX)
statuses = st.one_of(
    st.builds(
        ReleaseStatus,
        st.binary(min_size=4, max_size=4),
        st.just(RECEIVING),
        st.lists(numbers, min_size=1, max_size=GENERATIONS_MAX).map(tuple),
    ),
    st.builds(
        ReleaseStatus,
        st.binary(min_size=4, max_size=4),
        st.sampled_from((BAD, REFUSED)),
        reason=texts,
    ),
)


@pytest.mark.parametrize("name", [n for n in VECTORS if "type" in VECTORS[n]])
def test_golden_bodies(name: str) -> None:
    case = VECTORS[name]
    body = bytes.fromhex(case["bytes"])
    message = READERS[case["type"]](body)
    assert WRITERS[case["type"]](message) == body


def test_golden_symbols_of_a_large_generation() -> None:
    case = VECTORS["symbols"]
    data, name = bytes.fromhex(case["object"]), bytes.fromhex(case["name"])
    layout = Layout(len(data), case["symbol_bytes"], case["generation_max"])
    found = encode_symbols(layout, name, data, [int(index) for index in case["symbols"]])
    assert [symbol.hex() for symbol in found] == list(case["symbols"].values())


@given(statuses)
def test_statuses(status: ReleaseStatus) -> None:
    assert release.read_status(release.write_status(status)) == status


@given(st.binary(min_size=2, max_size=2), numbers, st.binary(min_size=1, max_size=300))
def test_symbols(tag: bytes, index: int, data: bytes) -> None:
    symbol = ReleaseSymbol(tag, index, data)
    assert release.read_symbol(release.write_symbol(symbol)) == symbol


@pytest.mark.parametrize(
    "change",
    [
        {"digest": b"short"},
        {"size": 0},
        {"name": "no name"},
        {"version": 0},
        {"stage": 3},
        {"tries": 65_537},
        {"asked": 3},
    ],
)
def test_a_field_out_of_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        release.read_offer(release.write_offer(replace(OFFER, **change)))


@given(st.binary(max_size=200), st.sampled_from((0x16, 0x17, 0x18)))
def test_any_bytes_give_a_value_or_our_error(data: bytes, kind: int) -> None:
    for read in READERS.values():
        with contextlib.suppress(WireError):
            read(bytes((kind,)) + data)
    with contextlib.suppress(ModelPackageError):
        read_object(data)


def test_a_long_or_foreign_reason_is_cut_and_readable() -> None:
    body = release.write_status(ReleaseStatus(bytes(4), BAD, reason="zu groß " * 40))
    assert release.read_status(body).reason.startswith("zu gro? ")
    assert len(body) == 6 + release.REASON_MAX
