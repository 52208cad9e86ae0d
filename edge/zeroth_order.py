"""Training without back-propagation: a gradient estimated from pairs of forward passes.

Spall, "Multivariate stochastic approximation using a simultaneous perturbation gradient
approximation", IEEE Transactions on Automatic Control 37, 1992; for language models Malladi et al.,
"Fine-tuning language models with just forward passes" (MeZO), NeurIPS 2023. A board that cannot
afford train_step.onnx needs forward.onnx only. The estimate is one number along each direction that
was probed: it takes many more passes to learn as much.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.config import ZEROTH_ORDER, NodeConfig
from edge.errors import ModelError
from edge.session import Inference, LoadedBundle, TrainStep
from edge.sources import input_specs, target_specs
from edge.trainer import Arrays, Vector
from ternmesh.bundle import Bundle
from ternmesh.generator import derive_key
from ternmesh.hypervector.rotation import seeded_signs

SLICE = 8  # samples in one prediction: a training step's batch is fixed in its graph, this is not

Array = NDArray[Any]
Slopes = NDArray[np.float64]


class Forward(Protocol):
    """What computes the outputs; see `edge.session.Inference`."""

    def predict(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name."""

    def release(self) -> None:
        """Free memory until the next prediction."""


class ZerothOrder:
    """Loss and estimated gradient of one batch, from `2 * probes` forward passes.

    `forward` must have no adapter in use: onnxruntime would prefer it to the tensors that are fed
    here, without a word. The loss is what the metric asks for (`batch_loss`), whichever one
    train_step.onnx was traced with. ModelError where a bundle has no such loss.
    """

    def __init__(
        self, forward: Forward, bundle: Bundle, *, probes: int, epsilon: float, seed: bytes
    ) -> None:
        targets = target_specs(bundle)
        if len(bundle.outputs) != 1 or len(targets) != 1:
            raise ModelError(
                f"{bundle.name} has {len(bundle.outputs)} outputs and {len(targets)} targets: "
                'training without gradients needs one of each, so set training.mode = "gradient"'
            )
        self._forward = forward
        self._bundle = bundle
        self._probes = probes
        self._epsilon = np.float32(epsilon)
        self._seed = seed
        self._inputs = [spec.name for spec in input_specs(bundle)]
        self._output, self._target = bundle.outputs[0].name, targets[0].name

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Mean loss of the probes and the estimate (float32, D) at `adapter` (float32, D)."""
        loss, slopes = self.project(adapter, batch)
        return loss, estimate(self._seed, adapter, slopes)

    def project(self, adapter: Vector, batch: Arrays) -> tuple[float, Slopes]:
        """Mean loss of the probes, and the slope of the loss along each direction (float64, P)."""
        slopes, losses = np.empty(self._probes), np.empty((self._probes, 2))
        for probe, z in enumerate(directions(self._seed, adapter, self._probes)):
            losses[probe] = [
                self.loss(adapter + self._epsilon * z, batch),
                self.loss(adapter - self._epsilon * z, batch),
            ]
            slopes[probe] = (losses[probe, 0] - losses[probe, 1]) / (2 * float(self._epsilon))
        return float(losses.mean()), slopes

    def loss(self, adapter: Vector, batch: Arrays) -> float:
        """The mean loss of one batch at `adapter`; a few samples at a time need less memory."""
        # Fed as inputs, the tensors override their initializers: an adapter file per probe
        # would cost a quarter of a prediction's time.
        tensors = self._bundle.split(adapter)
        target, total = batch[self._target], 0.0
        for start in range(0, len(target), SLICE):
            part = slice(start, start + SLICE)
            inputs = {name: batch[name][part] for name in self._inputs}
            output = self._forward.predict({**inputs, **tensors})[self._output]
            value = batch_loss(self._bundle.metric, output, target[part])
            total += value * len(target[part])
        return total / len(target)

    def release(self) -> None:
        """Free the session's memory; the next run makes a new one."""
        self._forward.release()


def make_step(config: NodeConfig, loaded: LoadedBundle) -> TrainStep | ZerothOrder:
    """What a node trains with, as its config says; ModelError where the model does not allow it."""
    training, bundle = config.training, loaded.bundle
    if training.mode != ZEROTH_ORDER:
        return TrainStep(loaded.folder, bundle, training.threads)
    return ZerothOrder(
        Inference(loaded.folder, bundle, training.threads),
        bundle,
        probes=training.probes,
        epsilon=training.epsilon,
        seed=f"{training.seed} {config.name}".encode(),
    )


def directions(seed: bytes, adapter: Vector, count: int) -> Iterator[Vector]:
    """The seeded directions of -1 and 1 (float32, D) that are probed at `adapter`, one by one.

    They follow from the seed and the adapter's bytes: a round that is begun again probes the same
    ones, and needs no counter on disk for it.
    """
    state = hashlib.sha256(adapter.astype("<f4").tobytes()).digest()
    for probe in range(count):
        key = derive_key("zeroth order", seed, state, probe.to_bytes(4, "little"))
        yield seeded_signs(key, adapter.size)


def estimate(seed: bytes, adapter: Vector, slopes: Slopes) -> Vector:
    """The gradient at `adapter` (float32, D) that slopes along its directions make likely.

    Whoever knows seed and adapter needs only the slopes: with shared seeds they are all that
    travels (FedKSeed, DeComFL).
    """
    gradient = np.zeros_like(adapter)
    for slope, z in zip(slopes, directions(seed, adapter, slopes.size), strict=True):
        gradient += np.float32(slope / slopes.size) * z
    return gradient


def batch_loss(metric: str, output: Array, target: Array) -> float:
    """The mean over a batch of the loss that goes with a metric; ModelError where it does not fit.

    Cross-entropy of logits for "accuracy" (output [n, classes], target [n]), else the mean absolute
    error (as many outputs as targets).
    """
    output = output.astype(np.float64)
    if metric != "accuracy":
        if output.size != target.size:
            raise ModelError(f"outputs have shape {output.shape}, their targets {target.shape}")
        return float(np.abs(output.reshape(target.shape) - target).mean())
    if output.ndim != 2 or target.shape != output.shape[:1]:
        raise ModelError(
            f"a cross-entropy takes logits [n, classes] and targets [n], not {output.shape} and "
            f'{target.shape}: set training.mode = "gradient"'
        )
    classes = target.astype(np.int64)
    if classes.min() < 0 or classes.max() >= output.shape[1]:
        raise ModelError(f"a target is outside the {output.shape[1]} classes of the model")
    with np.errstate(invalid="ignore"):  # logits without end: the loss is not finite, as it should
        logits = output - output.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(logits, classes[:, None], axis=1)[:, 0]
    return float((np.log(np.exp(logits).sum(axis=1)) - chosen).mean())
