from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from edge.config import ZEROTH_ORDER, DataConfig, NodeConfig, TrainingConfig
from edge.data.sources import FolderData
from edge.errors import ModelError
from edge.evaluation import sample_losses
from edge.onnx.session import Inference, LoadedModel, TrainStep, load_model
from edge.trainer import AdamSettings, Trainer, round_rng
from edge.zeroth_order import ZerothOrder, directions, estimate, make_step
from models.zoo import package_path
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh.plan import make_plan
from transports.link_config import LinkConfig

D = 18
TARGET = np.linspace(-1, 1, D, dtype=np.float32)
SCALES = np.linspace(1, 3, D, dtype=np.float32)


class Bowl:
    """A forward pass whose mean absolute error is sum(scales * (adapter - TARGET)**2) / 2."""

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, inputs):
        self.asked += 1
        adapter = np.concatenate([inputs["A"].ravel(), inputs["B"].ravel()]).astype(np.float64)
        return {"y": np.array([[(SCALES * (adapter - TARGET) ** 2).sum() / 2]])}

    def release(self) -> None:
        self.asked = 0


def bowl_step(package: ModelPackage, probes: int, seed: bytes = b"ada") -> tuple[ZerothOrder, Bowl]:
    bowl = Bowl()
    forward = cast(Any, bowl)
    return ZerothOrder(forward, package, probes=probes, epsilon=1e-2, seed=seed), bowl


BATCH = {"x": np.zeros((1, 6), np.float32), "t": np.zeros((1, 1), np.float32)}


def test_the_mean_of_many_probes_is_the_gradient(tiny: LoadedModel) -> None:
    probes, at = 4000, np.zeros(D, np.float32)
    step, bowl = bowl_step(tiny.package, probes)
    loss, found = step.run(at, BATCH)
    gradient = SCALES * (at - TARGET)
    assert bowl.asked == 2 * probes
    assert found.dtype == np.float32
    # A quadratic's central difference is exact, so each coordinate's error is noise alone, of
    # a variance below |gradient|^2 / probes; five of its roots leave no luck.
    noise = np.linalg.norm(gradient) / probes**0.5
    np.testing.assert_allclose(found, gradient, atol=5 * noise)
    assert noise < 0.1 * np.abs(gradient).max()
    around = (SCALES * TARGET**2).sum() / 2 + 1e-4 * SCALES.sum() / 2  # epsilon^2, the same for all
    assert loss == pytest.approx(around, rel=1e-5)


def test_one_probe_is_its_projection_along_its_direction(tiny: LoadedModel) -> None:
    at = np.full(D, 0.5, np.float32)
    _, found = bowl_step(tiny.package, 1)[0].run(at, BATCH)
    z = np.sign(found)
    assert np.unique(np.abs(found)).size == 1
    slope = float((SCALES * (at - TARGET)) @ z)
    assert np.abs(found[0]) == pytest.approx(abs(slope), rel=1e-4)
    assert found @ z * slope > 0


def test_seed_adapter_and_probe_choose_the_directions(tiny: LoadedModel) -> None:
    at = np.zeros(D, np.float32)
    first = bowl_step(tiny.package, 3)[0].run(at, BATCH)[1]
    np.testing.assert_array_equal(bowl_step(tiny.package, 3)[0].run(at, BATCH)[1], first)
    other = bowl_step(tiny.package, 3, b"bob")[0].run(at, BATCH)[1]
    assert not np.array_equal(other, first)
    elsewhere = np.full(D, 1e-6, np.float32)
    made = [z for start in (at, elsewhere) for z in directions(b"s", start, 2)]
    assert len({z.tobytes() for z in made}) == 4
    assert set(np.concatenate(made)) == {-1.0, 1.0}


def test_the_slopes_alone_make_the_estimate_again(tiny: LoadedModel) -> None:
    at, (step, _) = np.zeros(D, np.float32), bowl_step(tiny.package, 5)
    loss, slopes = step.project(at, BATCH)
    assert slopes.shape == (5,)
    assert step.run(at, BATCH)[0] == loss
    np.testing.assert_array_equal(estimate(b"ada", at, slopes), step.run(at, BATCH)[1])


@pytest.fixture(scope="module")
def keyword() -> LoadedModel:
    return load_model(package_path("keyword"))


def keyword_batch(package: ModelPackage) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    features = rng.random((package.batch, 50, 32), dtype=np.float32)
    return {"features": features, "target": rng.integers(0, 10, package.batch)}


def test_the_loss_is_that_of_the_train_step(keyword: LoadedModel) -> None:
    package = keyword.package
    batch = keyword_batch(package)
    noise = np.random.default_rng(3).standard_normal(package.dimension)
    vector = keyword.initial + 0.05 * noise.astype(np.float32)
    step = ZerothOrder(
        Inference(keyword.folder, package), package, probes=1, epsilon=1e-3, seed=b"ada"
    )
    exact, gradient = TrainStep(keyword.folder, package).run(vector, batch)
    assert step.loss(vector, batch) == pytest.approx(exact, abs=1e-4)
    assert abs(step.loss(keyword.initial, batch) - exact) > 1e-2, "the adapter matters"
    mean, found = step.run(vector, batch)
    assert mean == pytest.approx(exact, abs=1e-2)
    z = np.sign(found)
    assert abs(float(found @ z) / z.size) == pytest.approx(abs(float(gradient @ z)), rel=0.05)
    step.release()
    assert step.run(vector, batch)[0] == mean


def test_it_trains(tiny: LoadedModel, tiny_samples: FolderData) -> None:
    config = replace(node_config(tiny), training=TrainingConfig(mode=ZEROTH_ORDER, probes=8))
    step = make_step(config, tiny)
    trainer = Trainer(step, tiny_samples, 8, AdamSettings())
    plan = make_plan(D, rounds=1, local_steps=80, learning_rate=0.05)
    trainer.begin(0, tiny.initial, plan, round_rng(0, "ada", 0))
    batch = tiny_samples.batch(np.arange(96))
    before = step.loss(tiny.initial, batch)
    while trainer.step():
        pass
    assert step.loss(tiny.initial + trainer.delta(), batch) < before / 2


def node_config(loaded: LoadedModel) -> NodeConfig:
    return NodeConfig("ada", "state", str(loaded.folder), LinkConfig("mqtt://x"), DataConfig())


def test_a_node_trains_by_gradient_unless_it_is_told_otherwise(tiny: LoadedModel) -> None:
    assert isinstance(make_step(node_config(tiny), tiny), TrainStep)


def test_a_model_with_two_targets_is_refused(tiny: LoadedModel) -> None:
    more = (*tiny.package.batch_inputs, TensorSpec("weight", "float32", (8,)))
    with pytest.raises(ModelError, match=r"tiny has 1 outputs and 2 targets: .* training\.mode"):
        bowl_step(replace(tiny.package, batch_inputs=more), 1)


def test_losses_by_metric() -> None:
    logits = np.log(np.array([[0.25, 0.75], [0.5, 0.5]], np.float32))
    expected = [-np.log(0.75), -np.log(0.5)]
    losses = sample_losses("accuracy", logits + np.float64(1000), np.array([1, 0]))
    assert losses == pytest.approx(expected)
    values = np.array([[1.0], [2.0]], np.float32)
    losses = sample_losses("mean_absolute_error", values, np.array([3.0, 2.5]))
    assert losses.tolist() == [2.0, 0.5]
    assert not np.isfinite(sample_losses("accuracy", logits * np.inf, np.array([1, 0]))).any()


@pytest.mark.parametrize(
    ("metric", "output", "target", "sentence"),
    [
        ("mean_absolute_error", (2, 3), np.zeros(2), "outputs have shape"),
        ("accuracy", (2, 5, 3), np.zeros((2, 5), int), r"logits \[n, classes\] .* training.mode"),
        ("accuracy", (2, 3), np.zeros((2, 1), int), r"and targets \[n\]"),
        ("accuracy", (2, 3), np.array([0, 3]), "outside the 3 classes"),
        ("accuracy", (2, 3), np.array([-1, 0]), "outside the 3 classes"),
    ],
)
def test_what_has_no_loss_is_one_sentence(metric, output, target, sentence) -> None:
    with pytest.raises(ModelError, match=sentence):
        sample_losses(metric, np.zeros(output, np.float32), target)
