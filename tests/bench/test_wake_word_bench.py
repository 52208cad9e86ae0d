"""What `bench wake_word` rests on: its fast scores and triggers are those of the product."""

from pathlib import Path

import numpy as np
import pytest

from bench.simulated_fleet import correct
from bench.wake_word import HOP_S, ROWS, logistic, probabilities, triggers, windows
from edge.onnx.session import load_model
from edge.words import NOTHING, Trigger
from experiments.data import Clips
from models.shelf import WIDTH
from models.tails import write_tail

RNG = np.random.default_rng(0)


def test_triggers_are_those_of_the_product() -> None:
    scores = RNG.random(3000)
    trigger = Trigger("wake", 0.7)
    told = [trigger.take(one, NOTHING, at * HOP_S) for at, one in enumerate(scores.tolist())]
    heard = [at for at, one in enumerate(told) if one and one.kind == "heard"]
    means = np.array([scores[max(0, at - 2) : at + 1].mean() for at in range(len(scores))])
    assert len(heard) > 3
    assert triggers(means, 0.7) == heard


def test_logistic_regression_is_a_vector_of_the_tail(tmp_path: Path) -> None:
    write_tail(tmp_path / "tail", rows=ROWS, width=WIDTH, classes=2, name="wake")
    loaded = load_model(tmp_path / "tail")
    rows = (3 + RNG.standard_normal((200, WIDTH))).astype(np.float32)
    x = windows(rows, np.arange(ROWS - 1, 200))
    data = Clips({"features": x, "target": (x[:, 3, 5] > 3).astype(np.int64)})
    vector = logistic(data)
    right = correct(loaded, vector, data)
    shares = [probabilities(vector, one)[0] for one in x]
    assert right.mean() > 0.7
    assert ((np.array(shares) > 0.5) == (data.arrays["target"] == 1)).tolist() == right.tolist()


def test_the_mean_of_the_last_scores_counts() -> None:
    vector = RNG.standard_normal(ROWS * WIDTH * 2 + 2).astype(np.float32)
    rows = RNG.standard_normal((ROWS + 3, WIDTH)).astype(np.float32)
    alone = [probabilities(vector, rows[at : at + ROWS])[0] for at in range(4)]
    assert probabilities(vector, rows) == pytest.approx(
        [alone[0], np.mean(alone[:2]), np.mean(alone[:3]), np.mean(alone[1:])], abs=1e-5
    )
