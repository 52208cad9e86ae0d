"""One transfer with all its controls: `python -m experiments.transfer.arms PAIR SEED KEPT DATA`.

It prints its progress on stderr, and one JSON line with all arms. What is made once for all seeds
is kept in the folder KEPT.
"""

import json
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.hypervectors import (
    learned_hypervectors,
    prototypes,
    random_hypervectors,
    similarities,
)
from experiments.transfer.distillation import (
    LearningSettings,
    Lesson,
    join,
    learn,
    predict,
    represent,
)
from experiments.transfer.learners import Learner, make_learner
from experiments.transfer.pairs import PAIRS, Pair
from experiments.transfer.report import efficiency, published_ratio
from experiments.transfer.soft_labels import quantise
from experiments.transfer.tasks import TASKS, Samples, Split, split
from ternmesh.codec.entropy_coder import encode_trits
from ternmesh.errors import TernmeshError
from ternmesh.federated.knowledge import UNKNOWN, KnowledgeReceiver
from ternmesh.security.signatures import SIGNED_HEAD
from ternmesh.types import Trits
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.knowledge import HEAD_SIZE, Labels, Topic, cut_labels, topic_of, write_part

SURE = 0.8  # the probability from which a student takes its own prediction for a label
SELF_TRAININGS = 2
FEW_SHARE = 0.2  # of the draws, for the student's own labels
PROTOTYPE_TRITS = 2048  # of a student's hidden representation
SHARPNESS = 12.0  # of the softmax over cosines with prototypes
RELATIONAL = 1.0
FRAME_MTU, RADIO_MTU = 1024, 184  # of frames over a network, and over a radio link
ROWS_HEAD = 7  # bytes before the trits of a part: dimension, count and coding
HALF = 0.5  # of the parts, lost in one arm


class Run:
    """Teacher, student and samples of one seed."""

    def __init__(self, pair: Pair, seed: int, kept: Path, data: Path, show: Callable[[str], None]):
        self.task = TASKS[pair.task]
        self.samples: Samples = self.task.read(data)
        self.split: Split = split(self.task, self.samples, seed)
        self.pair, self.seed, self.show = pair, seed, show
        make = [(pair.teacher, True), (pair.student, False)]
        self.teacher, self.student = (
            make_learner(name, self.samples, kept, data, is_teacher=is_teacher)
            for name, is_teacher in make
        )
        self.target = torch.from_numpy(self.samples.target)

    def all(self) -> dict[str, Any]:
        """Every arm; accuracies between 0 and 1, sizes in bytes."""
        began = time.monotonic()
        teacher = self._controls(self.teacher, "teacher")
        taught = self._learn(self.teacher, self._labelled(self.teacher, self.split.teacher))
        teacher["after"] = self._accuracy(self.teacher, taught)
        probe = self._of(self.teacher, self.split.probe)
        logits = predict(taught, probe)
        teacher["probe"] = self._share_right(logits, self.split.probe)
        self.show(f"teacher {teacher['before']:.1%} to {teacher['after']:.1%}")
        student = self._controls(self.student, "student")
        hidden = represent(taught, probe).numpy()
        sizes = self._students(student, logits, hidden, teacher["after"])
        return {
            "teacher": teacher,
            "student": student,
            **sizes,
            "membership": self._membership(taught),
            "rows": {name: len(getattr(self.split, name)) for name in ("few", "probe", "test")},
            "seconds": round(time.monotonic() - began),
        }

    # Controls

    def _controls(self, learner: Learner, name: str) -> dict[str, float]:
        """What a model reaches without the teacher's knowledge; "best" of it."""
        found = {"before": self._accuracy(learner, learner.make())}
        few = self._labelled(learner, self.split.few)
        module = self._learn(learner, few, learner.few_settings)
        found["few"] = self._accuracy(learner, module)
        for _ in range(1 if self.pair.is_long else SELF_TRAININGS):
            module = self._learn(learner, join([few, self._own_labels(learner, module)],
                                               [FEW_SHARE, 1 - FEW_SHARE]))  # fmt: skip
        found["self_training"] = self._accuracy(learner, module)
        found["best"] = max(found.values())
        self.show(f"{name} without a teacher {found['best']:.1%}")
        return found

    def _own_labels(self, learner: Learner, module: nn.Module) -> Lesson:
        """Pseudo-labels of the probe set where the model is sure (Lee 2013)."""
        inputs = self._of(learner, self.split.probe)
        own = predict(module, inputs).softmax(1)
        sure, best = own.max(1)
        weights = (sure >= min(SURE, float(sure.median()))).float()
        return Lesson(inputs, functional.one_hot(best, own.shape[1]).float(), weights)

    # Students

    def _students(
        self, found: dict[str, float], logits: Tensor, hidden: Any, quality: float
    ) -> dict[str, Any]:
        task, classes = self.task, len(self.samples.labels)
        topic = topic_of({"rows": self.split.probe}, self.samples.labels)
        best = logits.argmax(1).numpy()
        labels, wire_bytes = self._send(topic, best, quality)
        soft = quantise(logits.softmax(1).numpy())
        learned = learned_hypervectors(hidden, task.hypervector)
        bundles = prototypes(learned, soft)
        sizes = {
            "bytes": {
                "labels": wire_bytes,
                "labels_radio": self._send(topic, best, quality, mtu=RADIO_MTU)[1],
                "hypervectors": trits_bytes(learned),
                "prototypes": trits_bytes(bundles),
                "logits_fp32": 4 * logits.numel(),
                "labelled_data": round(self.samples.sample_bytes * len(self.split.probe)),
                "published_hypervectors": len(self.split.probe) * 2500,
            }
        }
        received = functional.one_hot(torch.from_numpy(labels), classes).float()
        truth = functional.one_hot(self.target[self.split.probe], classes).float()
        targets = {"fp32": logits.softmax(1), "packet": received, "true_labels": truth}
        targets["soft_labels"] = torch.from_numpy(soft)
        shuffled = np.random.default_rng((self.seed, 3)).permutation(len(received))
        targets["shuffled"] = received[torch.from_numpy(shuffled)]
        if not self.pair.is_long:
            published = random_hypervectors(hidden)
            bundled = prototypes(published, soft)
            targets["published_hypervectors"] = self._by_prototype(published, bundled)
        targets["hypervectors"] = self._by_prototype(learned, bundles)
        modules = {}
        for name, target in targets.items():
            modules[name] = self._student(target)
            found[name] = self._accuracy(self.student, modules[name])
            self.show(f"student by {name} {found[name]:.1%}")
        if not self.pair.is_long:
            lossy, _ = self._send(topic, best, quality, mtu=RADIO_MTU, lost=HALF)
            came = np.flatnonzero(lossy != UNKNOWN)
            found |= self._short_arms(received, learned, came)
        return sizes

    def _short_arms(self, received: Tensor, vectors: Trits, known: Any) -> dict[str, float]:
        """Arms that cost little: with hypervectors, with a part of the packet, without training."""
        similarity = torch.from_numpy(similarities(vectors, vectors))
        modules = {
            "relational": self._student(received, similarity=similarity),
            "structure": self._student(torch.zeros_like(received), similarity=similarity),
            "half_lost": self._student(received[known], rows=self.split.probe[known]),
        }
        found = {name: self._accuracy(self.student, one) for name, one in modules.items()}
        return {**found, "prototypes": self._prototype_accuracy(received)}

    def _student(
        self, target: Tensor, *, rows: Any = None, similarity: Tensor | None = None
    ) -> nn.Module:
        """A student that has learned from its few labels and the probe set."""
        few = self._labelled(self.student, self.split.few)
        inputs = self._of(self.student, self.split.probe if rows is None else rows)
        probe = Lesson(inputs, target, torch.ones(len(target)))
        lesson = join([few, probe], [FEW_SHARE, 1 - FEW_SHARE])
        settings = self.student.settings
        if similarity is not None:
            count = len(lesson.weights)
            whole = torch.full((count, count), torch.nan)
            whole[len(few.weights) :, len(few.weights) :] = similarity
            lesson = replace(lesson, similarity=whole)
            settings = replace(settings, relational=RELATIONAL)
        return self._learn(self.student, lesson, settings)

    def _by_prototype(self, vectors: Trits, bundles: Trits) -> Tensor:
        """Soft labels of the probe set from hypervectors alone."""
        return torch.from_numpy(SHARPNESS * similarities(vectors, bundles)).softmax(1)

    def _prototype_accuracy(self, received: Tensor) -> float:
        """Of a student that is not trained: the nearest prototype of its own representations."""
        module = self.student.make()
        codes = [
            random_hypervectors(represent(module, inputs).numpy(), PROTOTYPE_TRITS)
            for inputs in (
                self._of(self.student, rows) for rows in (self.split.probe, self.split.test)
            )
        ]
        nearest = similarities(codes[1], prototypes(codes[0], received.numpy()))
        return self._share_right(torch.from_numpy(nearest), self.split.test)

    def _send(
        self, topic: Topic, labels: Labels, quality: float, *, mtu: int = FRAME_MTU, lost: float = 0
    ) -> tuple[Labels, int]:
        """What a receiver has of labels, whose parts may be lost, and the bytes of all frames."""
        classes, most = len(self.samples.labels), mtu - FRAME_OVERHEAD - SIGNED_HEAD
        parts = cut_labels(topic, self.seed, round(quality * 255), labels, classes, most)
        bodies = [write_part(part) for part in parts]
        rng = np.random.default_rng((self.seed, 1))
        receiver = KnowledgeReceiver(topic, len(labels), classes)
        for body in bodies:
            if rng.random() >= lost:
                receiver.take(body)
        wire = sum(len(body) + SIGNED_HEAD + FRAME_OVERHEAD for body in bodies)
        return receiver.labels, wire

    # An attack

    def _membership(self, taught: nn.Module) -> dict[str, float]:
        """AUC of telling the teacher's samples from others by how sure it is of their labels."""
        rng = np.random.default_rng((self.seed, 2))
        count = min(len(self.split.teacher), len(self.split.probe))
        members = rng.choice(self.split.teacher, count, replace=False)
        rows = np.concatenate([members, rng.choice(self.split.probe, count, replace=False)])
        logits = predict(taught, self._of(self.teacher, rows))
        truth = self.target[rows]
        fp32 = logits.log_softmax(1).gather(1, truth[:, None])[:, 0]
        scores = {"packet": logits.argmax(1) == truth, "fp32": fp32}
        return {
            name: _auc(one[:count].float(), one[count:].float()) for name, one in scores.items()
        }

    # What all of it uses

    def _of(self, learner: Learner, rows: Any) -> tuple[Tensor, ...]:
        return tuple(one[torch.from_numpy(rows)] for one in learner.inputs)

    def _labelled(self, learner: Learner, rows: Any) -> Lesson:
        truth = functional.one_hot(self.target[rows], len(self.samples.labels)).float()
        return Lesson(self._of(learner, rows), truth, torch.ones(len(rows)))

    def _learn(
        self, learner: Learner, lesson: Lesson, settings: LearningSettings | None = None
    ) -> nn.Module:
        torch.manual_seed(self.seed)
        module = learner.make()
        generator = torch.Generator().manual_seed(self.seed)
        learn(module, lesson, settings or learner.settings, generator, augment=learner.augment)
        return module

    def _accuracy(self, learner: Learner, module: nn.Module) -> float:
        return self._share_right(
            predict(module, self._of(learner, self.split.test)), self.split.test
        )

    def _share_right(self, logits: Tensor, rows: Any) -> float:
        return float((logits.argmax(1) == self.target[rows]).float().mean())


def trits_bytes(rows: Trits) -> int:
    """The bytes of hypervectors in frames, were they cut and signed like a knowledge packet."""
    overhead = HEAD_SIZE + ROWS_HEAD + SIGNED_HEAD + FRAME_OVERHEAD
    total = start = 0
    while start < len(rows):
        left = rows[start:]

        def size(count: int, left: Trits = left) -> int:
            return overhead + len(encode_trits(left[:count].reshape(-1)).data)

        count = max(1, bisect_right(range(1, len(left) + 1), FRAME_MTU, key=size))
        total += size(count)
        start += count
    return total


def _auc(members: Tensor, others: Tensor) -> float:
    """The chance that a member scores higher than another sample; equal scores count half."""
    apart = members[:, None] - others[None]
    return float((apart > 0).float().mean() + (apart == 0).float().mean() / 2)


def main() -> None:
    """Run the command in the module's docstring; PAIR may be TASK:TEACHER:STUDENT."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    name, seed, kept, data = sys.argv[1:5]
    pair = PAIRS.get(name)
    if pair is None:
        task, teacher, student = name.split(":")
        pair = Pair(task, teacher, student, is_long=True)
    torch.set_num_threads(1)
    Path(kept).mkdir(parents=True, exist_ok=True)
    show = partial(print, f"{name}, seed {seed}:", file=sys.stderr, flush=True)
    try:
        result = Run(pair, int(seed), Path(kept), Path(data), show).all()
    except TernmeshError as error:
        raise SystemExit(f"{name}: {error}") from error
    ratios = {"efficiency": efficiency(result), "published_ratio": published_ratio(result)}
    print(json.dumps(result | ratios))


if __name__ == "__main__":
    main()
