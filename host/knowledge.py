"""What groups of boards with other architectures teach each other, in one host process.

Every few rounds a group's model says what it thinks of the probe set. The other groups' answers,
weighed by reputation and by what the group knows itself, go to its boards as a knowledge packet.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ternmesh.codec.scale import to_float
from ternmesh.errors import CodecError, TernmeshError
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.knowledge import Judgement, Probabilities, vote, weigh
from ternmesh.security.signatures import SIGNED_HEAD
from ternmesh.types import Vector
from ternmesh.wire.control import FINISHED
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.knowledge import NUMBER_END, QUALITY_MAX, Labels, Topic, cut_labels, write_part
from ternmesh_service.notify import no_beat
from ternmesh_service.status import TeachingStatus

WAITS_MAX = 5  # packets that a group may be behind for others to wait for it

_log = logging.getLogger(__name__)


class Predictions(Protocol):
    """What a group's model says of the probe set; see `edge.knowledge.ProbePredictions`."""

    topic: Topic

    def __call__(self, adapter: Vector, beat: Callable[[], None]) -> Probabilities:
        """Probabilities [samples, classes] under an adapter relative to the initial one.

        `beat` is called after each batch.
        """


@dataclass(frozen=True, slots=True)
class GroupKnowledge:
    """What one group knows."""

    topic: Topic
    predictions: Probabilities  # of the probe set
    quality: float | None  # the median accuracy that its boards report
    trust: float  # the mean reputation of the boards that train, 0 to 1


@dataclass(frozen=True, slots=True)
class Taught:
    """What the other groups teach one: labels, their quality, and who counts less and why.

    Where they say nothing, the labels are the group's own; None where nobody says anything.
    """

    labels: Labels | None
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

    def forget(self, group: str) -> None:
        """A group takes part no more."""
        with self._lock:
            self._known.pop(group, None)
            self._versions.pop(group, None)

    def taught(self, group: str) -> Taught:
        """What the others teach a group that has published."""
        with self._lock:
            others = dict(self._known)
        own = others.pop(group)
        judged = {name: judge(known, own) for name, known in others.items()}
        remarks = {name: one.reason for name, one in judged.items() if one.reason}
        weights = {name: one.weights * others[name].trust for name, one in judged.items()}
        counted = {name: weight for name, weight in weights.items() if weight.any()}
        if not counted:
            return Taught(None, 0.0, remarks)
        predictions = [others[name].predictions for name in counted]
        labels = vote(own.predictions, predictions, list(counted.values()))
        shares = [float(weight.sum()) for weight in counted.values()]
        qualities = [quality_of(others[name], own) for name in counted]
        return Taught(labels, float(np.average(qualities, weights=shares)), remarks)


def quality_of(teacher: GroupKnowledge, own: GroupKnowledge) -> float:
    """The accuracy of a teacher; where its boards report none, that of the group itself."""
    known = [one.quality for one in (teacher, own) if one.quality is not None]
    return known[0] if known else 1.0


def judge(teacher: GroupKnowledge, own: GroupKnowledge) -> Judgement:
    """What a group's knowledge is worth to another one."""
    nothing = np.zeros(len(own.predictions), dtype=np.float32)
    if teacher.topic.probe != own.topic.probe:
        return Judgement(nothing, "it has another probe set")
    if teacher.topic.labels != own.topic.labels:
        return Judgement(nothing, "its classes are others")
    quality = quality_of(teacher, own)
    return weigh(teacher.predictions.argmax(axis=1), own.predictions, quality, own.quality)


class Teaching:
    """One group's end of an exchange. `beat` is called after each batch of predictions.

    `quality` is the accuracy in the newest reports of its boards. `version` is that of its global
    adapter when the host starts: what was due then was sent before.
    """

    def __init__(
        self,
        group: str,
        exchange: KnowledgeExchange,
        predictions: Predictions,
        every_rounds: int,
        beat: Callable[[], None] = no_beat,
    ) -> None:
        self.group = group
        self.remarks: Mapping[str, str] = {}
        self.sent: int | None = None  # the version at which the last packet was sent
        self.quality: float | None = None
        self.version = 0
        self._exchange = exchange
        self._predictions = predictions
        self._every_rounds, self._beat = every_rounds, beat
        self._has_published = False

    def turn(self, host: HostProtocol) -> list[bytes]:
        """The parts of a packet for the group's boards, every few rounds."""
        version = host.version
        is_due = version != self.version and version % self._every_rounds == 0
        if is_due:
            self.version = version
        elif self._has_published or not version:
            return []
        try:
            # The first time after a start, even if no packet is due: an exchange is not stored.
            known = self._publish(host)
            return self._teach(host, known) if is_due else []
        except (TernmeshError, MemoryError) as error:  # the group can go on without it
            self._say({self.group: f"its model cannot be asked: {error}"})
            return []

    def _publish(self, host: HostProtocol) -> GroupKnowledge:
        self._has_published = True
        predictions = self._predictions(to_float(host.model_q24), self._beat)
        if not np.isfinite(predictions).all():
            raise CodecError("it predicts NaN or infinity")
        reputations, muted = host.combiner.aggregation.reputations, host.combiner.muted
        boards = (board for board in host.boards if board.name not in muted)
        weights = [reputations.weight(board.address) for board in boards]
        trust = float(np.mean(weights)) if weights else 0.0
        known = GroupKnowledge(self._predictions.topic, predictions, self.quality, trust)
        self._exchange.publish(self.group, known)
        return known

    def _teach(self, host: HostProtocol, known: GroupKnowledge) -> list[bytes]:
        taught = self._exchange.taught(self.group)
        self._say(taught.remarks)
        if taught.labels is None:
            return []
        self.sent = host.version
        parts = cut_labels(
            known.topic,
            number=self.sent % NUMBER_END,
            quality=round(min(1.0, taught.quality) * QUALITY_MAX),
            labels=taught.labels,
            classes=known.predictions.shape[1],
            body_max=host.plan.frame_mtu - FRAME_OVERHEAD - SIGNED_HEAD,
        )
        return [write_part(part) for part in parts]

    def _say(self, remarks: Mapping[str, str]) -> None:
        for name, remark in remarks.items():
            if self.remarks.get(name) != remark:
                _log.warning("%s learns less from %s: %s", self.group, name, remark)
        self.remarks = remarks

    def is_ahead(self, host: HostProtocol) -> bool:
        """Whether the group's round should wait for groups that have learned less.

        It waits for no group without boards, and for none that is far behind. A run without an end
        has no pace of its own.
        """
        is_over = host.phase == FINISHED or host.plan.rounds == 0
        is_over = is_over or not any(True for _ in host.boards)
        ahead = self._exchange.note(self.group, host.version, is_over=is_over)
        return self._every_rounds <= ahead <= WAITS_MAX * self._every_rounds

    def status(self) -> TeachingStatus:
        return TeachingStatus(group=self.group, sent=self.sent, less=dict(self.remarks))
