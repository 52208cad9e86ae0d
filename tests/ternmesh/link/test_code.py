import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh import generator
from ternmesh.errors import WireError
from ternmesh.link.erasure_code import (
    PRODUCTS,
    Decoder,
    Layout,
    best_symbol_bytes,
    coefficients,
    encode_symbols,
)

NAME = b"name"
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "symbols.json").read_text())


def content(size: int) -> bytes:
    return generator.words((1, size), -(-size // 4)).astype("<u4").tobytes()[:size]


# Layout


@pytest.mark.parametrize(
    ("size", "symbol_bytes"), [(0, 1), (-5, 1), (10, 0), (10, -1), (32_769, 1), (9_999, 4_080)]
)
def test_refuses_a_layout_that_cannot_be(size: int, symbol_bytes: int) -> None:  # R8.1-2
    with pytest.raises(WireError) as caught:
        Layout(size, symbol_bytes)
    assert caught.value.reason == "symbol"


@given(st.integers(1, 32_768))
def test_generations_share_the_source_evenly(count: int) -> None:
    layout = Layout(count, 1)
    members = [layout.source(generation) for generation in range(layout.generations)]
    sizes = [len(member) for member in members]
    assert max(sizes) <= 128
    assert max(sizes) - min(sizes) <= 1
    assert sorted(index for member in members for index in member) == list(range(count))
    for generation, member in enumerate(members):
        assert {layout.generation(index) for index in (member[0], member[-1])} == {generation}
        assert layout.generation(count + generation) == generation


@given(st.integers(1, 10**6), st.integers(1, 4079))
def test_symbols_divide_the_object_evenly(size: int, room: int) -> None:  # R8.1-4
    symbol_bytes = best_symbol_bytes(size, room)
    count = -(-size // symbol_bytes)
    assert symbol_bytes <= room
    assert count == -(-size // room)  # as few as the room allows
    assert symbol_bytes == 1 or (symbol_bytes - 1) * count < size  # and no smaller ones would do


@pytest.mark.parametrize(("size", "room"), [(0, 10), (10, 0), (10, -1)])
def test_refuses_a_room_for_nothing(size: int, room: int) -> None:
    with pytest.raises(ValueError, match="cannot travel"):
        best_symbol_bytes(size, room)


@pytest.mark.parametrize(("size", "index"), [(10, -1), (10, 65_536), (11, 0)])
def test_refuses_to_encode_what_the_layout_does_not_have(size: int, index: int) -> None:
    with pytest.raises(ValueError, match="10 bytes and indexes below 65536"):
        encode_symbols(Layout(10, 2), NAME, bytes(size), [0, index])


# Encoding


@pytest.mark.parametrize("case", VECTORS.values(), ids=list(VECTORS))
def test_golden_symbols(case: dict[str, Any]) -> None:
    data, name = bytes.fromhex(case["object"]), bytes.fromhex(case["name"])
    for index, symbol in case["symbols"].items():
        assert symbol == spec_symbol(data, case["symbol_bytes"], name, int(index)).hex()


def spec_symbol(data: bytes, s: int, name: bytes, i: int) -> bytes:
    """SPEC.md 8.1, one byte at a time; nothing of the package but the stream and the products."""
    k = -(-len(data) // s)
    source = [data[s * n : s * n + s].ljust(s, b"\0") for n in range(k)]
    if i < k:
        return source[i]
    generations = -(-k // 128)
    total = [0] * s
    for j, row in enumerate(source[(i - k) % generations :: generations]):
        place = 128 * i + j
        (word,) = generator.words(generator.derive_key("symbol", name), 1, place // 4)
        c = (int(word) >> 8 * (place % 4) & 0xFF) or 1
        total = [t ^ int(PRODUCTS[c, byte]) for t, byte in zip(total, row, strict=True)]
    return bytes(total)


def test_coefficients_are_never_zero_and_spread() -> None:
    rows = coefficients(NAME, range(2000), 128)
    counts = np.bincount(rows.reshape(-1), minlength=256)
    assert counts[0] == 0
    assert counts[1] == pytest.approx(2000, rel=0.15)  # zeros count as ones
    assert np.all(np.abs(counts[2:] - 1000) < 200)
    assert np.array_equal(coefficients(NAME, range(2000), 17), rows[:, :17])
    assert not np.array_equal(coefficients(b"eman", range(2000), 128), rows)


# Decoding


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Layout, list[int]]:
    """A layout and indexes in any order, more of them repair than is usual, some twice."""
    symbol_bytes = draw(st.integers(1, 9))
    size = draw(st.one_of(st.integers(1, 12), st.integers(1, 300))) * symbol_bytes
    layout = Layout(max(1, size - draw(st.integers(0, symbol_bytes - 1))), symbol_bytes)
    source = st.integers(0, layout.count - 1)
    near = st.integers(layout.count, layout.count + 12)
    anything = st.one_of(source, near, st.integers(layout.count, 65_535))
    return layout, draw(st.lists(anything, max_size=40))


@given(transfers())
def test_any_symbols_that_suffice_give_the_object(transfer: tuple[Layout, list[int]]) -> None:
    # R8.1-1
    layout, indexes = transfer
    data = content(layout.size)
    indexes = indexes + list(range(layout.count - 1, -1, -1))  # whatever came, these complete it
    decoder, kept = Decoder(layout, NAME), {}
    for index, symbol in zip(indexes, encode_symbols(layout, NAME, data, indexes), strict=True):
        held, wanted = decoder.holds(index), list(decoder.missing)
        if decoder.add(index, symbol):
            assert not held
            kept[index] = symbol
            wanted[layout.generation(index)] -= 1
        assert not decoder.add(index, symbol)
        assert decoder.missing == tuple(wanted)
    assert decoder.is_complete
    assert decoder.data() == data
    assert len(kept) == layout.count
    again = Decoder(layout, NAME)
    assert all(again.add(index, kept[index]) for index in reversed(kept))
    assert again.data() == data
