import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmesh.codec.encoder import Slicing, decode_slice, encode_vector
from ternmesh.codec.entropy_coder import CODEBOOK, MAGNITUDES
from ternmesh.codec.permutation import order
from ternmesh.codec.scale import UNIT
from ternmesh.codec.votes import encode_votes
from ternmesh.errors import CodecError

DIMENSION, ROOM, SCALE_MAX = 3000, 140, 1 << 24
ORDER = order(bytes(32), 0, DIMENSION)


def captured(vector: np.ndarray, slices: list, slicing: Slicing) -> float:
    """The share of a vector's energy that slices capture."""
    shuffled, left = vector[ORDER].astype(np.float64), 0.0
    for item in slices:
        votes, scale = decode_slice(item, slicing)
        part = shuffled[item.index * slicing.span :][: votes.size]
        left += np.square(part - votes.astype(np.float64) * scale * UNIT).sum()
    return 1 - left / np.square(shuffled).sum()


@pytest.mark.parametrize("span", [300, 1000, 3000])
@pytest.mark.parametrize("shape", ["gauss", "student", "uniform"])
def test_votes_capture_more_than_trits_in_the_same_room(span: int, shape: str) -> None:
    rng = np.random.default_rng(1)
    draw = {
        "gauss": rng.normal(size=DIMENSION),
        "student": rng.standard_t(3, DIMENSION),
        "uniform": rng.uniform(-1, 1, DIMENSION),
    }[shape]
    vector, slicing = (0.01 * draw).astype(np.float32), Slicing(DIMENSION, span)
    slices = encode_votes(vector, ORDER, slicing, ROOM, SCALE_MAX)
    assert max(len(item.coded.data) for item in slices) <= ROOM
    trits = encode_vector(vector, ORDER, slicing, 0.0, ROOM)[0]
    assert captured(vector, slices, slicing) >= captured(vector, trits, slicing) - 0.002
    if span == 300:
        assert captured(vector, slices, slicing) > 0.95
        assert all(item.coded.coding & MAGNITUDES for item in slices)


def test_where_nothing_stands_out_the_codebook_is_taken() -> None:
    vector = np.random.default_rng(2).uniform(-1, 1, DIMENSION).astype(np.float32)
    [item] = encode_votes(vector, ORDER, Slicing(DIMENSION, DIMENSION), ROOM, SCALE_MAX)
    assert item.coded.coding == CODEBOOK


@given(
    st.lists(
        st.floats(-60, 60, width=32) | st.just(0.0) | st.just(2.0**-25), min_size=30, max_size=30
    ),
    st.sampled_from([1, 5, 1 << 10, 1 << 24, (1 << 31) - 1]),
)
@settings(max_examples=40, deadline=None)
def test_no_vote_is_worth_more_than_is_allowed(values: list[float], scale_max: int) -> None:
    vector, slicing = np.array(values, np.float32), Slicing(30, 20)
    for item in encode_votes(vector, order(bytes(32), 0, 30), slicing, 117, scale_max):
        votes, scale = decode_slice(item, slicing)
        assert np.abs(votes.astype(np.int64)).max() * scale <= scale_max
        assert (item.coded.count == 0) == (scale == 0)
        assert len(item.coded.data) <= 117


def test_many_equal_values_still_fit() -> None:
    vector = np.ones(DIMENSION, np.float32)
    vector[::2] = -1
    [item] = encode_votes(vector, ORDER, Slicing(DIMENSION, DIMENSION), ROOM, SCALE_MAX)
    assert len(item.coded.data) <= ROOM
    assert item.coded.count > 0


def test_nothing_is_nothing_and_nan_is_refused() -> None:
    slicing = Slicing(DIMENSION, 1000)
    for item in encode_votes(np.zeros(DIMENSION, np.float32), ORDER, slicing, ROOM, SCALE_MAX):
        assert (item.scale, item.coded.count) == (0, 0)
    with pytest.raises(CodecError):
        encode_votes(np.full(DIMENSION, np.nan, np.float32), ORDER, slicing, ROOM, SCALE_MAX)
