"""Modules that are trained as they are, such as a classification head, beside any other space."""

from collections.abc import Sequence

from torch import nn

from models.adapter import AdaptedLinear, Adapter


def train_whole(module: nn.Module, names: Sequence[str]) -> Adapter:
    """All parameters of the submodules `names`, from the values that they have.

    D is the number of these parameters. Call it after a space has frozen the rest, and add the
    adapters. ValueError where a submodule has no parameters or another space already changes it.
    """
    parameters: dict[str, nn.Parameter] = {}
    for name in names:
        chosen = module.get_submodule(name)
        if any(isinstance(part, AdaptedLinear) for part in chosen.modules()):
            raise ValueError(f"{name} is changed by another space: train it there, or whole")
        found = {f"{name}.{part}": value for part, value in chosen.named_parameters()}
        if not found:
            raise ValueError(f"{name} has no parameters to train")
        parameters |= found
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    initial = tuple(parameter.detach().clone() for parameter in parameters.values())
    return Adapter(tuple(parameters), initial, (None,) * len(parameters))
