import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import CodecError, WireError
from ternmesh.hypervector import trits

ternary = st.lists(st.integers(-1, 1), max_size=300).map(lambda v: np.array(v, np.int8))


@given(ternary)
def test_packing_loses_nothing(values: np.ndarray) -> None:
    data = trits.pack_trits(values)
    assert len(data) == -(-values.size // 5)
    assert np.array_equal(trits.unpack_trits(data, values.size), values)


@given(st.binary(max_size=60), st.integers(0, 320))
def test_any_bytes_are_trits_or_a_wire_error(data: bytes, count: int) -> None:
    try:
        values = trits.unpack_trits(data, count)
    except WireError:
        return
    assert trits.pack_trits(values) == data


@pytest.mark.parametrize(
    ("data", "count"),
    [(b"", 1), (b"\x79", 0), (b"\x79\x79", 5), (b"\xf3", 5), (b"\xff", 3), (b"\x00", 4)],
)
def test_bytes_that_are_no_trits(data: bytes, count: int) -> None:
    with pytest.raises(WireError):
        trits.unpack_trits(data, count)


@given(ternary, st.randoms(use_true_random=False))
def test_the_inner_product_is_numpys(values: np.ndarray, rng: object) -> None:
    other = values.copy()
    rng.shuffle(other)  # type: ignore[attr-defined]
    a, b = trits.to_planes(values), trits.to_planes(other)
    assert len(a) == values.size
    assert trits.inner_product(a, b) == int(values.astype(np.int64) @ other.astype(np.int64))
    assert np.array_equal(trits.from_planes(a), values)


def test_a_long_inner_product_is_numpys() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-1, 2, (2, 300_001)).astype(np.int8)
    exact = int(a.astype(np.int64) @ b.astype(np.int64))
    assert trits.inner_product(trits.to_planes(a), trits.to_planes(b)) == exact


def test_vectors_of_different_length_are_not_compared() -> None:
    a, b = (trits.to_planes(np.zeros(n, np.int8)) for n in (8, 9))
    with pytest.raises(CodecError, match="8 and 9"):
        trits.inner_product(a, b)
