"""The host's part of a split model: forward, loss, backward, and the steps of its optimiser."""

import importlib
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional

from host.split.config import SplitHostConfig
from models.split.cut import HOST, Cut, Make, load_rest
from ternmesh.config import ConfigError
from ternmesh.errors import CodecError, TernmeshError
from ternmesh.wire.activation import Values


def make_cut(config: SplitHostConfig, *, is_new: bool) -> Cut:
    """The parts that a configuration names; ConfigError where there are none."""
    module_name, _, name = config.builder.partition(":")
    try:
        make: Make = getattr(importlib.import_module(module_name), name)
        return make(config.boundary.method, config.boundary.latent, is_new=is_new)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"builder {config.builder!r} makes no parts ({error}): write package.module:function"
        ) from error


def export(config: SplitHostConfig) -> None:
    """Write the parts with their initial numbers to the folder that the configuration names."""
    from models.split.export import export_cut  # the host itself needs no onnx

    export_cut(make_cut(config, is_new=True), config.run.batch, Path(config.model))


def load_stage(config: SplitHostConfig) -> "tuple[TorchStage, int]":
    """The host's part with the weights of the export, and the number of classes; ExportError."""
    cut = make_cut(config, is_new=False)
    load_rest(cut.rest, Path(config.model) / HOST)
    return TorchStage(cut.rest, config.run.clip_norm_e6 / 1e6), cut.classes


class TorchStage:
    """The host's part and its optimiser. Gradients are gathered until `step`.

    The gradient of a micro-batch is shortened to `clip_norm`: its square stays in Adam's moments
    for many steps.
    """

    def __init__(self, rest: nn.Module, clip_norm: float) -> None:
        self._clip_norm = clip_norm
        self._rest = rest.eval()
        self._names = [n for n, p in rest.named_parameters() if p.requires_grad]
        self._parameters = [p for p in rest.parameters() if p.requires_grad]
        self._optimizer = torch.optim.Adam(self._parameters)
        self.gathered = 0  # micro-batches since the last step
        self.steps = 0

    @torch.no_grad()
    def predict(self, values: Values) -> Values:
        """Logits, float32 [samples, classes]."""
        result: Values = self._rest(torch.from_numpy(values)).numpy()
        return result

    def learn(self, values: Values, labels: bytes) -> tuple[Values, float, int]:
        """The gradient of `values`, the mean loss, and how many samples were right.

        `labels` has a byte for each sample. CodecError if a number is not finite; then nothing was
        gathered.
        """
        x = torch.from_numpy(values).requires_grad_()
        target = torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()
        logits = self._rest(x)
        loss = functional.cross_entropy(logits, target)
        gradient = self._gather(loss, x)
        return gradient, float(loss.detach()), int((logits.argmax(1) == target).sum())

    def step(self, rate: float) -> None:
        """Take one step along the mean of the gradients that were gathered."""
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter.grad /= self.gathered
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.gathered = 0
        self.steps += 1

    def _gather(self, loss: Tensor, x: Tensor) -> Values:
        of_x, *own = torch.autograd.grad(loss, [x, *self._parameters])
        if not all(bool(torch.isfinite(found).all()) for found in (loss, of_x, *own)):
            raise CodecError("a loss or gradient is not finite: the training has diverged")
        norm = math.hypot(*(float(gradient.double().norm()) for gradient in own))
        factor = min(1.0, self._clip_norm / norm) if norm else 1.0
        for parameter, gradient in zip(self._parameters, own, strict=True):
            part = gradient * factor
            parameter.grad = part if parameter.grad is None else parameter.grad + part
        self.gathered += 1
        return of_x.numpy()

    # Checkpoints

    def state(self) -> bytes:
        """What was learned, as safetensors, without gradients that wait for a step."""
        return save({name: tensor.contiguous() for name, tensor in self._tensors()})

    def restore(self, state: bytes) -> None:
        """Go on from what `state` gave; TernmeshError if it is of another model."""
        try:
            tensors = load(state)
            if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
                raise ValueError("a number is not finite")
            for name, parameter in zip(self._names, self._parameters, strict=True):
                with torch.no_grad():
                    parameter.copy_(tensors[name])
                moments = {
                    key: tensors[f"{name}:{key}"].reshape(like.shape)
                    for key, like in _moments(parameter).items()
                    if f"{name}:{key}" in tensors
                }
                if moments:
                    self._optimizer.state[parameter] = moments
            self.steps = int(tensors["steps"])
        except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
            raise TernmeshError(
                f"the checkpoint does not fit this model ({error}): bring back the parts that it "
                "is of, or export with other settings, which begins another run and keeps the keys"
            ) from error

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "steps", torch.tensor(self.steps)
        for name, parameter in zip(self._names, self._parameters, strict=True):
            yield name, parameter.detach()
            for key, value in self._optimizer.state.get(parameter, {}).items():
                yield f"{name}:{key}", value


def _moments(parameter: Tensor) -> dict[str, Tensor]:
    """Tensors with the names and shapes of what Adam keeps of a parameter."""
    return {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
