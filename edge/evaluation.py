"""How good an adapter is on samples: scores, losses, and the effect of a probe."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from edge.data.gate import failing
from edge.data.sources import Array, input_specs, target_specs
from edge.errors import DataError, ModelError, OutOfMemory
from edge.onnx.session import Inference
from edge.resources import BatchSize
from edge.trainer import Dataset, Vector
from ternmesh.model_package import ModelPackage
from ternmesh_service.notify import no_beat

SLICE_S = 0.05  # of an evaluation, between which a node serves traffic


class Evaluator:
    """Compares the first output with the first target, by the metric of the model package."""

    def __init__(
        self,
        predictor: Inference,
        package: ModelPackage,
        beat: Callable[[], None] = no_beat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._predictor = predictor
        self._package = package
        self._beat = beat  # called after each batch
        self._clock = clock
        # More samples than in a batch of training would need more memory, and save no time.
        self._batch_size = BatchSize(package.batch)
        self._inputs = [spec.name for spec in input_specs(package)]
        self._target = next((spec.name for spec in target_specs(package)), "")
        self._total = 0.0  # sum of the scores since the last `take`
        self._losses = 0.0
        self._errors = 0.0  # of these samples, by a scale that is one loss
        self._scale = 1.0
        self._count = 0
        self.taken = 0  # samples of the last `take`

    def evaluate(
        self, data: Dataset, indexes: NDArray[np.int64], adapter: Mapping[str, Array] | None = None
    ) -> Iterator[None]:
        """Add the scores of some samples; yields after each batch, so that traffic can be served.

        `adapter` are the tensors of another adapter than that of the predictor. Samples that the
        model cannot compute are set aside.
        The batches adapt to the board's speed and memory. OutOfMemory if one sample is too many.
        """

        def predict(some: NDArray[np.int64]) -> tuple[Mapping[str, Array], dict[str, Array]]:
            batch = data.batch(some)
            inputs = {name: batch[name] for name in self._inputs}
            return batch, self._predictor.predict({**(adapter or {}), **inputs})

        def check(some: NDArray[np.int64]) -> str:
            predict(some)
            return ""

        aside: dict[int, str] = {}
        try:
            while indexes.size:
                part, began = indexes[: self._batch_size.samples], self._clock()
                try:
                    batch, outputs = predict(part)
                except OutOfMemory:
                    self._predictor.release()
                    if not self._batch_size.failed():
                        raise
                    continue
                except ModelError:
                    # Two or more: of one that fails alone nobody knows whose fault it is.
                    if not (reasons := failing(indexes[: max(2, part.size)], check)):
                        raise
                    aside |= reasons
                    indexes = indexes[~np.isin(indexes, list(reasons))]
                    continue
                self._add(batch, outputs)
                indexes = indexes[part.size :]
                self._batch_size.took(part.size, self._clock() - began)
                self._beat()
                yield
        finally:
            if aside:  # not before: the other samples may then have other indexes
                data.set_aside(aside)

    def _add(self, batch: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        output = outputs[self._package.outputs[0].name]
        values = scores(self._package.metric, output, batch[self._target])
        self._total += float(values.sum())
        losses = sample_losses(self._package.metric, output, batch[self._target])
        self._losses += float(losses.sum())
        self._errors += float(-np.expm1(-losses / self._scale).sum())
        self._count += len(values)

    def effect(
        self, data: Dataset, indexes: NDArray[np.int64], adapter: Vector, probe: Vector
    ) -> Generator[None, None, float | None]:
        """Half of the error with `probe` added minus that with it taken away; as `evaluate`.

        The error of a sample is 1 - exp(-loss): for classes, the probability of the wrong ones.
        Where a step overshoots it rises far less than the loss. Other losses are divided by that of
        the evaluation before. `adapter` and `probe` are float32 [D]. None if it is not finite.
        """
        errors = []
        for way in (probe, -probe):
            yield from self.evaluate(data, indexes, self._package.split(adapter + way))
            errors.append(self._errors / self._count)
            self._begin()
        effect = (errors[0] - errors[1]) / 2
        return effect if math.isfinite(effect) else None

    def take(self) -> tuple[float | None, float | None]:
        """The mean score and loss since the last call; None without samples or if not finite."""
        totals = self._total, self._losses
        self.taken = self._count
        means = [total / self._count if self._count else math.nan for total in totals]
        self._begin()
        score, loss = (mean if math.isfinite(mean) else None for mean in means)
        self._scale = 1.0 if self._package.metric == "accuracy" else loss or 1.0
        return score, loss

    def _begin(self) -> None:
        self._total = self._losses = self._errors = 0.0
        self._count = 0


def scores(metric: str, output: Array, target: Array) -> NDArray[np.float64]:
    """The score of each sample: the share of hits for "accuracy", else the mean absolute error."""
    if metric == "accuracy":
        guess = output.argmax(-1)
        if guess.shape != target.shape:
            raise DataError(f"an accuracy needs targets of shape {guess.shape}, not {target.shape}")
        values = (guess == target).astype(np.float64)
    elif output.size != target.size:
        raise DataError(f"outputs have shape {output.shape}, their targets {target.shape}")
    else:
        values = np.abs(output.reshape(target.shape).astype(np.float64) - target)
    means: NDArray[np.float64] = values.reshape(len(values), -1).mean(axis=1)
    return means


def sample_losses(metric: str, output: Array, target: Array) -> NDArray[np.float64]:
    """The loss of each sample: the cross-entropy of logits for "accuracy", else `scores`.

    NaN for an "accuracy" of anything but output [n, classes] and target [n], such as sequences.
    """
    if metric != "accuracy":
        return scores(metric, output, target)
    is_fit = output.ndim == 2 and target.shape == output.shape[:1]
    classes = target.astype(np.int64)
    if not is_fit or classes.min() < 0 or classes.max() >= output.shape[1]:
        return np.full(len(target), math.nan)
    with np.errstate(invalid="ignore"):  # infinite logits give a loss that is not finite
        logits = output.astype(np.float64) - output.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(logits, classes[:, None], axis=1)[:, 0]
    losses: NDArray[np.float64] = np.log(np.exp(logits).sum(axis=1)) - chosen
    return losses


def softmax(values: Array) -> NDArray[np.float64]:
    """The probabilities of logits, along the last axis; NaN for infinite ones."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(values.astype(np.float64) - values.max(axis=-1, keepdims=True))
        shares: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def spread(count: int, count_max: int) -> NDArray[np.int64]:
    """At most `count_max` of `count` indexes, evenly spread."""
    return np.arange(min(count, count_max)) * count // min(count, count_max)
