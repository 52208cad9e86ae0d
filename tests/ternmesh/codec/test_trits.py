import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.codec import entropy_coder
from ternmesh.errors import WireError

ternary = st.lists(st.integers(-1, 1), max_size=300).map(lambda v: np.array(v, np.int8))


@given(st.binary(max_size=60), st.integers(0, 320))
def test_any_bytes_are_trits_or_a_wire_error(data: bytes, count: int) -> None:
    try:
        values = entropy_coder.unpack_trits(data, count)
    except WireError:
        return
    assert entropy_coder.pack_trits(values) == data


@pytest.mark.parametrize(
    ("data", "count"),
    [(b"", 1), (b"\x79", 0), (b"\x79\x79", 5), (b"\xf3", 5), (b"\xff", 3), (b"\x00", 4)],
)
def test_bytes_that_are_no_trits(data: bytes, count: int) -> None:  # R2.4-1
    with pytest.raises(WireError):
        entropy_coder.unpack_trits(data, count)
