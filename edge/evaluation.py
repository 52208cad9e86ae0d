"""How good the adapter is: on samples kept for that, or on new ones before they are learnt."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.errors import DataError
from edge.sources import input_specs, target_specs
from edge.trainer import Dataset
from ternmesh.bundle import Bundle

Array = NDArray[Any]
Arrays = Mapping[str, Array]


class Predictor(Protocol):
    """What computes the outputs; see `edge.session.Inference`."""

    def predict(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name."""


def scores(metric: str, output: Array, target: Array) -> NDArray[np.float64]:
    """How each prediction of a batch is judged: 0 or 1 for accuracy, else its absolute error."""
    if metric == "accuracy":
        guess = output.argmax(-1)
        if guess.shape != target.shape:
            raise DataError(f"an accuracy needs targets of shape {guess.shape}, not {target.shape}")
        hits: NDArray[np.float64] = (guess == target).astype(np.float64)
        return _each(hits)
    if output.size != target.size:
        raise DataError(f"outputs have shape {output.shape}, their targets {target.shape}")
    error = np.abs(output.reshape(target.shape).astype(np.float64) - target)
    return _each(error)


def _each(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each sample."""
    means: NDArray[np.float64] = values.reshape(len(values), -1).mean(axis=1)
    return means


class Evaluator:
    """Judges the first output against the first target, by the bundle's metric."""

    def __init__(self, predictor: Predictor, bundle: Bundle) -> None:
        self._predictor = predictor
        self._bundle = bundle
        self._inputs = [spec.name for spec in input_specs(bundle)]
        self._target = next((spec.name for spec in target_specs(bundle)), "")
        self._total, self._count = 0.0, 0

    def judge(self, data: Dataset, indexes: NDArray[np.int64]) -> None:
        """Add the scores of some samples, in batches as large as those of training."""
        for start in range(0, len(indexes), self._bundle.batch):
            batch = data.batch(indexes[start : start + self._bundle.batch])
            outputs = self._predictor.predict({name: batch[name] for name in self._inputs})
            output = outputs[self._bundle.outputs[0].name]
            values = scores(self._bundle.metric, output, batch[self._target])
            self._total += float(values.sum())
            self._count += len(values)

    def take(self) -> float | None:
        """The mean score since the last call, where there were samples and it is finite."""
        mean = self._total / self._count if self._count else math.nan
        self._total, self._count = 0.0, 0
        return mean if math.isfinite(mean) else None


def spread(count: int, count_max: int) -> NDArray[np.int64]:
    """At most `count_max` of `count` indexes, evenly spread."""
    return np.arange(min(count, count_max)) * count // min(count, count_max)
