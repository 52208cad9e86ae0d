from typing import Any

import numpy as np

from bench.simulated_fleet import average_in_float, run_fleet
from edge.onnx.session import load_model
from experiments.data import Clips
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


def test_lost_frames_are_counted_and_a_round_goes_on_without_them() -> None:
    whole, lossy = (run_fleet(LOADED, DATA, plan(), 0, drop=drop) for drop in (0.0, 0.4))
    assert lossy.bytes_up >= 0.99 * whole.bytes_up
    assert not np.array_equal(whole.vector, lossy.vector)


def test_floats_are_averaged_as_they_arrive() -> None:
    exact = average_in_float(LOADED, DATA, plan(), 0)
    assert not np.array_equal(exact, LOADED.initial)
    nothing = average_in_float(LOADED, DATA, plan(), 0, send=np.zeros_like)
    assert not nothing.any()
    assert np.array_equal(exact, average_in_float(LOADED, DATA, plan(), 0))
