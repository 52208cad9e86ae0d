"""Subspace networks: layers that write into S alone, and the boundary that sends k numbers a token.

Two forms. "rows": weights keep their size, and the optimiser keeps their rows in S. "factors":
W = U W' with W' free (the reparametrised form), which needs no special optimiser.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.bottleneck.codes import Code
from models.bottleneck.frame import Frame, grassmann_step, project
from models.bottleneck.payload import Bottleneck, Context

ROWS, FACTORS = "rows", "factors"


class Confined(NamedTuple):
    """A parameter that lives in S: `axis` is that of length `width` (or k, where `is_factor`)."""

    weight: nn.Parameter
    axis: int
    is_factor: bool


class SubspaceBottleneck(Bottleneck):
    """Z = (X - PE - T_fixed[t]) U and packed ids; lossless while x has its rest in S."""

    sends_ids = True

    def __init__(self, frame: Frame, code: Code) -> None:
        super().__init__(len(frame.basis), frame.rank, code, len(frame.table))
        self.frame = frame

    def shrink(self, x: Tensor, context: Context) -> Tensor:
        """(x - known) U."""
        assert context.tokens is not None
        return (x - self.frame.known(context.tokens)) @ self.frame.basis

    def grow(self, z: Tensor, context: Context) -> Tensor:
        """z U^T + known."""
        assert context.tokens is not None
        return self.frame.watch(z @ self.frame.basis.T + self.frame.known(context.tokens))


class SubspaceLinear(nn.Module):
    """A linear layer without bias whose output lies in S."""

    def __init__(self, base: nn.Linear, frame: Frame, form: str) -> None:
        super().__init__()
        self.frame, self.is_factor = frame, form == FACTORS
        start = frame.basis.T @ base.weight.detach()
        self.weight = nn.Parameter(start if self.is_factor else frame.basis @ start)

    @property
    def confined(self) -> Confined:
        """Its weight, [width or k, in]."""
        return Confined(self.weight, 0, self.is_factor)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., width]."""
        y = nn.functional.linear(x, self.weight)
        return y @ self.frame.basis.T if self.is_factor else y


class SubspaceTokens(nn.Module):
    """T_fixed + T_S in place of a token table."""

    def __init__(self, base: nn.Embedding, frame: Frame, form: str) -> None:
        super().__init__()
        self.frame, self.is_factor = frame, form == FACTORS
        start = base.weight.detach() @ frame.basis
        self.weight = nn.Parameter(start if self.is_factor else start @ frame.basis.T)

    @property
    def confined(self) -> Confined:
        """T_S, [vocabulary, width or k]."""
        return Confined(self.weight, 1, self.is_factor)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] to [batch, length, width]."""
        y = nn.functional.embedding(tokens, self.weight)
        learned = y @ self.frame.basis.T if self.is_factor else y
        return nn.functional.embedding(tokens, self.frame.table) + learned


def confine(module: nn.Module, names: tuple[str, ...], frame: Frame, form: str) -> None:
    """Replace the submodules whose last name is in `names` by such that write into S, in place.

    ValueError where one is no linear layer without bias and no token table.
    """
    for name, part in list(module.named_modules()):
        if name.rpartition(".")[2] not in names:
            continue
        parent = module.get_submodule(name.rpartition(".")[0])
        if isinstance(part, nn.Embedding):
            new: nn.Module = SubspaceTokens(part, frame, form)
        elif isinstance(part, nn.Linear) and part.bias is None:
            new = SubspaceLinear(part, frame, form)
        else:
            raise ValueError(f"{name} cannot be confined: only linear layers without bias can")
        setattr(parent, name.rpartition(".")[2], new)


def confined(module: nn.Module) -> Iterator[Confined]:
    """All parameters of `module` that live in S."""
    for part in module.modules():
        if isinstance(part, SubspaceLinear | SubspaceTokens):
            yield part.confined


@torch.no_grad()
def return_to_subspace(module: nn.Module, basis: Tensor) -> None:
    """Project every weight that keeps its size on S (the deployed variant does so each step)."""
    for weight, axis, is_factor in confined(module):
        if not is_factor:
            weight.copy_(project(weight, basis, axis))


@torch.no_grad()
def turn(module: nn.Module, old: Tensor, new: Tensor, moments: dict[Tensor, list[Tensor]]) -> None:
    """Weights and their first moments become their projections from span(old) on span(new)."""
    change = new.T @ old
    for weight, axis, is_factor in confined(module):
        for tensor in (weight, *moments.get(weight, ())):
            if not is_factor:
                tensor.copy_(project(tensor, new, axis))
            else:
                tensor.copy_(change @ tensor if axis == 0 else tensor @ change.T)


def next_basis(frame: Frame, rate: float) -> Tensor:
    """U after a Grassmann step along what `gram` holds, which is emptied."""
    basis = grassmann_step(frame.basis, frame.gram, rate)
    frame.gram.zero_()
    return basis
