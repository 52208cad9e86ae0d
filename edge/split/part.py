"""Run and train one part of a split model on a board.

A split model is cut into parts, and a board trains the first part and in some plans the head.
Each part is an ordinary model package: forward.onnx takes the adapter's tensors as inputs,
train_step.onnx repeats the forward pass and computes the gradient. `models.split.cut` writes these
packages. The adapter vector holds all trained numbers of a part, as float32.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.onnx.session import Arrays, Inference, LoadedModel, TrainStep, load_model
from edge.trainer import AdamSettings, AdamState, adam_update, init_adam
from ternmesh.errors import CodecError
from ternmesh.split.plan import model_hash
from ternmesh_store.store import read_floats, write_floats

Vector = NDArray[np.float32]
FIRST, HEAD = "first", "head"  # the parts on a board; also the names of their folders
_NAMES = ("vector", "mean", "square")


def load_parts(folder: Path, threads: int = 1) -> "tuple[SplitPart, SplitPart | None, bytes]":
    """Load the parts in `folder`. Raises ModelError if a package is not valid.

    Return the first part, the head (None if there is no head) and the hash of the model.
    """
    first = load_model(folder / FIRST)
    if not (folder / HEAD).is_dir():
        return SplitPart(first, threads), None, model_hash(first.package.model_hash())
    head = load_model(folder / HEAD)
    name = model_hash(first.package.model_hash(), head.package.model_hash())
    return SplitPart(first, threads), SplitPart(head, threads), name


class SplitPart:
    """A part and its optimiser. `vector` begins as the initial adapter vector of the package."""

    def __init__(self, loaded: LoadedModel, threads: int = 1) -> None:
        self.package = loaded.package
        self._initial = loaded.initial
        self._inference = Inference(loaded.folder, loaded.package, threads)
        self._step = TrainStep(loaded.folder, loaded.package, threads)
        self.reset()

    def reset(self) -> None:
        """Return to the initial adapter vector, with a new optimiser state."""
        self.vector = self._initial
        self._moments = init_adam(self._initial.size)

    @property
    def width(self) -> int:
        """The number of output values for one sample."""
        return self.package.outputs[0].shape[-1]

    def forward(self, inputs: Arrays) -> Vector:
        """Return the output for arrays by name, float32 [samples, width]; any batch size."""
        outputs = self._inference.predict({**inputs, **self.package.split(self.vector)})
        return outputs[self.package.outputs[0].name]

    def learn(self, batch: Arrays, learning_rate: float, clip_norm: float) -> tuple[float, Vector]:
        """Take one optimiser step.

        Return the loss before the step and the gradient of the loss with respect to the inputs
        (empty if there is none). An adapter gradient with a larger norm than `clip_norm` is scaled
        down to that norm. Raises CodecError if loss or gradient is not finite; the part is
        unchanged then.
        """
        loss, gradient = self._step.run(self.vector, batch)
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            raise CodecError("a loss or gradient is not finite: the training has diverged")
        own_gradient, input_gradient = np.split(gradient, [self.package.dimension])
        settings = AdamSettings(clip_norm=clip_norm)
        with np.errstate(over="ignore"):  # a gradient whose norm overflows counts as zero
            change, self._moments = adam_update(
                self._moments, own_gradient, learning_rate, settings
            )
        self.vector = self.vector + change
        return loss, input_gradient

    def state(self) -> dict[str, bytes]:
        """Return the adapter vector and the optimiser state, by name, for a checkpoint."""
        moments = self._moments
        vectors = (self.vector, moments.mean, moments.square)
        contents = {name: write_floats(v) for name, v in zip(_NAMES, vectors, strict=True)}
        return contents | {"steps": str(moments.steps).encode()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        vectors = [read_floats(state[name]) for name in _NAMES]
        self.vector = vectors[0]
        self._moments = AdamState(int(state["steps"]), vectors[1], vectors[2])
