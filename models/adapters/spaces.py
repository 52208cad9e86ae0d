"""The adapter spaces that a configuration can choose by name.

Each has a module of its own. Here are the choice (`add_space`), and whole modules that are trained
beside any space.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from models.adapters.base import Adapter, LowRankLinear, adapter_of
from models.adapters.lora import add_lora
from models.adapters.one_vector import add_one_vector
from ternmesh.config import choices, limits


def train_whole(module: nn.Module, names: Sequence[str]) -> Adapter:
    """Train all parameters of the submodules `names`, such as a classification head.

    D is the number of these parameters. Call it after a space has frozen the module, and add the
    two adapters. ValueError where a submodule has no parameters or another space changes it.
    """
    parameters: dict[str, nn.Parameter] = {}
    for name in names:
        chosen = module.get_submodule(name)
        if any(isinstance(part, LowRankLinear) for part in chosen.modules()):
            raise ValueError(f"{name} is changed by another space: remove it there or here")
        found = {f"{name}.{part}": value for part, value in chosen.named_parameters()}
        if not found:
            raise ValueError(f"{name} has no parameters to train")
        parameters |= found
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    return adapter_of(parameters)


SPACES = ("lora", "one_vector")
RANK_MAX = 1024
LENGTH_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class SpaceConfig:
    """Which numbers of a module are trained.

    The change of a layer is scaled by alpha / rank. The seed draws A and the map of `one_vector`.
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
        case "one_vector":
            adapter = add_one_vector(
                module, layers, rank=rank, alpha=alpha, length=config.length, seed=seed
            )
        case other:
            raise ValueError(f"space is {other!r}: it must be one of {', '.join(SPACES)}")
    return adapter + train_whole(module, config.whole) if config.whole else adapter
