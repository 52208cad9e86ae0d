"""Knowledge between architectures (M3c'): a transformer teaches an MLP spoken digits.

    ./run python -m examples.knowledge_transfer

Classes and methods have the names of the Resonance Protocol's example. Its models and its data are
those of `./run experiments transfer --task snli`; this takes seconds, with what the tree holds.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from examples.voice.architectures import ARCHITECTURES
from experiments.hypervectors import TernaryHDCEncoder, prototypes
from experiments.transfer.distillation import LearningSettings, Lesson, learn, predict, represent
from experiments.transfer.tasks import TASKS, read_digits, split
from ternmesh.types import Trits

STEPS, LEARNING_RATE = 200, 2e-3
SHARPNESS = 12.0  # of the softmax over cosines: they are small numbers
BITS = 2  # of a trit, as published


class KnowledgeTransfer:
    """A teacher and a student with nothing in common but clips that no one has labelled."""

    def __init__(self, teacher: str, student: str, hdc_encoder: TernaryHDCEncoder) -> None:
        self.teacher = ARCHITECTURES[teacher]().eval()
        self.student = ARCHITECTURES[student]().eval()
        self.encoder = hdc_encoder

    def train_teacher(self, clips: Tensor, digits: Tensor) -> None:
        """Learn labelled clips: float32 [clips, 50, 32] and int64 [clips]."""
        self._train(self.teacher, clips, functional.one_hot(digits, 10).float())

    def encode_teacher_knowledge(self, clips: Tensor) -> tuple[Trits, Trits]:
        """The hypervector of each clip, int8 [clips, dimension], and that of each digit."""
        hypervectors = self.encoder.encode(represent(self.teacher, (clips,)).numpy())
        guesses = predict(self.teacher, (clips,)).softmax(1).numpy()
        return hypervectors, prototypes(hypervectors, guesses)

    def train_student(self, packets: tuple[Trits, Trits], clips: Tensor) -> None:
        """Learn the same clips, each as the digits to whose hypervectors its own is similar."""
        cosines = torch.from_numpy(self.encoder.similarity(*packets))
        self._train(self.student, clips, (SHARPNESS * cosines).softmax(1))

    def _train(self, module: torch.nn.Module, clips: Tensor, targets: Tensor) -> None:
        lesson = Lesson((clips,), targets, torch.ones(len(clips)))
        learn(module, lesson, LearningSettings(STEPS, LEARNING_RATE), torch.Generator())


def main() -> float:
    """Train both; prints and returns the share of the teacher's gain that the student has."""
    torch.manual_seed(0)
    samples = read_digits(Path())  # they are in the tree
    rows = split(TASKS["digits"], samples, seed=0)
    clips, digits = torch.from_numpy(samples.columns["features"]), torch.from_numpy(samples.target)

    def accuracy(module: torch.nn.Module) -> float:
        right = predict(module, (clips[rows.test],)).argmax(1) == digits[rows.test]
        return float(right.float().mean())

    transfer = KnowledgeTransfer("keyword", "keyword-mlp", TernaryHDCEncoder(10_000, sparsity=0.7))
    before = accuracy(transfer.teacher), accuracy(transfer.student)
    transfer.train_teacher(clips[rows.teacher], digits[rows.teacher])
    packets = transfer.encode_teacher_knowledge(clips[rows.probe])
    transfer.train_student(packets, clips[rows.probe])
    after = accuracy(transfer.teacher), accuracy(transfer.student)
    efficiency = (after[1] - before[1]) / (after[0] - before[0])
    size = sum(one.size for one in packets) * BITS // 8
    print(f"teacher {before[0]:.1%} to {after[0]:.1%}, student {before[1]:.1%} to {after[1]:.1%}")
    print(f"transfer efficiency {efficiency:.1%}, by {size:,} bytes")
    return efficiency


if __name__ == "__main__":
    main()
