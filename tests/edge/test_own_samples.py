"""The host's own training, with the tiny model."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.data.sources import NpzSettings
from edge.onnx.session import LoadedModel, TrainStep
from edge.own_samples import OwnTraining, open_own_samples
from ternmesh.config import ConfigError
from ternmesh.plan import Plan, make_plan
from tests.edge.fleet import replace_step

PLAIN = NpzSettings()


@pytest.fixture
def plan(tiny: LoadedModel) -> Plan:
    size = tiny.package.dimension
    return make_plan(size, rounds=30, local_steps=4, learning_rate=0.02, learning_rate_drop=1.0)


def loss(tiny: LoadedModel, adapter: np.ndarray, data: dict[str, np.ndarray]) -> float:
    size = tiny.package.batch
    batch = {name: array[:size] for name, array in data.items()}
    return TrainStep(tiny.folder, tiny.package).run(tiny.initial + adapter, batch)[0]


def test_training_starts_from_the_global_adapter_and_lowers_the_loss(
    tiny: LoadedModel, tiny_data: dict[str, Any], tmp_path: Path, plan: Plan
) -> None:
    np.savez(tmp_path / "mine.npz", **tiny_data)
    train = open_own_samples(tiny.folder, tmp_path, PLAIN, plan)
    adapter = np.zeros(plan.dimension, np.float32)
    first = loss(tiny, adapter, tiny_data)
    for number in range(20):
        adapter = adapter + train(number, adapter)
    assert loss(tiny, adapter, tiny_data) < 0.8 * first
    assert not np.array_equal(train(3, adapter), train(3, 0 * adapter))
    assert np.abs(train(29, adapter)).max() < 0.01  # the rate falls as on the boards


def test_a_slow_model_takes_fewer_steps(tiny, tiny_samples, plan, monkeypatch) -> None:
    def clock(seconds: float) -> Iterator[float]:
        return (seconds * reading for reading in count())

    steps: list[float] = []

    def counted(run: Callable[..., Any], *given: Any) -> Any:
        steps[-1] += 1
        return run(*given)

    replace_step(monkeypatch, counted)
    for seconds in (0.01, 0.4, 5.0):
        steps.append(0)
        training = OwnTraining(tiny, tiny_samples, plan, clock(seconds).__next__)
        training(0, np.zeros(plan.dimension, np.float32))
    assert steps == [4, 3, 1]


def test_samples_that_do_not_fit_are_one_sentence(tiny, tiny_data, tmp_path, plan) -> None:
    wide = np.hstack([tiny_data["x"], tiny_data["x"]])
    for name, arrays in {
        "unlabelled": {"x": tiny_data["x"]},
        "wide": {**tiny_data, "x": wide},
    }.items():
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "mine.npz", **arrays)
    for name in ("unlabelled", "wide", "missing"):
        with pytest.raises(ConfigError, match=rf"^\[own_samples\]: .*{name}") as caught:
            open_own_samples(tiny.folder, tmp_path / name, PLAIN, plan)
        assert "\n" not in str(caught.value)
