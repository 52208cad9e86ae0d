"""Read and write the trained numbers of a pipeline stage as one vector.

A weight that is confined to the shared subspace appears as its coordinates in that subspace.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from models.bottleneck.shared_subspace import SharedSubspace
from models.bottleneck.subspace import confined


class StageVector:
    """The trained numbers of a stage in the order of its parameters, float32 on the CPU.

    U is the orthonormal basis of the shared subspace, [width, k]. A weight W whose columns (or
    rows) lie in span(U) is read as the coordinates U^T W (or W U). The coordinates are fewer
    numbers than W, and no change of the coordinates can move W out of the subspace.
    """

    def __init__(self, stage: nn.Module, subspace: SharedSubspace | None) -> None:
        self._stage = stage
        self._subspace = subspace
        self._axes = {id(c.weight): c.axis for c in confined(stage) if not c.is_factor}

    @property
    def dimension(self) -> int:
        """The number of trained numbers, D."""
        return sum(part.numel() for _, part in self._parts())

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return the trained numbers, float32 [D]."""
        return torch.cat([part.detach().float().cpu().flatten() for _, part in self._parts()])

    @torch.no_grad()
    def write(self, vector: Tensor) -> None:
        """Set the weights of the stage from `vector`, float32 [D]."""
        at = 0
        for weight, part in self._parts():
            new = vector[at : at + part.numel()].view(part.shape).to(weight.device, weight.dtype)
            at += part.numel()
            axis = self._axes.get(id(weight))
            if axis is not None:
                assert self._subspace is not None
                basis = self._subspace.basis
                new = basis @ new if axis == 0 else new @ basis.T
            weight.copy_(new)

    @torch.no_grad()
    def in_basis(self, vector: Tensor, basis: Tensor) -> Tensor:
        """Return `vector` [D] in the coordinates of a new `basis` instead of the present one."""
        assert self._subspace is not None
        change = (basis.T @ self._subspace.basis).cpu()
        rows, at = [], 0
        axes = {id(item.weight): item.axis for item in confined(self._stage)}
        for weight, part in self._parts():
            old = vector[at : at + part.numel()].view(part.shape)
            at += part.numel()
            axis = axes.get(id(weight))
            new = old if axis is None else change @ old if axis == 0 else old @ change.T
            rows.append(new.flatten())
        return torch.cat(rows)

    def _parts(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each weight with the numbers that stand for it in the vector."""
        for weight in self._stage.parameters():
            axis = self._axes.get(id(weight))
            if axis is None:
                yield weight, weight.detach()
            else:
                assert self._subspace is not None
                basis, whole = self._subspace.basis, weight.detach()
                yield weight, basis.T @ whole if axis == 0 else whole @ basis
