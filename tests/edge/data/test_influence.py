"""Which samples hurt: the shipped keyword model, trained on recordings of which some are wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edge.data import influence
from edge.data.influence import held_out_gradient
from edge.data.label_queue import PresentModel
from edge.data.labels import answer_data, finish_data
from edge.data.replay import ReplayBuffer
from edge.data.sources import Label, Sample
from edge.onnx.session import Inference, TrainStep, load_model
from edge.trainer import AdamSettings, Trainer, round_rng
from models.zoo import fsdd_path, package_path
from ternmesh.plan import make_plan
from ternmesh_store.state_file import StateFile

LOADED = load_model(package_path("keyword"))
PACKAGE, BATCH = LOADED.package, LOADED.package.batch
SAMPLES, WRONG, STEPS = 200, 20, 40


def recordings(split: str, count: int) -> dict[str, np.ndarray]:
    """The first recordings of speaker 1, whom the model knows."""
    with np.load(fsdd_path(split)) as data:
        chosen = np.flatnonzero(data["speaker"] == 1)
        chosen = np.random.default_rng(0).permutation(chosen)[:count]
        x = data["x"][chosen].astype(np.float32) / 255
        return {"features": x, "target": data["y"][chosen].astype(np.int64)}


@dataclass(frozen=True, slots=True)
class Held:
    arrays: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.arrays["target"])

    def batch(self, indexes: Any) -> dict[str, np.ndarray]:
        return {name: array[indexes] for name, array in self.arrays.items()}


@pytest.fixture(scope="module")
def buffer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayBuffer]:
    """A tenth of the labels is wrong: those of the keys that begin with "wrong"."""
    state = StateFile(tmp_path_factory.mktemp("state"))
    state.open()
    made = ReplayBuffer(state, PACKAGE, SAMPLES, 1 << 30)
    made.load()
    rng, clips = np.random.default_rng(1), recordings("train", SAMPLES)
    wrong = set(rng.permutation(SAMPLES)[:WRONG].tolist())
    for n, (x, y) in enumerate(zip(*clips.values(), strict=True)):
        key = f"wrong-{n}" if n in wrong else str(n)
        number = (y + rng.integers(1, 10)) % 10 if n in wrong else y
        made.add([Sample(key, {"features": x}), Label(key, {"target": np.array(number)})])
    yield made
    state.close()


@pytest.fixture(scope="module")
def model(buffer: ReplayBuffer) -> PresentModel:
    """After training on these samples, with their wrong labels."""
    inference = Inference(LOADED.folder, PACKAGE)
    trainer = Trainer(TrainStep(LOADED.folder, PACKAGE), buffer, BATCH, AdamSettings())
    plan = make_plan(PACKAGE.dimension, rounds=1, local_steps=STEPS, learning_rate=0.003)
    trainer.begin(0, LOADED.initial, plan, round_rng(0, "ada", 0))
    while trainer.step():
        pass
    output = PACKAGE.outputs[0].name
    return PresentModel(
        scores=lambda inputs: inference.predict(inputs)[output],
        adapter=LOADED.initial + trainer.delta(),
        gradient=trainer.gradient,
        held_out=Held(recordings("dev", 50)),
        held_out_count=50,
        run="run",
        version=1,
        score=0.9,
    )


def ask(buffer: ReplayBuffer, model: PresentModel | None) -> Any:
    """The answer; scores of the fixture have no adapter but the one that they are given."""
    answer = finish_data(answer_data(buffer, {"data": "influence"}, None, model))
    return answer.get("data", answer.get("error"))


@pytest.mark.parametrize("by", ["gradient", "loss"])
def test_wrong_labels_are_among_the_worst(buffer, model, by) -> None:
    """Of 200 samples with 20 wrong ones, 20 drawn by chance hold 2 of them."""
    found = ask(buffer, model if by == "gradient" else replace(model, gradient=None))
    rows = found["rows"]
    held_out = 50 if by == "gradient" else 0
    assert (found["by"], found["held_out"]) == (by, held_out)
    assert (found["samples"], found["of"], len(rows)) == (SAMPLES, SAMPLES, SAMPLES)
    assert len({row["key"] for row in rows}) == SAMPLES
    harms = [row["harm"] for row in rows]
    assert harms == sorted(harms, reverse=True)
    worst = [row for row in rows[:WRONG] if row["key"].startswith("wrong")]
    assert len(worst) >= 10
    assert all(row["guess"] != row["label"] for row in worst[:5])
    assert (min(harms) < 0) == (by == "gradient")  # most samples help


def test_harm_is_the_product_of_the_gradients_of_the_training_step(buffer, model) -> None:
    gradient, count = held_out_gradient(model, PACKAGE, np.inf)
    rows = {row["key"]: row for row in ask(buffer, model)["rows"]}
    assert count == 50
    exact, found = [], []
    for at in range(0, SAMPLES, 20):
        [row] = buffer._labelled[at : at + 1]
        one = buffer.batch(np.full(BATCH, at))  # the same sample in all places of the batch
        exact.append(-float(model.gradient(model.adapter, one) @ gradient))
        found.append(rows[buffer.key(row)]["harm"])
    np.testing.assert_allclose(found, exact, rtol=0.02, atol=0.01 * np.abs(exact).max())


def test_a_slow_board_answers_what_it_has(buffer, model, monkeypatch) -> None:
    monkeypatch.setattr(influence, "GRADIENT_S", 0.0)
    monkeypatch.setattr(influence, "WORK_S", 0.0)
    found = ask(buffer, model)
    assert (found["samples"], found["held_out"]) == (BATCH, BATCH)
    newest = [buffer.key(row) for row in buffer._labelled[-BATCH:]]
    assert sorted(row["key"] for row in found["rows"]) == sorted(newest)
    monkeypatch.setattr(influence, "SAMPLES_MAX", 5)
    assert len(ask(buffer, model)["rows"]) == 5


def test_a_model_that_diverged_is_a_sentence(buffer, model) -> None:
    broken = replace(model, adapter=np.full_like(model.adapter, np.nan))
    assert "diverged" in ask(buffer, broken)
    assert "diverged" in ask(buffer, replace(broken, gradient=None))
    assert "a node that runs" in ask(buffer, None)


def test_without_labels_there_is_nothing_to_show(tmp_path, model) -> None:
    state = StateFile(tmp_path)
    state.open()
    empty = ReplayBuffer(state, PACKAGE, 10, 1 << 30)
    empty.load()
    assert ask(empty, model)["rows"] == []
    state.close()


def test_held_out_samples_that_are_all_right_leave_the_loss(buffer, model) -> None:
    """A gradient of zero has no direction."""
    flat = replace(model, gradient=lambda vector, batch: 0 * vector)
    assert ask(buffer, flat)["by"] == "loss"
