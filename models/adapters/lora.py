"""LoRA: low-rank adapters for the linear layers of a torch module. A and B are trained.

y = x W + s (x A) B, with W frozen, A random, B zero and s = alpha / rank (Hu et al. 2021).
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from models.adapters.base import Adapter, LowRankLinear, adapter_of, freeze, replace


class LoraLinear(LowRankLinear):
    """A frozen linear layer plus s A B, with A [in, rank] and B [rank, out]."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(base)
        self.scale = scale
        self.lora_A = nn.Parameter(torch.empty(base.in_features, rank))
        self.lora_B = nn.Parameter(torch.zeros(rank, base.out_features))

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        # To scale B costs less than to scale the activations.
        return self.lora_A, self.scale * self.lora_B


def add_lora(
    module: nn.Module, patterns: Sequence[str], *, rank: int, alpha: float, seed: int = 0
) -> Adapter:
    """Freeze `module` and add LoRA to the linear layers that `patterns` name, in place.

    D is the sum of rank (in + out) over the layers. For patterns see `freeze`. The same seed gives
    the same A.
    """
    matches = freeze(module, patterns, rank)
    generator = torch.Generator().manual_seed(seed)
    trained: dict[str, nn.Parameter] = {}
    for name, layer in matches.items():
        lora = LoraLinear(layer, rank, alpha / rank)
        init_down(lora.lora_A, generator)
        replace(module, name, lora)
        trained[f"{name}.lora_A"] = lora.lora_A
        trained[f"{name}.lora_B"] = lora.lora_B
    return adapter_of(trained, (1, 0) * len(matches))


def init_down(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw A [in, rank] in place, with the distribution of torch's linear layers."""
    bound = 1 / math.sqrt(tensor.shape[0])
    nn.init.uniform_(tensor, -bound, bound, generator=generator)
