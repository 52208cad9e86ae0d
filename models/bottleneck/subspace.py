"""Subspace networks: layers whose output lies in S, and a boundary of k numbers for each token.

There are two forms. "rows": weights keep their size, and the optimiser keeps their rows in S.
"factors": W = U W', and W' is trained (the reparametrised form); any optimiser will do.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.bottleneck.codes import Code
from models.bottleneck.payload import Bottleneck, BoundaryContext
from models.bottleneck.shared_subspace import SharedSubspace, project

ROWS, FACTORS = "rows", "factors"


class Confined(NamedTuple):
    """A parameter that lies in S. `axis` is the one of length `width` (k, where `is_factor`)."""

    weight: nn.Parameter
    axis: int
    is_factor: bool


class SubspaceBottleneck(Bottleneck):
    """z = (x - T_fixed[t] - PE) U and packed ids; lossless while the layers write into S."""

    sends_ids = True

    def __init__(self, subspace: SharedSubspace, code: Code) -> None:
        super().__init__(len(subspace.basis), subspace.rank, code, len(subspace.table))
        self.subspace = subspace
        # For a diagnosis: what leaves (x, and x without what is known), and the gradient of x.
        self.seen: Callable[[Tensor, Tensor], None] | None = None
        self.gradient_seen: Callable[[Tensor], None] | None = None

    def shrink(self, x: Tensor, context: BoundaryContext) -> Tensor:
        assert context.tokens is not None
        unknown = x - self.subspace.known(context.tokens)
        if self.seen is not None:
            self.seen(x, unknown)
        return unknown @ self.subspace.basis

    def grow(self, z: Tensor, context: BoundaryContext) -> Tensor:
        assert context.tokens is not None
        x = self.subspace.watch(z @ self.subspace.basis.T + self.subspace.known(context.tokens))
        if self.gradient_seen is not None and x.requires_grad:
            x.register_hook(self.gradient_seen)  # type: ignore[no-untyped-call]
        return x


class SubspaceLinear(nn.Module):
    """A linear layer without bias whose output lies in S."""

    axis = 0  # of the weight [width or k, in]

    def __init__(self, base: nn.Linear, subspace: SharedSubspace, form: str) -> None:
        super().__init__()
        self.subspace = subspace
        self.is_factor = form == FACTORS
        start = subspace.basis.T @ base.weight.detach()
        self.weight = nn.Parameter(start if self.is_factor else subspace.basis @ start)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., width]."""
        y = nn.functional.linear(x, self.weight)
        return y @ self.subspace.basis.T if self.is_factor else y


class SubspaceTokens(nn.Module):
    """T_fixed + T_S in place of a token table."""

    axis = 1  # of T_S [vocabulary, width or k]

    def __init__(self, base: nn.Embedding, subspace: SharedSubspace, form: str) -> None:
        super().__init__()
        self.subspace = subspace
        self.is_factor = form == FACTORS
        start = base.weight.detach() @ subspace.basis
        self.weight = nn.Parameter(start if self.is_factor else start @ subspace.basis.T)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] to [batch, length, width]."""
        y = nn.functional.embedding(tokens, self.weight)
        learned = y @ self.subspace.basis.T if self.is_factor else y
        return nn.functional.embedding(tokens, self.subspace.table) + learned


def confine(module: nn.Module, names: tuple[str, ...], subspace: SharedSubspace, form: str) -> None:
    """Replace the submodules whose last name is in `names` by layers that write into S, in place.

    ValueError for a submodule that is neither a linear layer without bias nor a token table.
    """
    for name, part in list(module.named_modules()):
        if name.rpartition(".")[2] not in names:
            continue
        parent = module.get_submodule(name.rpartition(".")[0])
        if isinstance(part, nn.Embedding):
            new: nn.Module = SubspaceTokens(part, subspace, form)
        elif isinstance(part, nn.Linear) and part.bias is None:
            new = SubspaceLinear(part, subspace, form)
        else:
            raise ValueError(f"{name} cannot be confined: only linear layers without bias can")
        setattr(parent, name.rpartition(".")[2], new)


def confined(module: nn.Module) -> Iterator[Confined]:
    """All parameters of `module` that lie in S."""
    for part in module.modules():
        if isinstance(part, SubspaceLinear | SubspaceTokens):
            yield Confined(part.weight, part.axis, part.is_factor)


@torch.no_grad()
def change_basis(
    module: nn.Module, old: Tensor, new: Tensor, moments: dict[Tensor, list[Tensor]]
) -> None:
    """Project weights and their first moments from span(old) on span(new), in place."""
    change = new.T @ old
    for weight, axis, is_factor in confined(module):
        for tensor in (weight, *moments.get(weight, ())):
            if not is_factor:
                tensor.copy_(project(tensor, new, axis))
            else:
                tensor.copy_(change @ tensor if axis == 0 else tensor @ change.T)
