from typing import Any

import numpy as np

from bench import bundle
from bench.simulated_fleet import Clips
from edge.onnx.session import load_model
from models.zoo import package_path
from ternmesh.plan import make_plan

LOADED = load_model(package_path("keyword"))


def clips(seed: int) -> Clips:
    rng = np.random.default_rng(seed)
    features = rng.random((40, 50, 32), dtype=np.float32)
    return Clips({"features": features, "target": rng.integers(0, 10, 40)})


def test_both_ways_end_the_run_and_a_sum_takes_fewer_bytes_up() -> None:
    data = [clips(seed) for seed in range(3)]
    settings: dict[str, Any] = {"rounds": 2, "local_steps": 2, "learning_rate": 0.002}
    plan = make_plan(LOADED.package.dimension, up_bytes=700, down_bytes=900, **settings)
    row = bundle.compare(LOADED, data, plan, 0, data[:1])
    assert row["uplink_bytes_bundled"] < 0.6 * row["uplink_bytes_plain"]
    assert 3 * 500 < row["uplink_bytes_plain"] < 3 * 900
    figures = bundle.summarise([row, row], "_9")
    ratio = row["uplink_bytes_bundled"] / row["uplink_bytes_plain"]
    assert figures["uplink_ratio_9"].value == ratio
    assert set(figures) >= {"points_lost_bundle_9", "downlink_ratio_9", "accuracy_plain_9"}
