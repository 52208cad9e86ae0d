"""How good each global adapter is on this node's data, and the history of the rounds.

The samples are those set aside for evaluation, or new ones before the node trains on them.
"""

import json
import logging
import math
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.sources import input_specs, target_specs
from edge.errors import DataError, ModelError, OutOfMemory
from edge.onnx.session import Inference
from edge.resources import BatchSize
from edge.trainer import Dataset, Vector
from ternmesh.model_package import ModelPackage
from ternmesh_service.notify import no_beat
from ternmesh_service.status import HistoryEntry
from ternmesh_store.node_store import NodeStore

SLICE_S = 0.05  # of an evaluation, between which a node serves traffic
ENTRIES_MAX = 256
KEY = "history"
BEST_KEY = "best"
_BEST = struct.Struct("<qd")  # version and metric, before the adapter's int32

Array = NDArray[Any]

_log = logging.getLogger(__name__)


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

    def evaluate(
        self, data: Dataset, indexes: NDArray[np.int64], adapter: Mapping[str, Array] | None = None
    ) -> Iterator[None]:
        """Add the scores of some samples; yields after each batch, so that traffic can be served.

        `adapter` are the tensors of another adapter than that of the predictor.
        The batches adapt to the board's speed and memory. OutOfMemory if one sample is too many.
        """
        while indexes.size:
            part, began = indexes[: self._batch_size.samples], self._clock()
            batch = data.batch(part)
            try:
                inputs = {name: batch[name] for name in self._inputs}
                outputs = self._predictor.predict({**(adapter or {}), **inputs})
            except OutOfMemory:
                self._predictor.release()
                if not self._batch_size.failed():
                    raise
                continue
            output = outputs[self._package.outputs[0].name]
            values = scores(self._package.metric, output, batch[self._target])
            self._total += float(values.sum())
            losses = self._sample_losses(output, batch[self._target])
            self._losses += float(losses.sum())
            self._errors += float(-np.expm1(-losses / self._scale).sum())
            self._count += len(values)
            indexes = indexes[part.size :]
            self._batch_size.took(part.size, self._clock() - began)
            self._beat()
            yield

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
        means = [total / self._count if self._count else math.nan for total in totals]
        self._begin()
        score, loss = (mean if math.isfinite(mean) else None for mean in means)
        self._scale = 1.0 if self._package.metric == "accuracy" else loss or 1.0
        return score, loss

    def _begin(self) -> None:
        self._total = self._losses = self._errors = 0.0
        self._count = 0

    def _sample_losses(self, output: Array, target: Array) -> NDArray[np.float64]:
        """The loss of each sample; NaN for outputs of another form, such as sequences."""
        try:
            return sample_losses(self._package.metric, output, target)
        except ModelError:
            return np.full(len(target), math.nan)


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
    """The loss of each sample; ModelError if output and target do not fit the metric.

    It is the cross-entropy of logits for "accuracy" (output [n, classes], target [n]), otherwise
    the mean absolute error (as many outputs as targets).
    """
    output = output.astype(np.float64)
    if metric != "accuracy":
        if output.size != target.size:
            raise ModelError(f"outputs have shape {output.shape}, their targets {target.shape}")
        apart = np.abs(output.reshape(target.shape) - target)
        means: NDArray[np.float64] = apart.reshape(len(target), -1).mean(axis=1)
        return means
    if output.ndim != 2 or target.shape != output.shape[:1]:
        raise ModelError(
            f"a cross-entropy takes logits [n, classes] and targets [n], not {output.shape} and "
            f"{target.shape}"
        )
    classes = target.astype(np.int64)
    if classes.min() < 0 or classes.max() >= output.shape[1]:
        raise ModelError(f"a target is outside the {output.shape[1]} classes of the model")
    with np.errstate(invalid="ignore"):  # infinite logits give a loss that is not finite
        logits = output - output.max(axis=1, keepdims=True)
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


class History:
    """The newest entries of one run, stored in `values` and durable after the next commit."""

    def __init__(self, values: NodeStore) -> None:
        self._values = values
        self._entries: deque[HistoryEntry] = deque(maxlen=ENTRIES_MAX)

    def load(self) -> None:
        """Read what an earlier process stored; damaged bytes are ignored."""
        data = self._values.get(KEY)
        if data is None:
            return
        try:
            self._entries.extend(HistoryEntry(**item) for item in json.loads(data))
        except (ValueError, TypeError, RecursionError) as error:
            _log.warning("the history of earlier rounds cannot be read: %s", error)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(self._entries)

    @property
    def last(self) -> HistoryEntry | None:
        return self._entries[-1] if self._entries else None

    def append(self, entry: HistoryEntry) -> None:
        """Add an entry; beyond `ENTRIES_MAX` the oldest is dropped."""
        self._entries.append(entry)
        self._store()

    def clear(self) -> None:
        """Delete all entries, for another run."""
        self._entries.clear()
        self._store()

    def _store(self) -> None:
        self._values.put(KEY, json.dumps([asdict(entry) for entry in self._entries]).encode())


@dataclass(frozen=True, slots=True)
class Probe:
    """A vector (float32 [D]) to evaluate with a global adapter, and then its effect on the loss."""

    version: int = 0
    vector: Vector | None = None
    effect: float | None = None  # see `Evaluator.effect`


@dataclass(frozen=True, slots=True)
class BestAdapter:
    """The adapter of a run with the best metric on the held-out samples, as the board used it."""

    version: int
    metric: float
    model_q24: NDArray[np.int32]


def read_best(values: NodeStore, dimension: int) -> BestAdapter | None:
    """What `write_best` stored; None if there is nothing, or it is damaged."""
    data = values.get(BEST_KEY) or b""
    if len(data) != _BEST.size + 4 * dimension:
        return None
    version, metric = _BEST.unpack_from(data)
    if not math.isfinite(metric):
        return None
    return BestAdapter(version, metric, np.frombuffer(data, "<i4", offset=_BEST.size))


def write_best(values: NodeStore, best: BestAdapter | None) -> None:
    """Store the best adapter, durable after the next commit; None deletes it, for another run."""
    data = b""
    if best is not None:
        data = _BEST.pack(best.version, best.metric) + best.model_q24.astype("<i4").tobytes()
    values.put(BEST_KEY, data)


def is_better(metric_name: str, metric: float, best: BestAdapter | None) -> bool:
    """Whether `metric` is better than that of `best`: more accuracy, or less error."""
    if best is None:
        return True
    return metric > best.metric if metric_name == "accuracy" else metric < best.metric
