"""Knowledge of other models: gathered from the parts of packets, and weighed before it is learned.

A teacher that is worse than the student counts less, down to nothing. So does one whose labels
contradict what the student is sure of, in all classes or in some: it may lie. SPEC.md section 12.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.wire.knowledge import QUALITY_MAX, Labels, Topic, order, read_labels, read_part
from ternmesh.wire.update import whole_round

Probabilities = NDArray[np.floating[Any]]

# Accuracy: a teacher that is so much worse counts less; nothing. Boards measure it on few samples
# of their own, which are harder for one group than for another.
WORSE, WORSE_MAX = 0.15, 0.3
CONFIDENCE = 4  # the power of a teacher's highest probability by which its vote counts
UNKNOWN = -1  # in place of the class of a sample that nothing has arrived about
SURE = 0.8  # the probability from which a student can contradict
SURE_MIN, SURE_OF_CLASS_MIN = 20, 10  # samples that a student must be sure of
ABLE = 0.4  # a student below this kappa with the truth cannot contradict
CHANCE_MAX = 0.8  # of two models that know nothing to agree, up to which agreement says anything
LIE, LIE_OF_CLASS = 0.25, 0.1  # the agreement, in shares of what is expected, below which it lies


@dataclass(frozen=True, slots=True)
class Judgement:
    """How much each sample of the probe set counts, float32 [rows] in 0 to 1, and why not more."""

    weights: NDArray[np.float32]
    reason: str = ""


class KnowledgeReceiver:
    """The labels of one probe set from the parts that have arrived, the newest of each."""

    def __init__(self, topic: Topic, rows: int, classes: int) -> None:
        self.labels: Labels = np.full(rows, UNKNOWN)
        self.quality = 0.0  # of the teacher, in the newest part
        self.number: int | None = None  # of the newest packet
        self._numbers = np.zeros(rows, dtype=np.int64)  # of the packet of each row
        self._topic = topic
        self._classes = classes

    @property
    def labelled(self) -> int:
        """How many samples have a label."""
        return int(np.count_nonzero(self.labels != UNKNOWN))

    def take(self, body: bytes) -> bool:
        """Take a part; True if it has changed anything. WireError leaves everything as it was."""
        part = read_part(body)
        if part.topic.probe != self._topic.probe:
            raise WireError("probe set", "a knowledge packet is about another probe set")
        if part.topic.labels != self._topic.labels:
            raise WireError("label space", "a knowledge packet has other classes")
        rows = len(self.labels)
        if part.start + part.count > rows:
            raise WireError("knowledge", "a knowledge packet has more samples than the probe set")
        number = part.number if self.number is None else whole_round(part.number, self.number)
        labels = read_labels(part, self._classes)
        place = order(self._topic, part.number, rows)[part.start : part.start + part.count]
        is_newer = self._numbers[place] <= number
        place, labels = place[is_newer], labels[is_newer]
        self._numbers[place] = number
        is_changed = bool((self.labels[place] != labels).any())
        self.labels[place] = labels
        quality = part.quality / QUALITY_MAX
        if self.number is None or number >= self.number:
            is_changed |= quality != self.quality
            self.number, self.quality = number, quality
        return is_changed

    def begin_run(self) -> None:
        """Count packets anew: their numbers begin again with another run. What is known stays."""
        self.number = None
        self._numbers[:] = 0


def weigh(
    taught: Labels, own: Probabilities, teacher_quality: float, own_quality: float | None
) -> Judgement:
    """What labels [rows] are worth to a student that predicts `own` [rows, classes].

    Samples without a label count nothing. Qualities are accuracies on samples that were not
    trained on; without one of its own a student takes a teacher at its word.
    """
    labelled = taught != UNKNOWN
    weights = labelled.astype(np.float32)
    quality = 0.0 if own_quality is None else own_quality
    better = (teacher_quality - quality + WORSE_MAX) / (WORSE_MAX - WORSE)
    weights *= np.float32(np.clip(better, 0, 1))
    if better <= 0:
        return Judgement(weights, "the teacher is worse than this model")
    guess = own.argmax(axis=1)
    sure = labelled & (own.max(axis=1) >= SURE)
    classes = own.shape[1]
    expected = kappa(quality, 1 / classes)
    if np.count_nonzero(sure) < SURE_MIN or expected < ABLE:
        return Judgement(weights)
    agreed = taught[sure] == guess[sure]
    chance = _shares(taught[sure], classes) @ _shares(guess[sure], classes)
    if chance > CHANCE_MAX:  # nearly all of it is one class
        return Judgement(weights)
    if kappa(float(agreed.mean()), float(chance)) < LIE * expected:
        return Judgement(weights * 0, "its labels contradict what this model is sure of")
    lies = []
    for one in range(classes):
        about = guess[sure] == one
        if about.sum() >= SURE_OF_CLASS_MIN and agreed[about].mean() < LIE_OF_CLASS * expected:
            lies.append(one)
            weights[guess == one] = 0
            weights[taught == np.bincount(taught[sure][about]).argmax()] = 0
    if lies:
        named = ", ".join(map(str, lies))
        return Judgement(weights, f"its labels of class {named} contradict what this model knows")
    return Judgement(weights)


def vote(
    own: Probabilities,
    teachers: Sequence[Probabilities],
    weights: Sequence[NDArray[np.floating[Any]]],
) -> Labels:
    """The class of each sample [rows] for which teachers, by their weights of each row, vote.

    A vote of a teacher that is surer of a sample counts more. Where the weights sum to less than 1,
    the student itself (`own`) votes with what is missing. Of equal classes the lowest wins.
    """
    missing = (1 - np.sum(weights, axis=0)).clip(0) if weights else np.ones(len(own))
    votes = np.zeros(own.shape)
    for weight, said in zip([*weights, missing], [*teachers, own], strict=True):
        votes[np.arange(len(own)), said.argmax(axis=1)] += weight * said.max(axis=1) ** CONFIDENCE
    winners: Labels = votes.argmax(axis=1)
    return winners


def kappa(agreement: float, chance: float) -> float:
    """Cohen's kappa: agreement beyond what chance gives, 1 for complete agreement."""
    return (agreement - chance) / (1 - chance) if chance < 1 else 0.0


def _shares(classes: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    return np.bincount(classes, minlength=count) / max(1, classes.size)
