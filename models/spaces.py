"""The adapter spaces by name, as a configuration chooses one."""

from dataclasses import dataclass, field

from torch import nn

from models.adapter import Adapter
from models.cores import add_cores
from models.lora import add_lora, add_lora_b
from models.one_vector import add_one_vector
from models.scale_shift import add_scale_shift
from models.whole import train_whole
from ternmesh.config import choices, limits

SPACES = ("lora", "lora_b", "cores", "one_vector", "scale_shift")
RANK_MAX, LENGTH_MAX = 1024, 1 << 24


@dataclass(frozen=True, slots=True)
class SpaceConfig:
    """Which numbers of a module are trained.

    `layers` are patterns of linear layers' names. The change of a layer is scaled by alpha / rank;
    `scale_shift` has neither.
    `length` is the size of the vector of `one_vector`. `whole` names submodules that are trained
    as they are, beside the space. The seed is that of A, and of the map of `one_vector`.
    """

    layers: tuple[str, ...]
    space: str = field(default="lora", metadata=choices(*SPACES))
    rank: int = field(default=8, metadata=limits(1, RANK_MAX))
    alpha: float = field(default=16.0, metadata=limits(1e-6, 1e6))
    length: int = field(default=1024, metadata=limits(1, LENGTH_MAX))
    whole: tuple[str, ...] = ()
    seed: int = field(default=0, metadata=limits(0, (1 << 63) - 1))


def add_space(module: nn.Module, config: SpaceConfig) -> Adapter:
    """Freeze `module` and put the space into it, in place; ValueError where it does not fit."""
    adapter = _add_layers(module, config)
    return adapter + train_whole(module, config.whole) if config.whole else adapter


def _add_layers(module: nn.Module, config: SpaceConfig) -> Adapter:
    layers, rank, alpha, seed = config.layers, config.rank, config.alpha, config.seed
    match config.space:
        case "lora":
            return add_lora(module, layers, rank=rank, alpha=alpha, seed=seed)
        case "lora_b":
            return add_lora_b(module, layers, rank=rank, alpha=alpha, seed=seed)
        case "cores":
            return add_cores(module, layers, rank=rank, alpha=alpha)
        case "one_vector":
            return add_one_vector(
                module, layers, rank=rank, alpha=alpha, length=config.length, seed=seed
            )
        case "scale_shift":
            return add_scale_shift(module, layers)
    raise ValueError(f"space is {config.space!r}: it must be one of {', '.join(SPACES)}")
