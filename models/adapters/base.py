"""The base of all adapter spaces: the trained numbers, and the layers that they change."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Adapter:
    """The trained parameters of a module, in the order of the adapter vector.

    `one + other` trains both.
    """

    names: tuple[str, ...]
    initial: tuple[torch.Tensor, ...]
    rank_axes: tuple[int | None, ...]  # the axis of each tensor that may have another size, or None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(tensor.shape) for tensor in self.initial)

    @property
    def dimension(self) -> int:
        """D, the length of the adapter vector."""
        return sum(tensor.numel() for tensor in self.initial)

    def join(self, tensors: Mapping[str, torch.Tensor]) -> NDArray[np.float32]:
        """The adapter vector (float32, length D) that holds `tensors`."""
        parts = [tensors[name].detach().reshape(-1) for name in self.names]
        return torch.cat(parts).to(torch.float32).numpy()

    def split(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors by name, as views into `vector` (length D)."""
        parts = torch.split(vector, [math.prod(shape) for shape in self.shapes])
        return {
            name: part.reshape(shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def vector(self) -> NDArray[np.float32]:
        """The initial adapter vector."""
        return self.join(dict(zip(self.names, self.initial, strict=True)))

    def __add__(self, other: "Adapter") -> "Adapter":
        return Adapter(
            self.names + other.names, self.initial + other.initial, self.rank_axes + other.rank_axes
        )


def adapter_of(
    parameters: Mapping[str, nn.Parameter], rank_axes: tuple[int | None, ...] | None = None
) -> Adapter:
    """The adapter of these parameters, which begins with their present values."""
    initial = tuple(parameter.detach().clone() for parameter in parameters.values())
    return Adapter(tuple(parameters), initial, rank_axes or (None,) * len(parameters))


SHOWN_MAX = 20  # names of layers in a sentence


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a change of low rank, the product of `factors`.

    `weight` and `bias` are those of the changed layer, for code that reads them
    (nn.MultiheadAttention).
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Down [in, rank] and up [rank, out]: the layer adds x down up."""
        raise NotImplementedError

    @property
    def weight(self) -> torch.Tensor:
        down, up = self.factors()
        return self.base.weight + (down @ up).T

    @property
    def bias(self) -> torch.Tensor | None:
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: float32 [..., in] to [..., out]."""
        down, up = self.factors()
        return functional.linear(x, self.base.weight, self.base.bias) + (x @ down) @ up


def freeze(module: nn.Module, patterns: Sequence[str], rank: int = 1) -> dict[str, nn.Linear]:
    """Freeze `module` and return its linear layers whose name matches a pattern, by name.

    Patterns are like those for file names: `layers.*.q` matches `layers.0.q`. ValueError where a
    pattern matches no layer, or the rank is below 1.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank is {rank}: it must be a whole number of at least 1")
    layers = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    matches = {
        name: layer for name, layer in layers.items() if any(fnmatchcase(name, p) for p in patterns)
    }
    unused = [p for p in patterns if not any(fnmatchcase(name, p) for name in matches)]
    if unused or not matches:
        shown = ", ".join(list(layers)[:SHOWN_MAX]) or "none"
        more = f" and {len(layers) - SHOWN_MAX} more" if len(layers) > SHOWN_MAX else ""
        raise ValueError(
            f"no linear layer has a name like {', '.join(unused) or '(no pattern)'}: the module "
            f"has {shown}{more}"
        )
    module.requires_grad_(False)
    return matches


def replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Put `layer` where `module` has the submodule `name`."""
    parent, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(parent), attribute, layer)
