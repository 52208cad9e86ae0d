"""The adapter spaces that a configuration can choose by name.

LoRA and the one vector have modules of their own. Here are the small spaces (cores, scale and
shift), whole modules that are trained beside any space, and the choice (`add_space`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from models.adapters.base import AdaptedLinear, Adapter, LowRankLinear, adapter_of, freeze, replace
from models.adapters.lora import add_lora, add_lora_b
from models.adapters.one_vector import add_one_vector
from ternmesh.config import choices, limits


class CoreLinear(LowRankLinear):
    """A frozen linear layer plus U R (s V^T), with the core R [rank, rank]."""

    def __init__(self, base: nn.Linear, frame_in: torch.Tensor, frame_out: torch.Tensor) -> None:
        super().__init__(base)
        self.core = nn.Parameter(torch.zeros(frame_in.shape[1], frame_out.shape[0]))
        self.register_buffer("frame_in", frame_in)
        self.register_buffer("frame_out", frame_out)

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        # R (s V^T) in one factor is cheaper than a third product with the activations.
        return self.get_buffer("frame_in"), self.core @ self.get_buffer("frame_out")


def add_cores(module: nn.Module, patterns: Sequence[str], *, rank: int, alpha: float) -> Adapter:
    """Freeze `module` and add a core to the linear layers that `patterns` name, in place.

    y = x W + s (x U) R V^T, with U and V^T from the largest singular values of W = U S V^T, R zero
    at the start and s = alpha / rank. This is LoRA-XS (Balazy et al. 2024) without S, so that each
    entry of R changes the weight equally; FedSB (Singhal et al. 2025) averages such cores. U and V
    are frozen weights of the graphs and never travel.

    D is the sum of r^2 over the layers, where r is `rank` or the layer's smaller side. The change
    is linear in R, so the average of the nodes' adapters is the average of their weights.
    """
    trained: dict[str, nn.Parameter] = {}
    for name, layer in freeze(module, patterns, rank).items():
        left, _, right = torch.linalg.svd(layer.weight.detach().T, full_matrices=False)
        frame_in, frame_out = left[:, :rank].contiguous(), alpha / rank * right[:rank]
        changed = CoreLinear(layer, frame_in, frame_out)
        replace(module, name, changed)
        trained[f"{name}.core"] = changed.core
    return adapter_of(trained)


class ScaleShiftLinear(AdaptedLinear):
    """A frozen linear layer; its outputs are scaled by 1 + gain and shifted, both [out]."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.gain = nn.Parameter(torch.zeros(base.out_features))
        self.shift = nn.Parameter(torch.zeros(base.out_features))

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight * (1 + self.gain)[:, None]

    @property
    def bias(self) -> torch.Tensor:
        own = self.base.bias
        return self.shift if own is None else own * (1 + self.gain) + self.shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: float32 [..., in] to [..., out]."""
        outputs: torch.Tensor = self.base(x)
        return outputs * (1 + self.gain) + self.shift


def add_scale_shift(module: nn.Module, patterns: Sequence[str]) -> Adapter:
    """Freeze `module`; scale and shift the linear layers that `patterns` name, in place.

    y = (x W + c) (1 + gain) + shift, both zero at the start (SSF, Lian et al. 2022; gain alone is
    IA3, Liu et al. 2022, shift alone is BitFit, Ben Zaken et al. 2022). It costs little more than
    inference. D is twice the number of outputs. The change of the weights is linear in the numbers,
    so the average of the nodes' adapters is the average of their weights.
    """
    trained: dict[str, nn.Parameter] = {}
    for name, layer in freeze(module, patterns).items():
        scaled = ScaleShiftLinear(layer)
        replace(module, name, scaled)
        trained[f"{name}.gain"] = scaled.gain
        trained[f"{name}.shift"] = scaled.shift
    return adapter_of(trained)


def train_whole(module: nn.Module, names: Sequence[str]) -> Adapter:
    """Train all parameters of the submodules `names`, such as a classification head.

    D is the number of these parameters. Call it after a space has frozen the module, and add the
    two adapters. ValueError where a submodule has no parameters or another space changes it.
    """
    parameters: dict[str, nn.Parameter] = {}
    for name in names:
        chosen = module.get_submodule(name)
        if any(isinstance(part, AdaptedLinear) for part in chosen.modules()):
            raise ValueError(f"{name} is changed by another space: remove it there or here")
        found = {f"{name}.{part}": value for part, value in chosen.named_parameters()}
        if not found:
            raise ValueError(f"{name} has no parameters to train")
        parameters |= found
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    return adapter_of(parameters)


SPACES = ("lora", "lora_b", "cores", "one_vector", "scale_shift")
RANK_MAX = 1024
LENGTH_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class SpaceConfig:
    """Which numbers of a module are trained.

    The change of a layer is scaled by alpha / rank; `scale_shift` has neither. The seed draws A and
    the map of `one_vector`.
    """

    layers: tuple[str, ...]  # patterns of linear layers' names
    space: str = field(default="lora", metadata=choices(*SPACES))
    rank: int = field(default=8, metadata=limits(1, RANK_MAX))
    alpha: float = field(default=16.0, metadata=limits(1e-6, 1e6))
    length: int = field(default=1024, metadata=limits(1, LENGTH_MAX))  # of `one_vector`
    whole: tuple[str, ...] = ()  # submodules that are trained whole, beside the space
    seed: int = field(default=0, metadata=limits(0, (1 << 63) - 1))


def add_space(module: nn.Module, config: SpaceConfig) -> Adapter:
    """Freeze `module` and add the space to it, in place; ValueError where it does not fit."""
    layers, rank, alpha, seed = config.layers, config.rank, config.alpha, config.seed
    match config.space:
        case "lora":
            adapter = add_lora(module, layers, rank=rank, alpha=alpha, seed=seed)
        case "lora_b":
            adapter = add_lora_b(module, layers, rank=rank, alpha=alpha, seed=seed)
        case "cores":
            adapter = add_cores(module, layers, rank=rank, alpha=alpha)
        case "one_vector":
            adapter = add_one_vector(
                module, layers, rank=rank, alpha=alpha, length=config.length, seed=seed
            )
        case "scale_shift":
            adapter = add_scale_shift(module, layers)
        case other:
            raise ValueError(f"space is {other!r}: it must be one of {', '.join(SPACES)}")
    return adapter + train_whole(module, config.whole) if config.whole else adapter
