import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmesh.codec import encoder
from ternmesh.codec.entropy_coder import CODEBOOK
from ternmesh.codec.permutation import order
from ternmesh.codec.scale import UNIT, to_vector
from ternmesh.errors import CodecError


def vectors(dimension: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {
        "gaussian": rng.normal(0, 1e-3, dimension),
        "heavy tails": rng.standard_cauchy(dimension),
        "zeros": np.zeros(dimension),
        "constant": np.full(dimension, -0.25),
        "one": np.eye(1, dimension, dimension - 1)[0],
        "huge": rng.choice([-1.0, 1.0], dimension) * 3e38,
        "tiny": rng.normal(0, 1e-9, dimension),
        "some units": rng.normal(0, 0.5 * UNIT, dimension),
        "denormal": np.full(dimension, 1e-42),
        "clustered": np.where(np.arange(dimension) < dimension // 10, 1.0, 1e-6),
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


@given(
    st.integers(1, 4000) | st.sampled_from([1, 2, 7]),
    st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.999]),
    st.integers(140, 400),
    st.integers(0, 1000),
)
@example(1, 0.999, 140, 0)
@example(7, 0.0, 140, 0)
def test_no_share_exceeds_its_room(dimension: int, zeros: float, room: int, seed: int) -> None:
    slicing = encoder.Slicing(dimension, encoder.choose_span(dimension, room, zeros))
    places = order(b"m" * 32, 0, dimension)
    for name, vector in vectors(dimension, seed).items():
        slices, carried = encoder.encode_vector(vector, places, slicing, zeros, room)
        decoded = encoder.gather(
            [(s.index, *encoder.decode_slice(s, slicing)) for s in slices], slicing
        )
        assert np.array_equal(carried.delta_q24(), decoded.delta_q24()), name
        assert carried.present.all()
        assert [item.index for item in slices] == list(range(slicing.count)), name
        for item in slices:
            assert len(item.coded.data) <= room, name
            trits, scale = encoder.decode_slice(item, slicing)
            assert trits.size == slicing.size(item.index), name
            assert (item.coded.count == 0) == (scale == 0), name
            part = vector[places][item.index * slicing.span :][: trits.size]
            if item.coded.coding == CODEBOOK:
                assert np.dot(trits.astype(np.float64), part) > 0, name
            else:
                assert (trits[trits != 0] == np.sign(part[trits != 0])).all(), name


def test_a_span_far_too_wide_still_fits() -> None:  # R2.5-4
    """A plan may be wrong about the density: then the slices hold more zeros."""
    vector = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    [item] = encoder.encode_vector(
        vector, np.arange(50_000), encoder.Slicing(50_000, 50_000), 0.0, 140
    )[0]
    assert item.coded.count > 0
    assert 130 < len(item.coded.data) <= 140


def test_what_is_absent_stays_zero() -> None:
    slicing = encoder.Slicing(10, 4)
    vector = encoder.gather([(2, np.array([1, -1], np.int8), 5)], slicing)
    assert vector.present.tolist() == [False, False, True]
    assert vector.delta_q24().tolist() == [0] * 8 + [5, -5]


def test_the_scale_is_the_best_for_its_nonzeros() -> None:
    values = np.random.default_rng(3).standard_normal(400).astype(np.float32)
    trits, scale = encoder.ternarise(values, 40)
    assert np.count_nonzero(trits) == 40
    assert np.abs(values[trits != 0]).min() >= np.abs(values[trits == 0]).max()
    errors = [float(((values - s * trits) ** 2).sum()) for s in (scale * 0.99, scale, scale * 1.01)]
    assert min(errors) == errors[1]


def test_a_value_below_one_unit_is_not_sent() -> None:  # R2.5-4
    values = np.array([UNIT / 2, -UNIT, 3 * UNIT], np.float32)
    assert encoder.ternarise(values, 3)[0].tolist() == [0, 0, 1]


def captured(vector: np.ndarray, zeros: float) -> tuple[float, set[int]]:
    """The share of the energy that arrives, and the codings that were chosen."""
    dimension, room = vector.size, 160
    slicing = encoder.Slicing(dimension, encoder.choose_span(dimension, room, zeros))
    slices = encoder.encode_vector(vector, np.arange(dimension), slicing, zeros, room)[0]
    parts = [(item.index, *encoder.decode_slice(item, slicing)) for item in slices]
    decoded = encoder.gather(parts, slicing)
    rest = vector - decoded.delta_q24() * UNIT
    codings = {item.coded.coding for item in slices}
    return 1 - float(np.square(rest).sum() / np.square(vector).sum()), codings


@pytest.mark.parametrize(("zeros", "chunk"), [(0.9, 0.5), (0.95, 0.33), (0.99, 0.095)])
def test_values_of_which_none_stands_out_go_by_codebook(zeros: float, chunk: float) -> None:
    # R2.5-2
    rng = np.random.default_rng(0)
    for vector in (rng.uniform(-1, 1, 6000), rng.choice([-1.0, 1.0], 6000)):
        arrived, codings = captured(vector.astype(np.float32), zeros)
        assert codings == {CODEBOOK}
        assert arrived > chunk


def test_values_of_which_some_stand_out_go_by_sparse_code() -> None:  # R2.5-2
    vector = np.random.default_rng(0).standard_t(3, 6000).astype(np.float32)
    arrived, codings = captured(vector, 0.95)
    assert CODEBOOK not in codings
    assert arrived > 0.4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    vector, residual = np.array([bad, 1.0], np.float32), encoder.zero_residual(2)
    with pytest.raises(CodecError, match="NaN"):
        encoder.encode_vector(vector, np.arange(2), encoder.Slicing(2, 2), 0.0, 140)
    with pytest.raises(CodecError, match="diverged"):
        encoder.add_residual(residual, vector)
    assert not residual.any()
    huge = np.full(2, 3e38, np.float32)
    with pytest.raises(CodecError, match="diverged"):
        encoder.add_residual(huge, huge)
    with pytest.raises(CodecError, match="does not fit"):
        encoder.add_residual(residual, np.zeros(3, np.float32))


@given(st.integers(0, 2**32), st.sampled_from([0.5, 0.9, 0.99]), st.floats(0, 0.6))
def test_nothing_is_lost(seed: int, zeros: float, loss: float) -> None:
    """The sum of what was counted, and the residual, are the sum of all deltas."""
    rng = np.random.default_rng(seed)
    slicing, residual = encoder.Slicing(700, 150), encoder.zero_residual(700)
    submitted = counted = np.zeros(700)
    for round_number in range(4):
        delta = (rng.standard_t(3, 700) * 0.01).astype(np.float32)
        places = order(b"m" * 32, round_number, 700)
        corrected = encoder.add_residual(residual, delta)
        slices = encoder.encode_vector(corrected, places, slicing, zeros, 100)[0]
        kept = [s for s in slices if rng.random() >= loss]
        parts = [(s.index, *encoder.decode_slice(s, slicing)) for s in kept]
        arrived = to_vector(encoder.scatter(encoder.gather(parts, slicing).delta_q24(), places))
        residual = encoder.settle_residual(corrected, arrived)
        submitted, counted = submitted + delta, counted + arrived
    assert np.allclose(submitted, counted + residual, atol=1e-5)
