"""Knowledge packets on a board: what arrives is kept, weighed, and learned beside its own samples.

A packet names a class for each sample of the probe set, so every model package can learn it.

NodeProtocol ── BoardKnowledge ── KnowledgeReceiver     what has arrived
                      │
                TaughtSamples ── Trainer               what is learned
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.feed import Rehearsal
from edge.data.front import Front
from edge.data.probe_set import ProbeSet, open_probe_set, predict
from edge.data.sources import NpzSettings
from edge.errors import EdgeError
from edge.onnx.session import Inference, LoadedModel, load_model
from edge.trainer import Arrays, Dataset, Indexes, Vector
from ternmesh.config import ConfigError
from ternmesh.federated.knowledge import UNKNOWN, KnowledgeReceiver, weigh
from ternmesh.model_package import TensorSpec
from ternmesh.wire.knowledge import Labels, Topic
from ternmesh_service.notify import no_beat
from ternmesh_service.status import KnowledgeStatus

ROUNDING = 1e-6  # of a sum of weights of 1
WEIGH_ROUNDS = 10  # after which a board may know better what a teacher is worth

_log = logging.getLogger(__name__)


class TaughtSamples:
    """Samples of the probe set as a data set, once `teach` has said what they are.

    `probe` has the input arrays of the probe set by name. `target` is the tensor of the classes.
    """

    def __init__(self, probe: Arrays, target: TensorSpec) -> None:
        self._probe = probe
        self._target = target
        self._labels: Labels = np.empty(0, dtype=np.int64)
        self._sums = np.empty(0)  # of the weights, up to and with each sample
        self.round = 0  # each draws other samples of weights below 1

    def teach(self, labels: Labels, weights: NDArray[np.floating[Any]]) -> None:
        """Replace what is known by labels of all samples of the probe set, UNKNOWN without one.

        `weights` [rows] are between 0 and 1: a sample of weight 0.5 is drawn half as often.
        """
        self._labels = labels
        self._sums = np.where(labels != UNKNOWN, weights, 0).cumsum(dtype=np.float64)

    def __len__(self) -> int:
        return int(self._sums[-1] + ROUNDING) if self._sums.size else 0

    def batch(self, indexes: Indexes) -> dict[str, NDArray[Any]]:
        """The arrays of samples by name. Within one `round` the same indexes give the same."""
        rng = np.random.default_rng([self.round, *indexes])
        # One draw from each stretch of length 1 of the summed weights
        places = indexes + rng.random(indexes.size)
        last = np.searchsorted(self._sums, self._sums[-1])  # the last one with any weight
        rows = np.searchsorted(self._sums, places, side="right").clip(max=last)
        taught = {name: array[rows] for name, array in self._probe.items()}
        return taught | {self._target.name: self._labels[rows].astype(self._target.dtype)}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Forget all until the next packet.

        A class that the model does not have cannot be told of one sample of the probe set alone.
        """
        if reasons:
            self._labels, self._sums = self._labels[:0], self._sums[:0]


class BoardKnowledge:
    """What other models have taught this board. `samples` is its data set, with what they taught.

    It is in memory: after a restart the next packet brings all of it.
    """

    def __init__(self, probe: ProbeSet, own: Dataset) -> None:
        self._taught = TaughtSamples(probe.arrays, probe.target)
        self.samples = Rehearsal(own, self._taught)
        self.remark = ""  # why the last packet counts little, if it does
        self._probe = probe
        self._receiver = KnowledgeReceiver(probe.topic, len(probe), probe.classes)
        self._weighed_at = 0  # the version
        self._is_new = False  # something has arrived since the last `refresh`

    def begin_run(self) -> None:
        self._receiver.begin_run()

    def take(self, body: bytes, _now: float) -> None:
        """Take a part of a packet; WireError."""
        self._is_new |= self._receiver.take(body)

    def refresh(
        self, inference: Inference, version: int, quality: float | None, beat: Callable[[], None]
    ) -> None:
        """Weigh what has arrived, and learn it from now on. Weigh it anew after some versions.

        `quality` is the accuracy of this board's global adapter on its held-out samples.
        """
        self._taught.round = version
        receiver, is_recent = self._receiver, 0 <= version - self._weighed_at < WEIGH_ROUNDS
        if not self._is_new and is_recent:
            return
        if not receiver.labelled:
            self._weighed_at = version
            return
        own = predict(inference, self._probe, beat=beat)
        judgement = weigh(receiver.labels, own, receiver.quality, quality)
        self._taught.teach(receiver.labels.copy(), judgement.weights)
        self._is_new, self._weighed_at = False, version
        if judgement.reason and judgement.reason != self.remark:
            _log.warning("a knowledge packet counts less: %s", judgement.reason)
        self.remark = judgement.reason

    def status(self) -> KnowledgeStatus:
        return KnowledgeStatus(
            samples=len(self._probe),
            known=self._receiver.labelled,
            number=self._receiver.number,
            teacher_accuracy=round(self._receiver.quality, 4),
            remark=self.remark,
        )


class ProbePredictions:
    """What a group's model says of the probe set, on its host."""

    def __init__(self, loaded: LoadedModel, probe: ProbeSet) -> None:
        self.topic: Topic = probe.topic
        self._loaded = loaded
        self._probe = probe
        self._inference = Inference(loaded.folder, loaded.package)

    def __call__(self, adapter: Vector, beat: Callable[[], None] = no_beat) -> NDArray[np.float32]:
        """Probabilities [samples, classes] under an adapter relative to the initial one."""
        tensors = self._loaded.package.split(self._loaded.initial + adapter)
        return predict(self._inference, self._probe, tensors, beat)


def open_probe_predictions(
    model: Path, path: Path, settings: NpzSettings, identity: str
) -> ProbePredictions:
    """The predictions of the model package in `model` for the probe set at `path`; ConfigError."""
    try:
        loaded = load_model(model)
        predictions = ProbePredictions(
            loaded, open_probe_set(path, loaded.package, settings, identity, Front(loaded))
        )
        predictions(0 * loaded.initial)  # a model that cannot run here fails now
    except EdgeError as error:
        raise ConfigError(f"[knowledge]: {error}") from error
    return predictions
