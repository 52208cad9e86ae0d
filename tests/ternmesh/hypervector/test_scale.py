import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ternmesh.errors import CodecError, WireError
from ternmesh.hypervector import scale


def test_every_code_is_one_scale_or_a_wire_error() -> None:
    worth = {}
    for code in range(1 << 16):
        try:
            worth[code] = scale.decode_scale(code)
        except WireError:
            continue
    assert len(set(worth.values())) == len(worth)  # one code for each value
    assert list(worth.values()) == sorted(worth.values())
    assert max(worth.values()) == scale.SCALE_MAX
    assert all(scale.encode_scale(units * scale.UNIT) == code for code, units in worth.items())


@given(st.floats(min_value=0, allow_infinity=True))
def test_a_scale_is_within_its_precision(value: float) -> None:
    units = scale.decode_scale(scale.encode_scale(value))
    wanted = min(value / scale.UNIT, scale.SCALE_MAX)
    assert abs(units - wanted) <= max(0.5, wanted * 2.0**-11)


@given(st.integers(0, 2 * scale.SCALE_MAX))
def test_the_largest_scale_below_a_limit(units: int) -> None:
    code = scale.floor_scale(units)
    assert scale.decode_scale(code) <= units
    if units < scale.SCALE_MAX:
        above = [c for c in range(code + 1, code + 1026) if (c >> 11 == 0 or c & 0x400)]
        assert scale.decode_scale(above[0]) > units


@pytest.mark.parametrize("value", [float("nan"), -1.0, -1e-30, float("-inf")])
def test_what_is_no_scale(value: float) -> None:
    with pytest.raises(CodecError):
        scale.encode_scale(value)


@given(
    hnp.arrays(np.float32, 20, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
)
def test_fixed_point_round_trips_within_half_a_unit(values: np.ndarray) -> None:
    fixed = scale.to_fixed(values)
    inside = np.abs(values) < 127.9
    error = np.abs(fixed * scale.UNIT - values.astype(np.float64))[inside]
    assert (error <= scale.UNIT / 2).all()
    assert (np.abs(fixed.astype(np.int64)) <= scale.FIXED_MAX).all()
    small = np.abs(values) < 0.5  # float32 has 24 bits: up to there every unit has a float
    assert np.array_equal(scale.to_fixed(scale.to_float(fixed))[small], fixed[small])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_fixed_point_has_no_nan(bad: float) -> None:
    with pytest.raises(CodecError, match="diverged"):
        scale.to_fixed(np.array([0, bad], np.float32))


def test_addition_saturates() -> None:
    ends = np.array([scale.FIXED_MAX, -scale.FIXED_MAX, 5], np.int32)
    units = np.array([1, -(2**62), -7], np.int64)
    assert scale.add_fixed(ends, units).tolist() == [scale.FIXED_MAX, -scale.FIXED_MAX, -2]
