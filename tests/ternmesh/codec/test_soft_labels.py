"""Soft labels: what is coded is read, any other bytes are refused, and few bits are needed."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ternmesh.codec.soft_labels import KEPT, UNITS, decode, encode, quantise, to_probabilities
from ternmesh.errors import CodecError, WireError

shapes = st.tuples(st.integers(1, 30), st.integers(1, 12))
positive = hnp.arrays(np.float64, shapes, elements=st.floats(1e-9, 1.0))


@given(positive)
def test_coding_loses_nothing(probabilities: np.ndarray) -> None:
    units = quantise(probabilities)
    assert (units.sum(axis=1) == UNITS).all()
    assert (np.count_nonzero(units, axis=1) <= KEPT).all()
    assert (decode(encode(units), *units.shape) == units).all()


@given(st.binary(max_size=30), st.integers(0, 40), st.integers(0, 12))
@example(b"\x01", 1, 1)
@example(b"\x00", 1, 2)
def test_any_bytes_are_a_canonical_code_or_refused(data: bytes, rows: int, classes: int) -> None:
    try:
        units = decode(data, rows, classes)
    except WireError:
        return
    assert encode(units) == data


def test_equal_probabilities_have_one_order() -> None:
    assert decode(bytes([96]), 1, 3).tolist() == [[4, 0, 4]]
    with pytest.raises(WireError, match="order"):
        decode(bytes([86]), 1, 3)  # the same classes, the other way around


def test_quantising_is_exact_to_a_sixteenth_of_the_kept_sum() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.3] * 3, 500)
    apart = np.abs(to_probabilities(quantise(probabilities)) - probabilities)
    assert apart.max() < 1 / UNITS


def test_sure_labels_cost_little_more_than_their_class() -> None:
    units = quantise(np.eye(10)[np.random.default_rng(0).integers(0, 10, 500)])
    assert 8 * len(encode(units)) / len(units) < np.log2(10) + 0.15


@pytest.mark.parametrize(
    "probabilities", [[[0.0, 0.0]], [[np.nan, 1.0]], [[np.inf, 1.0]], [[-1.0, -2.0]], [[]]]
)
def test_what_is_no_probability_is_refused(probabilities: list[list[float]]) -> None:
    with pytest.raises(CodecError):
        quantise(np.array(probabilities))


@pytest.mark.parametrize("row", [[8, 8], [4, 3], [2, 2, 2, 2]])
def test_what_is_no_soft_label_is_not_coded(row: list[int]) -> None:
    with pytest.raises(CodecError):
        encode(np.array([row], dtype=np.uint8))
