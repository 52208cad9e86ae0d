"""Cores: a small square matrix between frozen frames of each base weight.

y = x W + s (x U) R V^T, with W = U S V^T cut to its largest singular values, R zero at the start
and s = alpha / rank. LoRA-XS (Balazy et al. 2024) with S left out, so that every entry of R moves
the weight equally far; FedSB (Singhal et al. 2025) averages such cores. The frames are frozen
weights of the graphs, and never travel.
"""

from collections.abc import Sequence

import torch
from torch import nn

from models.adapter import Adapter, LowRankLinear, freeze, replace


class CoreLinear(LowRankLinear):
    """A frozen linear layer plus U R (s V^T)."""

    def __init__(self, base: nn.Linear, frame_in: torch.Tensor, frame_out: torch.Tensor) -> None:
        super().__init__(base)
        self.core = nn.Parameter(torch.zeros(frame_in.shape[1], frame_out.shape[0]))
        self.register_buffer("frame_in", frame_in)
        self.register_buffer("frame_out", frame_out)

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """U, and R times the scaled V^T: cheaper than a third product with the activations."""
        return self.get_buffer("frame_in"), self.core @ self.get_buffer("frame_out")


def add_cores(module: nn.Module, patterns: Sequence[str], *, rank: int, alpha: float) -> Adapter:
    """Freeze `module` and give the linear layers named by `patterns` a core, in place.

    D is the sum of r^2 over the layers, where r is `rank` or the layer's smaller side. The change
    is linear in R, so the average of nodes' adapters is the average of their weights.
    """
    adapter: dict[str, torch.Tensor] = {}
    for name, layer in freeze(module, patterns, rank).items():
        left, _, right = torch.linalg.svd(layer.weight.detach().T, full_matrices=False)
        frame_in, frame_out = left[:, :rank].contiguous(), alpha / rank * right[:rank]
        cores = CoreLinear(layer, frame_in, frame_out)
        replace(module, name, cores)
        adapter[f"{name}.core"] = cores.core.detach().clone()
    return Adapter(tuple(adapter), tuple(adapter.values()), (None,) * len(adapter))
