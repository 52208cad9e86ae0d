"""What groups of boards with other architectures teach each other, in one host process.

Every few rounds a group's model says what it thinks of the probe set. The other groups' answers,
weighed by reputation and by what the group knows itself, go to its boards as a knowledge packet.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ternmesh.codec.scale import to_float
from ternmesh.codec.soft_labels import quantise
from ternmesh.federated.coordinator import Coordinator
from ternmesh.federated.knowledge import Judgement, Probabilities, combine, weigh
from ternmesh.types import Vector
from ternmesh.wire.control import FINISHED
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.knowledge import NUMBER_END, QUALITY_MAX, Topic, cut_labels, write_part
from ternmesh.wire.update import SIGNATURE_SIZE

SIGNED = 1 + SIGNATURE_SIZE  # bytes that a signature adds to a body

_log = logging.getLogger(__name__)


class Predictions(Protocol):
    """What a group's model says of the probe set; see `edge.knowledge.ProbePredictions`."""

    topic: Topic

    def __call__(self, adapter: Vector) -> Probabilities:
        """Probabilities [samples, classes] under an adapter relative to the initial one."""


@dataclass(frozen=True, slots=True)
class GroupKnowledge:
    """What one group knows at a version of its global adapter."""

    topic: Topic
    version: int
    labels: Probabilities
    quality: float | None  # the median accuracy that its boards report
    trust: float  # the mean reputation of its boards, 0 to 1


@dataclass(frozen=True, slots=True)
class Taught:
    """What the other groups teach one: soft labels, their quality, and who counts less and why."""

    labels: Probabilities
    quality: float
    remarks: Mapping[str, str]


class KnowledgeExchange:
    """The newest knowledge of each group. Its groups run in threads of their own."""

    def __init__(self) -> None:
        self._known: dict[str, GroupKnowledge] = {}
        self._versions: dict[str, int] = {}  # of the groups whose runs have not ended
        self._lock = threading.Lock()

    def note(self, group: str, version: int, *, is_over: bool) -> int:
        """Note how far a group is; by how many rounds it is ahead of the last one."""
        with self._lock:
            if is_over:
                self._versions.pop(group, None)
                return 0
            self._versions[group] = version
            return version - min(self._versions.values())

    def publish(self, group: str, known: GroupKnowledge) -> None:
        """Put a group's knowledge in place of what it knew before."""
        with self._lock:
            self._known[group] = known

    def taught(self, group: str) -> Taught | None:
        """What the others teach a group that has published; None where nothing is left of it."""
        with self._lock:
            others = dict(self._known)
        own = others.pop(group)
        judged = {name: judge(known, own) for name, known in others.items()}
        weights = {name: one.weights * others[name].trust for name, one in judged.items()}
        labels = combine([others[name].labels for name in judged], list(weights.values()))
        remarks = {name: one.reason for name, one in judged.items() if one.reason}
        if labels is None:
            return None
        shares = [(float(weights[name].sum()), others[name].quality or 0.0) for name in judged]
        quality = sum(share * good for share, good in shares) / sum(share for share, _ in shares)
        taught = labels.sum(axis=1, keepdims=True) > 0
        return Taught(np.where(taught, labels, own.labels), quality, remarks)


def judge(teacher: GroupKnowledge, own: GroupKnowledge) -> Judgement:
    """What a group's knowledge is worth to another one."""
    nothing = np.zeros(len(own.labels), dtype=np.float32)
    if teacher.topic.probe != own.topic.probe:
        return Judgement(nothing, "it has another probe set")
    if teacher.topic.labels != own.topic.labels:
        return Judgement(nothing, "its classes are others")
    quality = (own.quality or 0.0) if teacher.quality is None else teacher.quality
    return weigh(quantise(teacher.labels), own.labels, quality, own.quality)


class Teaching:
    """One group's end of an exchange."""

    def __init__(
        self, group: str, exchange: KnowledgeExchange, predictions: Predictions, every_rounds: int
    ) -> None:
        self.group = group
        self.remarks: Mapping[str, str] = {}
        self.sent: int | None = None  # the version at which the last packet was sent
        self.quality: float | None = None  # in the newest reports of the boards
        self._exchange = exchange
        self._predictions = predictions
        self._every_rounds = every_rounds
        self._version = -1

    def turn(self, coordinator: Coordinator) -> list[bytes]:
        """The parts of a packet for the group's boards, every few rounds."""
        version = coordinator.version
        is_due = version > 0 and version % self._every_rounds == 0
        if version == self._version or not is_due:
            return []
        self._version = version
        labels = self._predictions(to_float(coordinator.model_q24))
        reputations = coordinator.aggregation.reputations
        weights = [reputations.weight(address) for address in coordinator.nodes]
        trust = float(np.mean(weights)) if weights else 0.0
        known = GroupKnowledge(self._predictions.topic, version, labels, self.quality, trust)
        self._exchange.publish(self.group, known)
        taught = self._exchange.taught(self.group)
        if taught is None:
            return []
        for name, remark in taught.remarks.items():
            if self.remarks.get(name) != remark:
                _log.warning("%s learns less from %s: %s", self.group, name, remark)
        self.remarks = taught.remarks
        self.sent = version
        parts = cut_labels(
            known.topic,
            version % NUMBER_END,
            round(taught.quality * QUALITY_MAX),
            quantise(taught.labels),
            coordinator.plan.frame_mtu - FRAME_OVERHEAD - SIGNED,
        )
        return [write_part(part) for part in parts]

    def is_ahead(self, coordinator: Coordinator) -> bool:
        """Whether the group's round should wait for groups that have learned less.

        Not in a run without an end: it has no pace of its own.
        """
        is_over = coordinator.phase == FINISHED or coordinator.plan.rounds == 0
        ahead = self._exchange.note(self.group, coordinator.version, is_over=is_over)
        return ahead >= self._every_rounds

    def status(self) -> dict[str, object]:
        """What is known of it, ready for JSON."""
        return {"group": self.group, "sent": self.sent, "less": dict(self.remarks)}
