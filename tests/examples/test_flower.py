"""The example's fleet in Flower: its real apps, strategy and messages, in one process.

Flower needs an environment of its own (docs/flower.md), and this file runs there.
"""

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: docs/flower.md")
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bench.demo import clips_of
from bench.simulated_fleet import average_in_float
from edge.onnx.session import load_model, read_adapter
from host.config import RunConfig, plan_of
from models.zoo import package_path
from tests.flower_grid import LocalGrid, run_app

sys.path.append(str(Path(__file__).parents[2] / "examples" / "flower"))
keyword_fleet: Any = importlib.import_module("keyword_fleet")
flower_client: Any = importlib.import_module("flower_client")
flower_strategy: Any = importlib.import_module("flower_strategy")

LOADED = load_model(package_path("keyword"))
RUN: dict[str, Any] = {
    "rounds": 2,
    "local_steps": 3,
    "learning_rate": 0.005,
    "learning_rate_drop": 0.8,
}
SETTINGS: dict[str, Any] = {name.replace("_", "-"): value for name, value in RUN.items()}
SHAPES = {"a": (2, 3), "b": (4,)}
ZEROS = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def filled(value: float) -> dict[str, np.ndarray]:
    return {name: zeros + np.float32(value) for name, zeros in ZEROS.items()}


def record(tensors: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor) for name, tensor in tensors.items()})


def reply(tensors: dict[str, np.ndarray], **metrics: Any) -> RecordDict:
    metrics = {"num-examples": 10, "loss": 1.0} | {
        k.replace("_", "-"): v for k, v in metrics.items()
    }
    return RecordDict({"arrays": record(tensors), "metrics": MetricRecord(metrics)})


def step_of(strategy: Any, *replies: RecordDict | Exception) -> Any:
    """One round from zeros, in which each node answers as given; the result of `start`."""

    def answer(message: Message, context: Context) -> Message:
        given = replies[int(context.node_config["partition-id"])]
        if isinstance(given, Exception):
            raise given
        return Message(given, reply_to=message)

    app = ClientApp()
    app.train()(answer)
    app.evaluate()(answer)
    return strategy.start(LocalGrid(app, len(replies), {}), record(ZEROS), num_rounds=1)


def value_of(result: Any) -> float:
    """The one number that all tensors hold, whose shapes are those of the model."""
    tensors = {name: array.numpy() for name, array in result.arrays.items()}
    assert {name: tensor.shape for name, tensor in tensors.items()} == SHAPES
    [value] = {float(v) for tensor in tensors.values() for v in tensor.ravel()}
    return value


def test_the_example_learns_what_averaging_in_float_does(tmp_path: Path) -> None:
    settings = SETTINGS | {"aggregation": "weighted_mean", "byzantine": 0, "seed": 7}
    settings["out"] = str(tmp_path / "learned.onnx_adapter")
    run_app(keyword_fleet, settings)
    learned, version = read_adapter(Path(settings["out"]), LOADED.package)
    clips = [clips_of("train", speaker) for speaker in keyword_fleet.SPEAKERS]
    plan = plan_of(RunConfig(min_peers=3, **RUN), LOADED.package.dimension)
    np.testing.assert_allclose(learned, average_in_float(LOADED, clips, plan, 7), atol=1e-4)
    assert version == 2
    assert np.abs(learned - LOADED.initial).max() > 0.01


def test_replies_that_cannot_be_used_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    nan, short, other = filled(9), filled(9), filled(9)
    nan["b"][0] = np.nan
    short["b"] = short["b"][:3]
    other["c"] = other.pop("b")
    wide = {name: tensor.astype(np.float64) for name, tensor in filled(9).items()}
    long = filled(9) | {"b": np.full(10_000, 9, np.float32)}
    one, more = filled(9) | {"b": np.full(1, 9, np.float32)}, filled(9) | {"c": ZEROS["b"]}
    bad = [reply(tensors) for tensors in (nan, short, other, wide, long, one, more)]
    bad += [reply(filled(9), num_examples=n) for n in (0, -5, float("nan"), float("inf"))]
    bad += [reply(filled(9), num_examples=[1, 2]), RecordDict()]
    noise = RecordDict({"arrays": record(filled(9))})
    noise["arrays"]["a"] = Array("float32", (2, 3), "numpy.ndarray", b"no array")
    zipped = RecordDict({**reply(filled(9)), "arrays": record(filled(9))})
    zipped["arrays"]["a"] = Array("float32", (2, 3), "numpy.ndarray", b"PK\x03\x04 no zip file")
    bad += [noise, zipped, RecordDict({"arrays": record(filled(9)), "metrics": MetricRecord()})]
    with caplog.at_level(logging.WARNING):
        result = step_of(
            flower_strategy.RuleStrategy(), reply(filled(2)), *bad, ValueError("it broke")
        )
    assert value_of(result) == 2
    assert caplog.text.count("is left out") == len(bad) + 2  # the error in the evaluation, too
    assert "it broke" in caplog.text
    assert "b is not float32 (4,)" in caplog.text


@pytest.mark.parametrize(
    ("rule", "counts", "value", "said"),
    [
        (("krum", 1), ((1, 10), (2, 10), (4, 20)), 11 / 4, "round 1 takes the weighted mean: krum"),
        # Declared samples count at most as twice the median.
        (("weighted_mean", 0), ((0, 10), (0, 10), (4, 1_000_000)), 2, ""),
    ],
)
def test_the_weighted_mean_stands_in_and_is_bounded(rule, counts, value, said, caplog) -> None:
    strategy = flower_strategy.RuleStrategy(rule[0], byzantine=rule[1])
    with caplog.at_level(logging.WARNING):
        result = step_of(strategy, *(reply(filled(v), num_examples=n) for v, n in counts))
    assert value_of(result) == pytest.approx(value)
    assert said in caplog.text
    assert strategy.aggregate_train(2, []) == (None, None)
    assert strategy.aggregate_evaluate(2, []) is None


def error_of(arrays: ArrayRecord, config: dict[str, Any], scale: float = 1.0) -> str:
    """The error in the reply of a board whose features are multiplied by `scale`."""
    clips = clips_of("train", "theo")
    clips.arrays["features"] *= np.float32(scale)
    board = flower_client.FlowerBoard(LOADED, clips, clips, "board")
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1} | config)})
    app = flower_client.client_app(lambda _: board)
    [answer] = LocalGrid(app, 1, {}).send_and_receive([Message(content, 2, "train")])
    return answer.error.reason if answer.has_error() else ""


@pytest.mark.parametrize(
    ("changes", "config", "scale", "sentence"),
    [
        ({}, {"local-steps": 10**9}, 1.0, "local_steps"),
        ({}, {"learning-rate": "fast"}, 1.0, "cannot be used"),
        ({}, {}, np.nan, "round 1 has diverged"),
        ({"more": Array(np.zeros(3, np.float32))}, {}, 1.0, "names differ"),
        ({"head.lora_B": Array(np.zeros((8, 9), np.float32))}, {}, 1.0, "float32 (8, 10)"),
        ({"head.lora_B": Array(np.zeros((8, 10)))}, {}, 1.0, "must be float32"),
        ({"head.lora_B": Array(np.full((8, 10), np.nan, np.float32))}, {}, 1.0, "NaN"),
    ],
)
def test_a_board_answers_what_it_cannot_do_with_a_sentence(
    changes: dict[str, Array], config: dict[str, Any], scale: float, sentence: str
) -> None:
    good = flower_client.write_arrays(LOADED.initial, LOADED.package)
    np.testing.assert_array_equal(flower_client.read_arrays(good, LOADED.package), LOADED.initial)
    assert error_of(good, {"local-steps": 1}) == ""
    assert sentence in error_of(ArrayRecord({**good, **changes}), config, scale)
