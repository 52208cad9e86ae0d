from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.hypervector.scale import SCALE_MAX, UNIT
from ternmesh.plan import make_plan
from ternmesh.swarm import step
from ternmesh.swarm.intake import Intake
from ternmesh.wire.share import read_share

MODEL = bytes(range(32))
PLAN = make_plan(3000, rounds=5, local_steps=1, learning_rate=0.1, frame_mtu=164, up_zeros=0.5)


def update(seed: int, round_number: int = 4) -> tuple[np.ndarray, list[bytes]]:
    vector = np.random.default_rng(seed).normal(0, 0.01, 3000).astype(np.float32)
    return vector, step.encode_update(vector, MODEL, round_number, PLAN)


def arrived(shares: list[bytes]) -> step.Hypervector:
    return step.read_shares(map(read_share, shares), PLAN.up)


def test_an_update_points_where_the_vector_points() -> None:
    vector, shares = update(1)
    units = step.update_units(shares, MODEL, 4, PLAN) * UNIT
    cosine = float(units @ vector) / np.linalg.norm(units) / np.linalg.norm(vector)
    assert cosine > 0.85
    assert (np.sign(vector)[units != 0] == np.sign(units)[units != 0]).all()


def test_each_share_is_worth_its_own_coordinates() -> None:
    _, shares = update(2)
    whole = step.update_units(shares, MODEL, 4, PLAN)
    parts = [step.update_units([body], MODEL, 4, PLAN) for body in shares]
    assert np.array_equal(sum(parts), whole)
    assert sum(part != 0 for part in parts).max() == 1  # type: ignore[union-attr]


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 99)), min_size=1, max_size=5))
def test_the_mean_is_weighted_by_samples(nodes: list[tuple[int, int]]) -> None:
    packets = [(samples, arrived(update(seed)[1])) for samples, seed in nodes]
    mean = step.combine(packets, MODEL, 4, PLAN)
    units = [step.update_units(update(seed)[1], MODEL, 4, PLAN) * UNIT for _, seed in nodes]
    weights = np.array([samples for samples, _ in nodes], float)
    assert np.allclose(mean, np.average(units, axis=0, weights=weights), atol=1e-7)


def test_a_share_that_few_delivered_is_the_mean_over_those() -> None:
    _, a = update(1)
    _, b = update(2)
    mean = step.combine([(1, arrived(a)), (3, arrived(b[1:]))], MODEL, 4, PLAN)
    first = step.update_units(a[:1], MODEL, 4, PLAN) * UNIT
    places = first != 0
    assert np.allclose(mean[places], first[places])
    assert not step.combine([], MODEL, 4, PLAN).any()


def test_the_largest_sum_does_not_overflow() -> None:
    plan = replace(PLAN, scale_max=SCALE_MAX)
    huge = np.full(3000, 1e9, np.float32)
    vector = arrived(step.encode_update(huge, MODEL, 4, plan))
    mean = step.combine([(1 << 20, vector)] * 100, MODEL, 4, plan)
    assert mean.max() == pytest.approx(63.97, abs=0.01)
    assert mean.min() >= 0


@pytest.mark.parametrize("scale_max", [1, 2047, 2049, 1 << 24, 2**31 - 1])
def test_an_update_is_what_the_host_believes(scale_max: int) -> None:
    """A node that was away for long has much to say: a share beyond the plan would be refused."""
    plan = replace(PLAN, scale_max=scale_max)
    intake = Intake(plan, MODEL[:8], 4)
    for body in step.encode_update(np.full(3000, 70, np.float32), MODEL, 4, plan):
        intake.add(body)
    vector = intake.hypervector()
    assert vector.present.all()
    assert vector.scales.max() <= scale_max
    assert vector.scales.min() > 0.999 * min(scale_max, SCALE_MAX)


def test_a_step_must_be_whole() -> None:
    vector = np.ones(3000, np.float32)
    shares = step.encode_step(vector, MODEL, 9, PLAN)
    assert step.step_units(shares, MODEL, 9, PLAN).any()
    for wrong in (shares[:-1], (*shares[:-1], shares[0]), (*shares, shares[0]), ()):
        with pytest.raises(WireError):
            step.step_units(wrong, MODEL, 9, PLAN)


def test_the_shares_of_a_step_are_of_its_version() -> None:
    shares = step.encode_step(np.ones(3000, np.float32), MODEL, 70_000, PLAN)
    other = step.encode_step(np.ones(3000, np.float32), MODEL, 69_999, PLAN)
    assert step.step_units(shares, MODEL, 70_000, PLAN).any()
    with pytest.raises(WireError) as caught:
        step.step_units((*shares[:-1], other[-1]), MODEL, 70_000, PLAN)
    assert caught.value.reason == "reference"


def test_a_share_beyond_the_packet_is_refused() -> None:
    body = bytearray(update(1)[1][0])
    body[3] = PLAN.up.count
    with pytest.raises(WireError, match="shares"):
        step.update_units([bytes(body)], MODEL, 4, PLAN)


def test_what_is_left_over_can_be_written_until_nothing_is() -> None:
    """The host of a run on news that has ended must not refuse its own last steps."""
    plan = make_plan(
        2000, rounds=50, local_steps=1, learning_rate=0.1, frame_mtu=164, down_zeros=0.97
    )
    left = (np.random.default_rng(0).normal(0, 1.1, 2000) * UNIT).astype(np.float32)
    for version in range(1, 9):
        shares, _, left = step.make_step([], left, MODEL, version, plan)
        assert step.step_units(shares, MODEL, version, plan).size == 2000
