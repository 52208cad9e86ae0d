"""LoRA: low-rank adapters for the linear layers of any torch module, whole or B alone.

y = x W + s (x A) B, with W frozen, A random, B zero and s = alpha / rank (Hu et al. 2021).
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from models.adapter import Adapter, LowRankLinear, freeze, replace


class LoraLinear(LowRankLinear):
    """A frozen linear layer plus s A B."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(base)
        self.scale = scale
        self.lora_A = nn.Parameter(torch.empty(base.in_features, rank))
        self.lora_B = nn.Parameter(torch.zeros(rank, base.out_features))

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A and s B: scaling B costs less than scaling the activations."""
        return self.lora_A, self.scale * self.lora_B


def add_lora(
    module: nn.Module, patterns: Sequence[str], *, rank: int, alpha: float, seed: int = 0
) -> Adapter:
    """Freeze `module` and give the linear layers named by `patterns` a LoRA, in place.

    D is the sum of rank (in + out) over the layers. Patterns are like file names: `layers.*.q`
    matches `layers.0.q`. The same seed gives the same A.
    """
    matches = freeze(module, patterns, rank)
    generator = torch.Generator().manual_seed(seed)
    adapter: dict[str, torch.Tensor] = {}
    for name, layer in matches.items():
        lora = LoraLinear(layer, rank, alpha / rank)
        init_down(lora.lora_A, generator)
        replace(module, name, lora)
        adapter[f"{name}.lora_A"] = lora.lora_A.detach().clone()
        adapter[f"{name}.lora_B"] = lora.lora_B.detach().clone()
    return Adapter(tuple(adapter), tuple(adapter.values()), (1, 0) * len(matches))


def add_lora_b(
    module: nn.Module, patterns: Sequence[str], *, rank: int, alpha: float, seed: int = 0
) -> Adapter:
    """As `add_lora`, but A stays as drawn (FFA-LoRA, Sun et al. 2024).

    D is the sum of rank out over the layers. The change is linear in B, so the average of nodes'
    adapters is the average of their weights.
    """
    names, initial = [], []
    whole = add_lora(module, patterns, rank=rank, alpha=alpha, seed=seed)
    for name, tensor in zip(whole.names, whole.initial, strict=True):
        if name.endswith(".lora_B"):
            names.append(name)
            initial.append(tensor)
        else:
            module.get_parameter(name).requires_grad_(False)
    return Adapter(tuple(names), tuple(initial), (None,) * len(names))


def init_down(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw A [in, rank] as torch draws a linear layer's weights, in place."""
    bound = 1 / math.sqrt(tensor.shape[0])
    nn.init.uniform_(tensor, -bound, bound, generator=generator)
