import numpy as np

from bench import bundle
from bench.fleet import Clips
from edge.session import load_bundle
from models.zoo import bundle_path
from ternmesh.plan import make_plan

LOADED = load_bundle(bundle_path("keyword"))


def clips(seed: int) -> Clips:
    rng = np.random.default_rng(seed)
    features = rng.random((40, 50, 32), dtype=np.float32)
    return Clips({"features": features, "target": rng.integers(0, 10, 40)})


def test_both_ways_end_the_run_and_a_bundle_takes_fewer_bytes_up() -> None:
    data = [clips(seed) for seed in range(3)]
    settings = {"rounds": 2, "local_steps": 2, "learning_rate": 0.002}
    plan = make_plan(LOADED.bundle.dimension, up_bytes=700, down_bytes=900, **settings)
    plain, bundled = (
        bundle._run(LOADED, data, plan, 0, data[:1], bundles) for bundles in (False, True)
    )
    assert bundled.bytes_up < 0.6 * plain.bytes_up
    assert 3 * 500 < plain.bytes_up < 3 * 900
    row = bundle._row(plain, bundled)
    figures = bundle._figures([row, row], "_9")
    assert figures["uplink_ratio_9"].value == row["up_bundled"] / row["up_plain"]
    assert set(figures) >= {"points_lost_bundle_9", "downlink_ratio_9"}


def test_a_speakers_clips_are_dealt_out() -> None:
    parts = bundle._split(clips(0), 3)
    assert [len(part) for part in parts] == [14, 13, 13]
    assert np.array_equal(parts[1].arrays["target"], clips(0).arrays["target"][1::3])
