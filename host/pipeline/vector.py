"""What a stage trains as one vector; weights that live in a subspace count by their coordinates."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from models.bottleneck.frame import Frame
from models.bottleneck.subspace import confined


class StageVector:
    """The trained numbers of a stage in the order of its parameters, float32 on the CPU.

    A weight W whose columns (or rows) stay in span(U) is read as U^T W (or W U): a change of these
    coordinates cannot lead out of the subspace, and they are fewer.
    """

    def __init__(self, stage: nn.Module, frame: Frame | None) -> None:
        self._stage, self._frame = stage, frame
        self._axes = {id(c.weight): c.axis for c in confined(stage) if not c.is_factor}

    @property
    def dimension(self) -> int:
        """How many numbers."""
        return sum(part.numel() for _, part in self._parts())

    @torch.no_grad()
    def read(self) -> Tensor:
        """The numbers now."""
        return torch.cat([part.detach().float().cpu().flatten() for _, part in self._parts()])

    @torch.no_grad()
    def write(self, vector: Tensor) -> None:
        """Give the stage these numbers."""
        at = 0
        for weight, part in self._parts():
            new = vector[at : at + part.numel()].view(part.shape).to(weight.device, weight.dtype)
            at += part.numel()
            axis = self._axes.get(id(weight))
            if axis is not None:
                assert self._frame is not None
                basis = self._frame.basis
                new = basis @ new if axis == 0 else new @ basis.T
            weight.copy_(new)

    @torch.no_grad()
    def turned(self, vector: Tensor, basis: Tensor) -> Tensor:
        """The numbers after the subspace has turned from the frame's basis to `basis`."""
        assert self._frame is not None
        change = (basis.T @ self._frame.basis).cpu()
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
        """Each weight and how it is read."""
        for weight in self._stage.parameters():
            axis = self._axes.get(id(weight))
            if axis is None:
                yield weight, weight.detach()
            else:
                assert self._frame is not None
                basis, whole = self._frame.basis, weight.detach()
                yield weight, basis.T @ whole if axis == 0 else whole @ basis
