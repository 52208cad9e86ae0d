"""LoRA: low-rank adapters for the linear layers of any torch module.

y = x W + s (x A) B, with W frozen, A random, B zero and s = alpha / rank (Hu et al. 2021).
"""

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
    """The trained numbers of a module: named parameters of it, in the order of the adapter vector.

    `rank_axes` tells for each tensor which axis may have another size at inference (None: none).
    """

    names: tuple[str, ...]
    initial: tuple[torch.Tensor, ...]
    rank_axes: tuple[int | None, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each tensor."""
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


class LoraLinear(nn.Module):
    """A frozen linear layer plus a low-rank change of it."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        self.scale = scale
        self.lora_A = nn.Parameter(torch.empty(base.in_features, rank))
        self.lora_B = nn.Parameter(torch.zeros(rank, base.out_features))

    @property
    def weight(self) -> torch.Tensor:
        """Base and adapter together, for code that reads the weight (nn.MultiheadAttention)."""
        return self.base.weight + (self.lora_A @ (self.scale * self.lora_B)).T

    @property
    def bias(self) -> torch.Tensor | None:
        """The frozen bias."""
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 [..., in] to [..., out]."""
        # Scaling B costs less than scaling the activations.
        change = (x @ self.lora_A) @ (self.scale * self.lora_B)
        return functional.linear(x, self.base.weight, self.base.bias) + change


def add_lora(
    module: nn.Module, patterns: Sequence[str], *, rank: int, alpha: float, seed: int = 0
) -> Adapter:
    """Freeze `module` and give every linear layer whose name matches a pattern a LoRA, in place.

    Patterns are like file names: `layers.*.q` matches `layers.0.q`. The same seed gives the same A.
    """
    if rank < 1:
        raise ValueError(f"rank is {rank}: it must be at least 1")
    matches = [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and any(fnmatchcase(name, p) for p in patterns)
    ]
    if not matches:
        raise ValueError(f"no linear layer has a name like {', '.join(patterns)}")
    module.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    adapter: dict[str, torch.Tensor] = {}
    for name, layer in matches:
        lora = LoraLinear(layer, rank, alpha / rank)
        bound = 1 / math.sqrt(layer.in_features)
        nn.init.uniform_(lora.lora_A, -bound, bound, generator=generator)
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, lora)
        adapter[f"{name}.lora_A"] = lora.lora_A.detach().clone()
        adapter[f"{name}.lora_B"] = lora.lora_B.detach().clone()
    return Adapter(tuple(adapter), tuple(adapter.values()), (1, 0) * len(matches))
