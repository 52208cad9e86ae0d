import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import CodecError, WireError
from ternmesh.hypervector import coding, levels
from ternmesh.hypervector.levels import LAYERS_MAX, Levels, quantise


def heavy(size: int = 20_000) -> np.ndarray:
    return (0.01 * np.random.default_rng(0).standard_t(3, size)).astype(np.float32)


integers = st.lists(st.sampled_from([0] * 9 + [1, -1, 1, -1, 2, -3, 40]), max_size=300)


@given(integers, st.integers(1, LAYERS_MAX))
def test_coding_loses_nothing(values: list[int], layers: int) -> None:
    whole = np.array(values, np.int16)
    if layers == 1:
        whole = np.sign(whole)
    made = Levels(whole, tuple(range(100, 100 + layers)), 50 if layers > 1 else 0)
    again = levels.decode(levels.encode(made), len(values))
    assert again.values.tolist() == whole.tolist()
    assert (again.worth, again.slope) == (made.worth, made.slope)


@given(st.binary(max_size=40), st.integers(0, 200))
def test_any_bytes_are_levels_or_a_wire_error(data: bytes, size: int) -> None:
    try:
        found = levels.decode(data, size)
    except WireError:
        return
    assert found.vector().shape == (size,)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_is_levels_or_a_wire_error(place: int, byte: int) -> None:
    data = bytearray(levels.encode(quantise(heavy(500), 0.02, 0.02, 2)))
    data[place % len(data)] = byte
    try:
        found = levels.decode(bytes(data), 500)
    except WireError:
        return
    assert found.vector().shape == (500,)


def test_worths_are_the_means_of_their_levels() -> None:
    vector = heavy()
    found = quantise(vector, 0.02, 0.03, 2)
    decoded = found.vector()
    magnitudes = np.abs(vector)
    for level in (1, 2):
        mine = np.abs(found.values) == level
        assert np.abs(decoded[mine]).mean() == pytest.approx(magnitudes[mine].mean(), rel=1e-3)
    assert not decoded[magnitudes <= 0.02].any()
    assert (np.sign(decoded) == np.sign(found.values)).all()


def test_more_layers_are_nearer() -> None:
    vector = heavy()
    errors = [
        float(np.square(vector - quantise(vector, 0.02, 0.02, layers).vector()).sum())
        for layers in (1, 2, 3)
    ]
    assert errors == sorted(errors, reverse=True)


def test_a_rare_level_costs_less_than_a_bit_for_each_value() -> None:
    """What the nested layers are for: the vote form of coding.py pays a bit for each nonzero."""
    found = quantise(heavy(), 0.04, 0.04, 2)
    votes = coding.encode(np.clip(found.values, -127, 127).astype(np.int8))
    assert len(levels.encode(found)) < len(votes.data)


def test_nan_is_refused() -> None:
    with pytest.raises(CodecError):
        quantise(np.array([np.nan], np.float32), 1.0, 1.0, 1)


def test_what_is_left_over_is_refused() -> None:
    data = levels.encode(Levels(np.array([0, 1, 0], np.int16), (100,), 0))
    assert levels.decode(data, 3).values.tolist() == [0, 1, 0]
    with pytest.raises(WireError, match="left over"):
        levels.decode(data + b"\0", 3)
    with pytest.raises(WireError, match="left over"):
        levels.decode(data[:-1] + bytes([data[-1] | 0x80]), 3)
