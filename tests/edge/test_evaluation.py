import numpy as np
import pytest

from edge.errors import DataError
from edge.evaluation import Evaluator, sample_losses, scores, spread
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


def test_the_effect_of_a_probe_is_that_on_an_error_which_has_a_limit(
    tiny, tiny_data, tiny_samples
) -> None:
    evaluator = Evaluator(Inference(tiny.folder, tiny.package), tiny.package)
    chosen, x, target = np.arange(21), tiny_data["x"][:21], tiny_data["t"][:21]
    rng = np.random.default_rng(2)
    probe = rng.normal(size=tiny.package.dimension).astype(np.float32)

    def losses(adapter: np.ndarray) -> np.ndarray:
        for _ in evaluator.evaluate(tiny_samples, chosen, tiny.package.split(adapter)):
            pass
        evaluator.take()
        tensors = tiny.package.split(adapter)
        output = Inference(tiny.folder, tiny.package).predict({"x": x, **tensors})["y"]
        return np.abs(output - target).reshape(21, -1).mean(axis=1)

    before = losses(tiny.initial).mean()  # of other metrics than hits, it is the scale
    errors = [1 - np.exp(-losses(tiny.initial + way) / before) for way in (probe, -probe)]
    losses(tiny.initial)
    steps = evaluator.effect(tiny_samples, chosen, tiny.initial, probe)
    found = None
    while found is None:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
    assert found == pytest.approx((errors[0] - errors[1]).mean() / 2, abs=1e-5)
    assert evaluator.take() == (None, None), "nothing of it is left for the next evaluation"


def test_indexes_are_spread_evenly() -> None:
    assert spread(10, 3).tolist() == [0, 3, 6]
    assert spread(3, 10).tolist() == [0, 1, 2]


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
    ("output", "target"),
    [
        ((2, 5, 3), np.zeros((2, 5), int)),
        ((2, 3), np.zeros((2, 1), int)),
        ((2, 3), np.array([0, 3])),
        ((2, 3), np.array([-1, 0])),
    ],
)
def test_what_has_no_cross_entropy_is_not_a_number(output, target) -> None:
    losses = sample_losses("accuracy", np.zeros(output, np.float32), target)
    assert np.isnan(losses).tolist() == [True, True]
