import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import CodecError
from ternmesh.hypervector import feedback
from ternmesh.hypervector.encoder import Slicing, decode_slice, encode_vector, gather, scatter
from ternmesh.hypervector.permutation import order
from ternmesh.hypervector.scale import to_vector


@given(st.integers(0, 2**32), st.sampled_from([0.5, 0.9, 0.99]), st.floats(0, 0.6))
def test_nothing_is_lost(seed: int, zeros: float, loss: float) -> None:
    """The sum of what was counted, and the residual, are the sum of all deltas."""
    rng = np.random.default_rng(seed)
    slicing, residual = Slicing(700, 150), feedback.init(700)
    submitted = counted = np.zeros(700)
    for round_number in range(8):
        delta = (rng.standard_t(3, 700) * 0.01).astype(np.float32)
        places = order(b"m" * 32, round_number, 700)
        corrected = feedback.update(residual, delta)
        slices = encode_vector(corrected, places, slicing, zeros, 100)
        kept = [s for s in slices if rng.random() >= loss]
        parts = [(s.index, *decode_slice(s, slicing)) for s in kept]
        arrived = to_vector(scatter(gather(parts, slicing).units(), places))
        residual = feedback.settle(corrected, arrived)
        submitted, counted = submitted + delta, counted + arrived
    assert np.allclose(submitted, counted + residual, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_diverged_delta_is_refused(bad: float) -> None:
    residual = feedback.init(3)
    with pytest.raises(CodecError, match="diverged"):
        feedback.update(residual, np.array([0, bad, 0], np.float32))
    assert not residual.any()


def test_a_sum_that_overflows_is_refused() -> None:
    huge = np.full(2, 3e38, np.float32)
    with pytest.raises(CodecError):
        feedback.update(huge, huge)


def test_another_length_is_refused() -> None:
    with pytest.raises(CodecError, match="fit"):
        feedback.update(feedback.init(3), np.zeros(4, np.float32))
