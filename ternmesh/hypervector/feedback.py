"""Error feedback: what a packet could not carry, or nobody counted, rides in a later round.

Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al., "Error
feedback fixes SignSGD", ICML 2019. The shape is optax's pair: `init` gives the state, `update`
corrects a delta with it; `settle` closes the round when it is known what was counted.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError

Vector = NDArray[np.float32]


def init(dimension: int) -> Vector:
    """The residual of a node that has sent nothing: D zeros."""
    return np.zeros(dimension, dtype=np.float32)


def update(residual: Vector, delta: Vector, decay: float = 1.0) -> Vector:
    """What the next packet should carry, `delta + decay * residual`; CodecError for NaN."""
    if delta.shape != residual.shape:
        raise CodecError(f"a delta of {delta.shape} does not fit a residual of {residual.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        corrected = delta + np.float32(decay) * residual
    if not np.isfinite(corrected).all():
        raise CodecError("the delta holds NaN or infinity: training has diverged, nothing is sent")
    return corrected


def settle(corrected: Vector, counted: Vector) -> Vector:
    """The new residual: what `corrected` held beyond what the reference counted of it."""
    return corrected - counted
