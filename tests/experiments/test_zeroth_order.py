"""The estimate of a gradient from forward passes, beside the gradient of the train step."""

import numpy as np
import pytest

from edge.onnx.session import Inference, LoadedModel, TrainStep, load_model
from experiments.zeroth_order import ZerothOrder, directions
from models.zoo import package_path


@pytest.fixture(scope="module")
def keyword() -> LoadedModel:
    return load_model(package_path("keyword"))


def step_of(keyword: LoadedModel, probes: int) -> ZerothOrder:
    forward = Inference(keyword.folder, keyword.package)
    return ZerothOrder(forward, keyword.package, probes=probes, epsilon=1e-3, seed=b"ada")


def batch_of(keyword: LoadedModel) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    features = rng.random((keyword.package.batch, 50, 32), dtype=np.float32)
    return {"features": features, "target": rng.integers(0, 10, keyword.package.batch)}


def adapter_of(keyword: LoadedModel) -> np.ndarray:
    noise = np.random.default_rng(3).standard_normal(keyword.package.dimension)
    vector: np.ndarray = keyword.initial + 0.05 * noise.astype(np.float32)
    return vector


def test_loss_and_slope_are_those_of_the_train_step(keyword: LoadedModel) -> None:
    package, batch, vector = keyword.package, batch_of(keyword), adapter_of(keyword)
    step = step_of(keyword, 1)
    exact, gradient = TrainStep(keyword.folder, package).run(vector, batch)
    assert step.loss(vector, batch) == pytest.approx(exact, abs=1e-4)
    assert abs(step.loss(keyword.initial, batch) - exact) > 1e-2, "the adapter matters"
    mean, found = step.run(vector, batch)
    assert mean == pytest.approx(exact, abs=1e-2)
    [z] = directions(b"ada", vector, 1)
    assert float(found @ z) / z.size == pytest.approx(float(gradient @ z), rel=0.05)
