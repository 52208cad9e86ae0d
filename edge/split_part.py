"""One part of a split model on the board: its two graphs, its numbers, and how they learn.

It is an ordinary bundle: forward.onnx takes the adapter's tensors as inputs, train_step.onnx
computes the forward pass again on its way to the gradient (`models.split` makes them).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge import adam
from edge.session import Arrays, Inference, LoadedBundle, TrainStep
from ternmesh.errors import CodecError
from ternmesh_store.arrays import read_floats, write_floats

Vector = NDArray[np.float32]
_NAMES = ("vector", "mean", "square")


class Part:
    """A part and its optimiser, from the bundle's initial numbers on."""

    def __init__(self, loaded: LoadedBundle, threads: int = 1) -> None:
        self.bundle = loaded.bundle
        self._initial = loaded.initial
        self._inference = Inference(loaded.folder, loaded.bundle, threads)
        self._step = TrainStep(loaded.folder, loaded.bundle, threads)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.vector = self._initial
        self._moments = adam.init(self._initial.size)

    @property
    def width(self) -> int:
        """Numbers of a sample that it gives."""
        return self.bundle.outputs[0].shape[-1]

    def forward(self, inputs: Arrays) -> Vector:
        """What it gives of `inputs` by name, float32 [samples, width]; the batch size is free."""
        outputs = self._inference.predict({**inputs, **self.bundle.split(self.vector)})
        result: Vector = outputs[self.bundle.outputs[0].name]
        return result

    def learn(self, batch: Arrays, learning_rate: float, clip_norm: float) -> tuple[float, Vector]:
        """One step on a batch: the loss before it, and the gradient of the inputs if it has one.

        What is learned from is made no longer than `clip_norm`. CodecError where loss or gradient
        is not finite; then nothing was learned.
        """
        loss, gradient = self._step.run(self.vector, batch)
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            raise CodecError("a loss or gradient is not finite: the training has diverged")
        own, of_inputs = np.split(gradient, [self.bundle.dimension])
        settings = adam.AdamSettings(clip_norm=clip_norm)
        with np.errstate(over="ignore"):  # what is too long for its own norm counts as nothing
            change, self._moments = adam.update(
                self._moments, own, self.vector, learning_rate, settings
            )
        self.vector = self.vector + change
        return loss, of_inputs

    def state(self) -> dict[str, bytes]:
        """What must survive."""
        moments = self._moments
        vectors = (self.vector, moments.mean, moments.square)
        found = {name: write_floats(v) for name, v in zip(_NAMES, vectors, strict=True)}
        return found | {"steps": str(moments.steps).encode()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Take what `state` gave; ValueError or KeyError for what it never gave."""
        vectors = [read_floats(state[name]) for name in _NAMES]
        if any(vector.size != self._initial.size for vector in vectors):
            raise ValueError(f"a vector is not of {self._initial.size} numbers")
        self.vector = vectors[0]
        self._moments = adam.AdamState(int(state["steps"]), vectors[1], vectors[2])
