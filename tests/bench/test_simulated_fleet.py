from typing import Any

import numpy as np

from bench.simulated_fleet import Clips, average_in_float, run_fleet
from edge.onnx.session import load_model
from models.zoo import package_path
from ternmesh.plan import Plan, make_plan

SAMPLES, ROUNDS = 40, 2
LOADED = load_model(package_path("keyword"))


def clips(seed: int) -> Clips:
    rng = np.random.default_rng(seed)
    features = rng.random((SAMPLES, 50, 32), dtype=np.float32)
    return Clips({"features": features, "target": rng.integers(0, 10, SAMPLES)})


def plan(**changes: Any) -> Plan:
    settings = {"rounds": ROUNDS, "local_steps": 2, "learning_rate": 0.002, **changes}
    return make_plan(LOADED.package.dimension, up_bytes=700, down_bytes=900, **settings)


DATA = [clips(0), clips(1)]


def test_a_fleet_ends_with_one_reference_and_what_each_board_made_of_it() -> None:
    run = run_fleet(LOADED, DATA, plan(), 0)
    assert not np.array_equal(run.vector, LOADED.initial)
    assert len(run.own) == 2
    assert not np.array_equal(run.own[0], run.own[1])
    assert 500 < run.bytes_up < 800
    again = run_fleet(LOADED, DATA, plan(), 0)
    assert np.array_equal(run.vector, again.vector)
    assert again.bytes_down == run.bytes_down


def test_lost_frames_are_counted_and_a_round_goes_on_without_them() -> None:
    whole, lossy = (run_fleet(LOADED, DATA, plan(), 0, drop=drop) for drop in (0.0, 0.4))
    assert lossy.bytes_up >= 0.99 * whole.bytes_up
    assert not np.array_equal(whole.vector, lossy.vector)
    kept = [np.linalg.norm(own - run.vector) for run in (whole, lossy) for own in run.own]
    assert min(kept[2:]) > max(kept[:2]), "what was lost is still with the boards"


def test_a_falling_rate_ends_at_rest() -> None:
    """The last round of a rate that has gone before adds nothing to what boards hold."""
    ended = run_fleet(LOADED, DATA, plan(learning_rate_drop=10.0), 0)
    assert np.isfinite(ended.vector).all()
    slow = [np.linalg.norm(own - LOADED.initial) for own in ended.own]
    fast = [np.linalg.norm(own - LOADED.initial) for own in run_fleet(LOADED, DATA, plan(), 0).own]
    assert max(slow) < min(fast)


def test_floats_are_averaged_as_they_arrive() -> None:
    exact = average_in_float(LOADED, DATA, plan(), 0)
    assert not np.array_equal(exact, LOADED.initial)
    nothing = average_in_float(LOADED, DATA, plan(), 0, send=np.zeros_like)
    assert not nothing.any()
    assert np.array_equal(exact, average_in_float(LOADED, DATA, plan(), 0))
