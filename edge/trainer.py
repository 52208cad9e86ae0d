"""Local training of one round with Adam, one batch at a time, so that traffic is served in between.

Adam is in numpy, with optax's interface: `init_adam` returns the state, `adam_update` the change of
the vector and the next state. Kingma and Ba, "Adam: a method for stochastic optimization", ICLR
2015.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.data.gate import failing
from edge.errors import ModelError, OutOfMemory
from ternmesh.plan import Plan

Vector = NDArray[np.float32]
Indexes = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """The constants of Adam; 0 switches `clip_norm` off."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class AdamState:
    """The steps so far, and running means of gradients and squared gradients (float32, D)."""

    steps: int
    mean: Vector
    square: Vector


def init_adam(dimension: int) -> AdamState:
    """The state before the first step."""
    zeros = np.zeros(dimension, dtype=np.float32)
    return AdamState(0, zeros, zeros)


def adam_update(
    state: AdamState, gradient: Vector, learning_rate: float, settings: AdamSettings
) -> tuple[Vector, AdamState]:
    """The change of the vector for `gradient` (both float32, D), and the next state."""
    gradient = clip_gradient(gradient, settings.clip_norm)
    one = np.float32(1)
    beta1 = np.float32(settings.beta1)
    beta2 = np.float32(settings.beta2)
    steps = state.steps + 1
    mean = beta1 * state.mean + (one - beta1) * gradient
    square = beta2 * state.square + (one - beta2) * gradient * gradient
    rate = np.float32(learning_rate / (1 - settings.beta1**steps))
    shrink = np.float32(1 / math.sqrt(1 - settings.beta2**steps))
    root: Vector = np.sqrt(square) * shrink + np.float32(settings.epsilon)
    return -rate * mean / root, AdamState(steps, mean, square)


def clip_gradient(gradient: Vector, norm_max: float) -> Vector:
    """`gradient`, scaled down to length `norm_max` if it is longer; 0 means no limit."""
    norm = float(np.linalg.norm(gradient)) if norm_max else 0.0
    return gradient * np.float32(norm_max / norm) if norm > norm_max else gradient


class Dataset(Protocol):
    """Samples to train on."""

    def __len__(self) -> int:
        """The present number of samples; it may change."""

    def batch(self, indexes: Indexes) -> Arrays:
        """The arrays of some samples by name, as train_step.onnx needs them."""

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Use these samples, by index, no longer: the model cannot compute them."""


class Step(Protocol):
    """Computes loss and gradient; see `edge.onnx.session.TrainStep`."""

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Loss and gradient (float32, D)."""


def round_rng(seed: int, name: str, round_number: int) -> np.random.Generator:
    """The generator of one node and round: a repeated round draws the same batches."""
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, word, round_number))))


@dataclass(slots=True)
class _Work:
    """The state of one round."""

    round: int
    start: Vector  # the adapter at the start
    vector: Vector  # the adapter now
    steps: int  # to do in all
    learning_rate: float
    rng: np.random.Generator
    steps_done: int = 0
    losses: float = 0.0  # sum over the steps
    samples: int = 0  # size of the data set when `order` was drawn
    order: Indexes = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # shuffled, unused

    def draw(self, count: int, samples: int) -> Indexes:
        """`count` of `samples` indexes; every sample is used once before any is used again."""
        assert samples > 0
        if samples != self.samples:  # the data set has changed: shuffle it anew
            self.order = self.order[:0]
            self.samples = samples
        while self.order.size < count:
            self.order = np.concatenate([self.order, self.rng.permutation(samples)])
        drawn = self.order[:count]
        self.order = self.order[count:]
        return drawn


class Trainer:
    """Trains one round: `begin`, then `step` until it returns False, then `delta`.

    With `keep_moments`, Adam keeps its state between rounds.
    """

    def __init__(
        self,
        step: Step,
        data: Dataset,
        batch_size: int,
        settings: AdamSettings,
        *,
        keep_moments: bool = False,
    ) -> None:
        self._step = step
        self._data = data
        self._batch_size = batch_size
        self._settings = settings
        self._keep_moments = keep_moments
        self._moments: AdamState | None = None
        self._work: _Work | None = None

    @property
    def round(self) -> int | None:
        return self._work.round if self._work else None

    @property
    def progress(self) -> tuple[int, int]:
        """Steps done, and steps of the round in all."""
        return (self._work.steps_done, self._work.steps) if self._work else (0, 0)

    @property
    def loss(self) -> float | None:
        """The mean loss of the steps so far; None without steps or if it is not finite."""
        work = self._work
        mean = work.losses / work.steps_done if work and work.steps_done else math.nan
        return mean if math.isfinite(mean) else None

    def begin(
        self,
        round_number: int,
        start: Vector,
        plan: Plan,
        rng: np.random.Generator,
        learned: int = 0,
    ) -> None:
        """Begin a round at `start` (float32, D) with the steps and the learning rate of `plan`.

        `learned`: rounds that have learned the last news, in a run without an end.
        """
        self._work = _Work(
            round=round_number,
            start=start,
            vector=start,
            steps=plan.local_steps,
            learning_rate=plan.learning_rate(round_number if plan.rounds else learned),
            rng=rng,
        )
        if self._moments is None or not self._keep_moments:
            self._moments = init_adam(start.size)

    def step(self) -> bool:
        """Train on one batch; True while the round has more steps.

        A batch with samples that the model cannot compute sets them aside, and does not count.
        """
        work = self._work
        moments = self._moments
        assert work is not None
        assert moments is not None
        if not len(self._data):
            return False
        indexes = work.draw(self._batch_size, len(self._data))
        try:
            loss, gradient = self._step.run(work.vector, self._data.batch(indexes))
        except OutOfMemory:
            raise
        except ModelError:
            if self._set_aside(indexes):
                return True
            raise
        if not math.isfinite(loss) and self._set_aside(indexes):
            return True
        change, self._moments = adam_update(moments, gradient, work.learning_rate, self._settings)
        work.vector = work.vector + change
        work.losses += loss
        work.steps_done += 1
        return work.steps_done < work.steps

    def _set_aside(self, indexes: Indexes) -> bool:
        """Set those samples aside that fail alone; whether there are any."""
        work = self._work
        assert work is not None

        def run(some: Indexes) -> str:
            # At the start: where training has diverged since, no sample is at fault.
            batch = self._data.batch(np.resize(some, self._batch_size))
            loss, gradient = self._step.run(work.start, batch)
            is_finite = math.isfinite(loss) and bool(np.isfinite(gradient).all())
            return "" if is_finite else "its loss or gradient is not finite"

        if reasons := failing(np.unique(indexes), run):
            self._data.set_aside(reasons)
        return bool(reasons)

    def delta(self) -> Vector:
        """The change of the adapter in this round so far (float32, D)."""
        assert self._work is not None
        return self._work.vector - self._work.start

    def stop(self, *, forget: bool = False) -> None:
        """End the round; `forget` also resets Adam, for another run or after divergence."""
        self._work = None
        if forget:
            self._moments = None
