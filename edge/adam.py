"""Adam in numpy, in optax's shape: `init` gives the state, `update` a change and the next state.

Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; the decay of weights is
decoupled as in Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """Adam's constants; `weight_decay` 0 and `clip_norm` 0 turn these two off."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class AdamState:
    """The steps so far, and the running means of gradients and of their squares (float32, D)."""

    steps: int
    mean: Vector
    square: Vector


def init(dimension: int) -> AdamState:
    """The state before the first step."""
    zeros = np.zeros(dimension, dtype=np.float32)
    return AdamState(0, zeros, zeros)


def update(
    state: AdamState,
    gradient: Vector,
    vector: Vector,
    learning_rate: float,
    settings: AdamSettings,
) -> tuple[Vector, AdamState]:
    """What to add to `vector` for `gradient` (all float32, D), and the next state."""
    gradient = clip(gradient, settings.clip_norm)
    one, beta1, beta2 = np.float32(1), np.float32(settings.beta1), np.float32(settings.beta2)
    steps = state.steps + 1
    mean = beta1 * state.mean + (one - beta1) * gradient
    square = beta2 * state.square + (one - beta2) * gradient * gradient
    rate = np.float32(learning_rate / (1 - settings.beta1**steps))
    shrink = np.float32(1 / math.sqrt(1 - settings.beta2**steps))
    root: Vector = np.sqrt(square) * shrink + np.float32(settings.epsilon)
    change = -rate * mean / root
    if settings.weight_decay:
        change -= np.float32(learning_rate * settings.weight_decay) * vector
    return change, AdamState(steps, mean, square)


def clip(gradient: Vector, norm_max: float) -> Vector:
    """`gradient`, scaled down to length `norm_max` where it is longer; 0 means no limit."""
    norm = float(np.linalg.norm(gradient)) if norm_max else 0.0
    return gradient * np.float32(norm_max / norm) if norm > norm_max else gradient
