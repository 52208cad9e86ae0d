import numpy as np
import pytest

from edge.errors import DataError
from edge.evaluation import Evaluator, scores, spread
from edge.onnx.session import Inference


def test_scores_by_each_metric() -> None:
    logits = np.array([[0.1, 0.9], [0.8, 0.2], [0.0, 1.0]])
    assert scores("accuracy", logits, np.array([1, 1, 1])).tolist() == [1.0, 0.0, 1.0]
    values, wanted = np.array([[1.0], [2.0]]), np.array([3.0, 2.5])
    assert scores("mean_absolute_error", values, wanted).tolist() == [2.0, 0.5]
    with pytest.raises(DataError, match="an accuracy needs targets of shape"):
        scores("accuracy", logits, np.array([[1], [1], [1]]))
    with pytest.raises(DataError, match="their targets"):
        scores("mean_absolute_error", values, np.zeros(3))


def test_the_mean_is_over_all_samples_however_they_are_cut(tiny, tiny_data, tiny_samples) -> None:
    inference = Inference(tiny.folder, tiny.package)
    beats: list[int] = []
    evaluator = Evaluator(inference, tiny.package, lambda: beats.append(1))
    assert evaluator.take() == (None, None)
    chosen = np.arange(21)
    for _ in evaluator.evaluate(tiny_samples, chosen):
        pass
    assert len(beats) >= 3, "the watchdog hears of each batch"
    expected = np.abs(inference.predict({"x": tiny_data["x"][:21]})["y"] - tiny_data["t"][:21])
    assert evaluator.take() == pytest.approx((expected.mean(), expected.mean()), rel=1e-5)
    assert evaluator.take() == (None, None)


def test_indexes_are_spread_evenly() -> None:
    assert spread(10, 3).tolist() == [0, 3, 6]
    assert spread(3, 10).tolist() == [0, 1, 2]
