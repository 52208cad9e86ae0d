"""Run and train the first part of a split model on a board.

It is an ordinary model package: forward.onnx takes the adapter's tensors as inputs, train_step.onnx
repeats the forward pass and computes the gradient. `models.split.export` writes it. The adapter
vector holds all trained numbers, as float32.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edge.onnx.session import Arrays, Inference, LoadedModel, TrainStep, load_model
from edge.trainer import AdamSettings, AdamState, Vector, adam_update, init_adam
from ternmesh.errors import CodecError
from ternmesh_store.store import read_floats, write_floats

FIRST = "first"  # the name of its folder
_NAMES = ("vector", "mean", "square")


def load_part(folder: Path, threads: int = 1) -> "SplitPart":
    """The part in `folder`. Raises ModelError if the package is not valid."""
    return SplitPart(load_model(folder / FIRST), threads)


class SplitPart:
    """The part and its optimiser. `vector` begins as the initial adapter vector of the package."""

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

    def learn(
        self, inputs: Arrays, of_output: Vector, learning_rate: float, clip_norm: float
    ) -> None:
        """Take one optimiser step, given the gradient of the output for `inputs`.

        An adapter gradient with a larger norm than `clip_norm` is scaled down to that norm. Raises
        CodecError if the gradient is not finite; the part is unchanged then.
        """
        name = self.package.batch_inputs[-1].name
        loss, gradient = self._step.run(self.vector, {**inputs, name: of_output})
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            raise CodecError("a loss or gradient is not finite: the training has diverged")
        settings = AdamSettings(clip_norm=clip_norm)
        with np.errstate(over="ignore"):  # a gradient whose norm overflows counts as zero
            change, self._moments = adam_update(self._moments, gradient, learning_rate, settings)
        self.vector = self.vector + change

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
