"""Our aggregation rules as a strategy of Flower's message API."""

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from host.config import load_rule
from ternmesh.errors import RuleError
from ternmesh.federated.robust import SAMPLES_RATIO, lower_median
from ternmesh.federated.rules import Context, Updates, Weights, check_count, weighted_mean
from ternmesh.types import Vector

METRICS_MAX = 64  # of one reply

_log = logging.getLogger(__name__)


class RuleStrategy(FedAvg):  # type: ignore[misc]
    """FedAvg whose step is made by a rule of `[run] aggregation`, from the nodes' changes.

    A reply that cannot be used counts as none, whatever is wrong with it. A node's samples count
    at most as twice the median. Where the rule fails, the round takes the weighted mean. Metrics
    are medians over the nodes. `options` are those of FedAvg; the model's arrays must be float32.
    """

    def __init__(
        self,
        aggregation: str = "weighted_mean",
        byzantine: int = 0,
        aggregation_file: str = "",
        **options: Any,
    ) -> None:
        """ConfigError for a rule that there is not."""
        for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
            options.setdefault(name, median_metrics)
        super().__init__(**options)
        self._rule, self._name = load_rule(aggregation, aggregation_file), aggregation
        self._byzantine = byzantine
        self._global: dict[str, Any] = {}  # the arrays that the nodes began with
        self._before: Vector | None = None  # the newest step

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg; the arrays are those from which the nodes' changes are counted."""
        self._global = {name: array.numpy() for name, array in arrays.items()}
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next global arrays, and metrics; None where no reply can be used."""
        updates, samples, usable = [], [], []
        for message in replies:
            try:
                update, count = self._read(message)
            except Exception as error:  # noqa: BLE001  (a node sends any bytes)
                _leave_out(server_round, error)
                continue
            updates.append(update)
            samples.append(count)
            usable.append(message.content)
        if not updates:
            return None, None
        weights = np.array(samples)
        weights = np.minimum(weights, SAMPLES_RATIO * lower_median(weights))
        self._before = step = self._step(np.stack(updates), weights, server_round)
        return self._moved(step), self.train_metrics_aggr_fn(usable, self.weighted_by_key)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Metrics over the nodes; None where no reply can be used."""
        usable = []
        for message in replies:
            if message.has_error():
                _leave_out(server_round, message.error.reason)
            else:
                usable.append(message.content)
        metrics: MetricRecord | None = None
        if usable:
            metrics = self.evaluate_metrics_aggr_fn(usable, self.weighted_by_key)
        return metrics

    def _read(self, message: Message) -> tuple[Vector, float]:
        """A node's change (float32, D) and its samples; any exception where it has none."""
        if message.has_error():
            raise ValueError(message.error.reason)
        [arrays] = message.content.array_records.values()
        [metrics] = message.content.metric_records.values()
        samples = float(metrics[self.weighted_by_key])
        if set(arrays) != set(self._global) or not (samples > 0 and math.isfinite(samples)):
            raise ValueError("it has other arrays than the model, or no number of samples")
        parts = []
        for name, begun in self._global.items():
            own = arrays[name].numpy()
            if own.shape != begun.shape or own.dtype != begun.dtype:
                raise ValueError(f"{name} is not {begun.dtype} {begun.shape}")
            parts.append((own - begun).ravel())
        update: Vector = np.concatenate(parts)
        if not np.isfinite(update).all():
            raise ValueError("its arrays are not finite")
        return update, samples

    def _step(self, updates: Updates, weights: Weights, server_round: int) -> Vector:
        """The step of a round by the rule, or the weighted mean."""
        context = Context(self._byzantine, self._before)
        try:
            check_count(self._name, len(updates), self._byzantine)
            step = np.asarray(self._rule(updates, weights, context))
            if step.shape != updates.shape[1:] or not np.isfinite(step).all():
                raise RuleError(f"{self._name} returned {step.shape}, or what is not finite")
            return step.astype(np.float32)
        except Exception as error:  # noqa: BLE001  (a rule may be the owner's own code)
            _log.warning("round %d takes the weighted mean: %s", server_round, error)
            return weighted_mean(updates, weights, context)

    def _moved(self, step: Vector) -> ArrayRecord:
        """The global arrays moved by a step (float32, D)."""
        moved, at = ArrayRecord(), 0
        for name, begun in self._global.items():
            moved[name] = Array(begun + step[at : at + begun.size].reshape(begun.shape))
            at += begun.size
        return moved


def _leave_out(server_round: int, why: object) -> None:
    # No node's name: the error of one that is gone comes from the SuperLink.
    _log.warning("round %d: a reply is left out: %.300s", server_round, why)


def median_metrics(contents: Sequence[RecordDict], weighted_by_key: str) -> MetricRecord:
    """The median over the nodes of each metric that most of them have as a finite number.

    So a minority cannot move it beyond what the others report.
    """
    found: dict[str, list[float]] = {}
    for content in contents:
        records = content.metric_records.values()
        own = {name: value for record in records for name, value in record.items()}
        for name, value in list(own.items())[:METRICS_MAX]:
            if name != weighted_by_key and np.ndim(value) == 0 and math.isfinite(value):
                found.setdefault(name, []).append(float(value))
    usual = {n: float(np.median(v)) for n, v in found.items() if 2 * len(v) > len(contents)}
    return MetricRecord(usual)
