import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.codec import scale
from ternmesh.errors import CodecError, WireError


def test_every_code_is_one_scale_or_a_wire_error() -> None:  # R2.3-2
    worth = {}
    for code in range(1 << 16):
        try:
            worth[code] = scale.decode_scale(code)
        except WireError:
            continue
    assert len(set(worth.values())) == len(worth)  # one code for each value
    assert list(worth.values()) == sorted(worth.values())
    assert max(worth.values()) == scale.SCALE_MAX
    assert all(
        scale.encode_scale(delta_q24 * scale.UNIT) == code for code, delta_q24 in worth.items()
    )


@given(st.floats(min_value=0, allow_infinity=True))
def test_a_scale_is_within_its_precision(value: float) -> None:  # R2.3-3
    delta_q24 = scale.decode_scale(scale.encode_scale(value))
    wanted = min(value / scale.UNIT, scale.SCALE_MAX)
    assert abs(delta_q24 - wanted) <= max(0.5, wanted * 2.0**-11)


@given(st.integers(0, 2 * scale.SCALE_MAX))
def test_the_largest_scale_below_a_limit(delta_q24: int) -> None:
    code = scale.floor_scale(delta_q24)
    assert scale.decode_scale(code) <= delta_q24
    if delta_q24 < scale.SCALE_MAX:
        above = [c for c in range(code + 1, code + 1026) if (c >> 11 == 0 or c & 0x400)]
        assert scale.decode_scale(above[0]) > delta_q24


@pytest.mark.parametrize("value", [float("nan"), -1.0, -1e-30, float("-inf")])
def test_what_is_no_scale(value: float) -> None:  # R2.3-2
    with pytest.raises(CodecError):
        scale.encode_scale(value)


def test_addition_saturates() -> None:  # R2.3-1
    ends = np.array([scale.Q24_MAX, -scale.Q24_MAX, 5], np.int32)
    delta_q24 = np.array([1, -(2**62), -7], np.int64)
    assert scale.add_q24(ends, delta_q24).tolist() == [scale.Q24_MAX, -scale.Q24_MAX, -2]
