"""One round of local training, one batch at a time, so that traffic is served in between."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge import adam
from ternmesh.plan import Plan

Vector = NDArray[np.float32]
Indexes = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]


class Dataset(Protocol):
    """Samples that can be trained on."""

    def __len__(self) -> int:
        """How many there are now."""

    def batch(self, indexes: Indexes) -> Arrays:
        """The arrays of the given samples by name, as train_step.onnx takes them."""


class Step(Protocol):
    """What computes loss and gradient; see `edge.session.TrainStep`."""

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Loss and gradient (float32, D)."""


def round_rng(seed: int, name: str, round_number: int) -> np.random.Generator:
    """The generator of one node and round: a round that is begun again draws the same batches."""
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, word, round_number))))


@dataclass(slots=True)
class _Work:
    """One round on its way; `order` are the samples that are shuffled and not yet dealt."""

    round: int
    start: Vector
    vector: Vector
    steps: int
    learning_rate: float
    rng: np.random.Generator
    steps_done: int = 0
    losses: float = 0.0
    samples: int = 0
    order: Indexes = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def draw(self, count: int, samples: int) -> Indexes:
        """`count` of `samples` samples: all are dealt once before any is dealt again."""
        assert samples > 0
        if samples != self.samples:  # some came or went
            self.order, self.samples = self.order[:0], samples
        while self.order.size < count:
            self.order = np.concatenate([self.order, self.rng.permutation(samples)])
        drawn, self.order = self.order[:count], self.order[count:]
        return drawn


class Trainer:
    """Trains one round: `begin`, then `step` until it returns False, then `delta`.

    With `keep_moments` Adam goes on where the round before ended, else each round starts afresh.
    """

    def __init__(
        self,
        step: Step,
        data: Dataset,
        batch_size: int,
        settings: adam.AdamSettings,
        *,
        keep_moments: bool = False,
    ) -> None:
        self._step = step
        self._data = data
        self._batch_size = batch_size
        self._settings = settings
        self._keep_moments = keep_moments
        self._moments: adam.AdamState | None = None
        self._work: _Work | None = None

    @property
    def round(self) -> int | None:
        """The round that it is training, or None."""
        return self._work.round if self._work else None

    @property
    def progress(self) -> tuple[int, int]:
        """Steps done, and steps to do."""
        return (self._work.steps_done, self._work.steps) if self._work else (0, 0)

    @property
    def loss(self) -> float | None:
        """The mean loss of the steps so far, where there were any and it is finite."""
        work = self._work
        mean = work.losses / work.steps_done if work and work.steps_done else math.nan
        return mean if math.isfinite(mean) else None

    def begin(self, round_number: int, start: Vector, plan: Plan, rng: np.random.Generator) -> None:
        """Begin a round at `start` (float32, D) with the steps and the rate of `plan`."""
        self._work = _Work(
            round_number,
            start,
            start,
            plan.local_steps,
            plan.learning_rate(round_number),
            rng,
        )
        if self._moments is None or not self._keep_moments:
            self._moments = adam.init(start.size)

    def step(self) -> bool:
        """Train on one batch; True while there are more to do in this round."""
        work, moments = self._work, self._moments
        assert work is not None
        assert moments is not None
        batch = self._data.batch(work.draw(self._batch_size, len(self._data)))
        loss, gradient = self._step.run(work.vector, batch)
        change, self._moments = adam.update(
            moments, gradient, work.vector, work.learning_rate, self._settings
        )
        work.vector = work.vector + change
        work.losses += loss
        work.steps_done += 1
        return work.steps_done < work.steps

    def delta(self) -> Vector:
        """What this round has learned so far: adapter minus where it began (float32, D)."""
        assert self._work is not None
        return self._work.vector - self._work.start

    def stop(self, *, forget: bool = False) -> None:
        """End the round; `forget` starts Adam afresh, as another run or divergence asks for."""
        self._work = None
        if forget:
            self._moments = None
