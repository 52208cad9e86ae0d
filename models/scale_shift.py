"""Scale and shift: what each output of a linear layer is multiplied by, and what is added to it.

y = (x W + c) (1 + gain) + shift, both zero at the start (SSF, Lian et al. 2022; gain alone is IA3,
Liu et al. 2022, and shift alone BitFit, Ben Zaken et al. 2022). Two numbers an output where LoRA
has rank (in + out) a layer, and hardly any more work than inference.
"""

from collections.abc import Sequence

import torch
from torch import nn

from models.adapter import AdaptedLinear, Adapter, freeze, replace


class ScaleShiftLinear(AdaptedLinear):
    """A frozen linear layer whose outputs are scaled and shifted."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.gain = nn.Parameter(torch.zeros(base.out_features))
        self.shift = nn.Parameter(torch.zeros(base.out_features))

    @property
    def weight(self) -> torch.Tensor:
        """Base and gain together, for code that reads the weight (nn.MultiheadAttention)."""
        return self.base.weight * (1 + self.gain)[:, None]

    @property
    def bias(self) -> torch.Tensor:
        """All that is added."""
        own = self.base.bias
        return self.shift if own is None else own * (1 + self.gain) + self.shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 [..., in] to [..., out]."""
        outputs: torch.Tensor = self.base(x)
        return outputs * (1 + self.gain) + self.shift


def add_scale_shift(module: nn.Module, patterns: Sequence[str]) -> Adapter:
    """Freeze `module` and let the linear layers named by `patterns` scale and shift, in place.

    D is twice the number of their outputs. The change of the weights is linear in the numbers, so
    the average of nodes' adapters is the average of their weights.
    """
    adapter: dict[str, torch.Tensor] = {}
    for name, layer in freeze(module, patterns).items():
        scaled = ScaleShiftLinear(layer)
        replace(module, name, scaled)
        adapter[f"{name}.gain"] = scaled.gain.detach().clone()
        adapter[f"{name}.shift"] = scaled.shift.detach().clone()
    return Adapter(tuple(adapter), tuple(adapter.values()), (None,) * len(adapter))
