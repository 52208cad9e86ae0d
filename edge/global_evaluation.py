"""The evaluation of each global adapter, once: for the history and the host.

The samples are those set aside for it, or new ones before the node trains on them. It runs batch by
batch, between which the node serves traffic.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from edge.config import NodeConfig
from edge.errors import BoardFault, ModelError
from edge.evaluation import SLICE_S, Evaluator, spread
from edge.onnx.session import LoadedModel
from edge.trainer import Dataset, Vector
from ternmesh.codec.scale import to_float
from ternmesh.federated.evaluation import Evaluation, Values, write_values
from ternmesh.types import ModelQ24
from ternmesh_service.status import HistoryEntry
from ternmesh_store.node_store import NodeStore

ENTRIES_MAX = 256
KEY = "history"  # of its value in the store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Probe:
    """A vector (float32 [D]) to evaluate with a global adapter, and then its effect on the loss."""

    version: int = 0
    vector: Vector | None = None
    effect: float | None = None  # see `Evaluator.effect`


class GlobalEvaluation:
    """The history of this board's global adapters; `held_out` are the samples for it, if any.

    `moved_bytes` counts the bytes that went up and came down so far.
    """

    def __init__(
        self,
        config: NodeConfig,
        loaded: LoadedModel,
        held_out: Dataset | None,
        *,
        evaluator: Evaluator,
        store: NodeStore,
        moved_bytes: Callable[[], tuple[int, int]],
        clock: Callable[[], float],
    ) -> None:
        self.history: deque[HistoryEntry] = deque(maxlen=ENTRIES_MAX)  # the newest of this run
        self.probe = Probe()
        self.loss: float | None = None  # of the last trained round
        self._config = config
        self._initial = loaded.initial
        self._package = loaded.package
        self.held_out = held_out
        self.evaluator = evaluator
        self._store = store
        self._moved_bytes = moved_bytes
        self._clock = clock
        self._next: tuple[int, ModelQ24] | None = None  # the version to evaluate, and its adapter
        self._running: Iterator[None] | None = None
        self._counted = 0  # samples of the newest evaluation
        self._marked_at = clock()  # the time of the last entry of the history
        self._marked_bytes = (0, 0)  # up and down, at that time

    def load(self) -> None:
        try:
            stored = json.loads(self._store.get(KEY) or b"[]")
            self.history.extend(HistoryEntry(**item) for item in stored)
        except (ValueError, TypeError, RecursionError) as error:
            _log.warning("the history of earlier rounds cannot be read: %s", error)
        self._marked_at = self._clock()

    def begin_run(self) -> None:
        """Forget what is of the run before. The caller commits."""
        self.loss = None
        self._next = None
        self._running = None
        self.history.clear()
        self._store_history()

    @property
    def last(self) -> HistoryEntry | None:
        return self.history[-1] if self.history else None

    @property
    def is_running(self) -> bool:
        return self._running is not None or self._next is not None

    def lacks(self, version: int) -> bool:
        """Whether this version was not evaluated, and no evaluation of another one runs."""
        newest = self._next[0] if self._next else self.last and self.last.version
        return self._running is None and newest != version

    def begin(self, version: int, model_q24: ModelQ24) -> None:
        """Evaluate this version with the next calls of `advance`."""
        self._next = version, model_q24

    def advance(self) -> None:
        """Evaluate for about `SLICE_S`."""
        running, self._running = self._running, None
        if running is None and self._next is not None:
            running, self._next = self._evaluate(*self._next), None
        if running is not None and self._has_more(running):
            self._running = running

    def evaluate_labelled(self, data: Dataset, indexes: NDArray[np.int64]) -> None:
        """Add samples that were labelled just now to the next entry; what takes long is left."""
        self._has_more(self.evaluator.evaluate(data, indexes[::-1]))

    def report(self, version: int) -> Values:
        """What the host is told of a global adapter; nothing without held-out samples."""
        last = self.last
        if self.held_out is None or not self._config.evaluate.report:
            return ()
        if last is None or last.version != version:
            return ()
        effect = self.probe.effect if self.probe.version == version else None
        # In place of the accuracy, so that no report is longer than others
        is_told = self._package.metric == "accuracy" and effect is None
        return write_values(
            Evaluation(last.metric_loss, last.metric if is_told else None, probe=effect)
        )

    def _has_more(self, evaluation: Iterator[None]) -> bool:
        """Whether there is more after `SLICE_S`. One that fails is over: it is no work done."""
        stop_at = self._clock() + SLICE_S
        try:
            return any(self._clock() >= stop_at for _ in evaluation)
        except BoardFault:
            raise
        except ModelError as error:
            _log.warning("an adapter was not evaluated: %s", error)
            return False

    def _evaluate(self, version: int, model_q24: ModelQ24) -> Iterator[None]:
        """Evaluate an adapter to the end, whatever comes meanwhile, and add it to the history."""
        held_out = self.held_out
        loss, self.loss = self.loss, None
        adapter = self._initial + to_float(model_q24)
        if held_out is not None:
            self.evaluator.take()  # what is left of an evaluation without an end
            chosen = spread(len(held_out), self._config.evaluate.samples_max)
            yield from self.evaluator.evaluate(held_out, chosen, self._package.split(adapter))
        metric, metric_loss = self.evaluator.take()
        self._counted = self.evaluator.taken
        probe = self.probe
        is_asked = probe.version == version and self._config.evaluate.report
        if held_out is not None and is_asked and probe.vector is not None:
            effect = yield from self.evaluator.effect(held_out, chosen, adapter, probe.vector)
            if self.probe is probe:  # the next global update may have brought another
                self.probe = Probe(version, effect=effect)
        self._add_entry(version, metric, metric_loss, loss)

    def _add_entry(
        self, version: int, metric: float | None, metric_loss: float | None, loss: float | None
    ) -> None:
        now, moved = self._clock(), self._moved_bytes()
        entry = HistoryEntry(
            version=version,
            metric=metric,
            loss=loss,
            bytes_up=moved[0] - self._marked_bytes[0],
            bytes_down=moved[1] - self._marked_bytes[1],
            seconds=round(now - self._marked_at, 3),
            metric_loss=metric_loss,
            metric_samples=self._counted,
        )
        self._marked_bytes = moved
        self._marked_at = now
        self.history.append(entry)
        self._store_history()
        self._store.commit()
        shown = "unknown" if metric is None else f"{metric:.4f} of {self._counted} samples"
        _log.info("global adapter %d: %s %s", version, self._package.metric, shown)

    def _store_history(self) -> None:
        self._store.put(KEY, json.dumps([asdict(entry) for entry in self.history]).encode())
