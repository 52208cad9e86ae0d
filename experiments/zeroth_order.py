"""Training without backpropagation: the gradient is estimated from pairs of forward passes.

A board needs only forward.onnx for it, and half the memory. The estimate has one number for each
probed direction, so it takes many more passes to learn as much: see docs/DESIGN.md, 2026-11-21.

Spall, "Multivariate stochastic approximation using a simultaneous perturbation gradient
approximation", IEEE Transactions on Automatic Control 37, 1992; for language models Malladi et al.,
"Fine-tuning language models with just forward passes" (MeZO), NeurIPS 2023.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edge.data.sources import input_specs, target_specs
from edge.errors import ModelError
from edge.evaluation import sample_losses
from edge.onnx.session import Inference
from edge.trainer import Arrays, Vector
from ternmesh.generator import derive_key, seeded_signs
from ternmesh.model_package import ModelPackage

SLICE = 8  # samples in one prediction: fewer samples need less memory

Slopes = NDArray[np.float64]


class ZerothOrder:
    """Loss and estimated gradient of one batch, from `2 * probes` forward passes.

    `forward` must have no active adapter: onnxruntime would silently use it instead of the tensors
    that are inputs here. The loss belongs to the metric (`sample_losses`); train_step.onnx may have
    another one. ModelError for a model package without such a loss.
    """

    def __init__(
        self, forward: Inference, package: ModelPackage, *, probes: int, epsilon: float, seed: bytes
    ) -> None:
        targets = target_specs(package)
        if len(package.outputs) != 1 or len(targets) != 1:
            raise ModelError(
                f"{package.name} has {len(package.outputs)} outputs and {len(targets)} targets: "
                "training without gradients needs one of each"
            )
        self._forward = forward
        self._package = package
        self._probes = probes
        self._epsilon = np.float32(epsilon)
        self._seed = seed
        self._inputs = [spec.name for spec in input_specs(package)]
        self._output = package.outputs[0].name
        self._target = targets[0].name

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Mean loss of the probes and the estimate (float32, D) at `adapter` (float32, D)."""
        loss, slopes = self.project(adapter, batch)
        return loss, estimate(self._seed, adapter, slopes)

    def project(self, adapter: Vector, batch: Arrays) -> tuple[float, Slopes]:
        """Mean loss of the probes, and the slope of the loss along each direction (float64, P)."""
        slopes = np.empty(self._probes)
        losses = np.empty((self._probes, 2))
        for probe, z in enumerate(directions(self._seed, adapter, self._probes)):
            losses[probe] = [
                self.loss(adapter + self._epsilon * z, batch),
                self.loss(adapter - self._epsilon * z, batch),
            ]
            slopes[probe] = (losses[probe, 0] - losses[probe, 1]) / (2 * float(self._epsilon))
        return float(losses.mean()), slopes

    def loss(self, adapter: Vector, batch: Arrays) -> float:
        """The mean loss of one batch at `adapter` (float32, D)."""
        # As inputs, the tensors override their initializers. An adapter file for each probe would
        # cost a quarter of a prediction's time.
        tensors = self._package.split(adapter)
        target = batch[self._target]
        total = 0.0
        for start in range(0, len(target), SLICE):
            part = slice(start, start + SLICE)
            inputs = {name: batch[name][part] for name in self._inputs}
            output = self._forward.predict({**inputs, **tensors})[self._output]
            total += float(sample_losses(self._package.metric, output, target[part]).sum())
        return total / len(target)


def directions(seed: bytes, adapter: Vector, count: int) -> Iterator[Vector]:
    """The directions of -1 and 1 (float32, D) that are probed at `adapter`.

    They depend on the seed and the adapter alone: a repeated round probes the same directions, and
    no counter on disk is needed.
    """
    state = hashlib.sha256(adapter.astype("<f4").tobytes()).digest()
    for probe in range(count):
        key = derive_key("zeroth order", seed, state, probe.to_bytes(4, "little"))
        yield seeded_signs(key, adapter.size)


def estimate(seed: bytes, adapter: Vector, slopes: Slopes) -> Vector:
    """The estimated gradient at `adapter` (float32, D) from the slopes along its directions.

    A receiver that has the seed and the adapter needs only the slopes (FedKSeed, DeComFL).
    """
    gradient = np.zeros_like(adapter)
    for slope, z in zip(slopes, directions(seed, adapter, slopes.size), strict=True):
        gradient += np.float32(slope / slopes.size) * z
    return gradient
