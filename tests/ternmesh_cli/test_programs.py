"""What `ternmesh host` gives the host of the edge package."""

import numpy as np

from host.config import OwnSamplesConfig, RunConfig, plan_of
from models.zoo import fsdd_path, package_path
from ternmesh_cli.programs import _open_samples
from ternmesh_service.config_file import load_model_package


def test_a_host_trains_the_shipped_model_on_its_own_samples() -> None:
    plan = plan_of(RunConfig(local_steps=2), load_model_package("keyword").dimension)
    arrays = {"features": "x", "target": "y"}
    config = OwnSamplesConfig(str(fsdd_path("dev")), arrays, {"speaker": "theo"}, 255.0)
    train = _open_samples(package_path("keyword"), config, plan)
    change = train(0, np.zeros(plan.dimension, np.float32))
    assert change.shape == (plan.dimension,)
    assert 0 < np.abs(change).max() < 3 * 0.005  # two steps of Adam
