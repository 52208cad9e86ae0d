from dataclasses import replace

import numpy as np
import pytest

from bench.demo import _clips
from bench.zeroth_order import ARMS, Arm, Scalars, _zeroth_order
from edge.session import LoadedBundle, load_bundle
from models.zoo import bundle_path
from ternmesh_cli.demo.fleet import BOARDS

ARM = Arm("few", steps=2, probes=3, learning_rate=0.01, seeds=1)


@pytest.fixture(scope="module")
def keyword() -> LoadedBundle:
    return load_bundle(bundle_path("keyword"))


def test_every_arm_has_the_forward_passes_of_its_name() -> None:
    for arm in ARMS:
        times = int(arm.name.partition("x")[0])
        assert 2 * arm.steps * arm.probes == times * 3 * 8


def test_scalar_bytes_are_those_of_the_slopes_and_one_frame() -> None:
    assert ARM.scalar_bytes == 2 * 6 + 14 + 8


def test_rounded_slopes_make_the_same_estimate_but_for_half_precision(keyword) -> None:
    batch = _clips("train", BOARDS[0]).batch(np.arange(32))
    rounded = Scalars(ARM, 0, keyword, "ada")
    exact = _zeroth_order(ARM, 0, keyword, "ada")
    loss, estimate = rounded.run(keyword.initial, batch)
    other, wanted = exact.run(keyword.initial, batch)
    assert loss == other
    assert not np.array_equal(estimate, wanted)
    assert np.linalg.norm(estimate - wanted) < 1e-3 * np.linalg.norm(wanted)
    apart = _zeroth_order(replace(ARM, probes=3), 1, keyword, "ada").run(keyword.initial, batch)[1]
    assert abs(float(apart @ wanted)) < 0.9 * float(wanted @ wanted), "each seed has its own"
