"""What a subspace loses: the guards of Protocol Models (arXiv 2506.01260), measured in training."""

import torch
from torch import Tensor

from models.bottleneck.shared_subspace import SharedSubspace, project
from models.bottleneck.subspace import SubspaceBottleneck, confined
from models.stages import Stage


class Diagnosis:
    """Watches the boundaries of a stage in every forward pass; `row` tells the newest values."""

    def __init__(self, stage: Stage, subspace: SharedSubspace) -> None:
        self._stage = stage
        self._subspace = subspace
        self._error: Tensor | None = None
        self._captured: Tensor | None = None
        if isinstance(stage.exit, SubspaceBottleneck):
            stage.exit.seen = self._leaves
        if isinstance(stage.entry, SubspaceBottleneck):
            stage.entry.gradient_seen = self._returns

    @torch.no_grad()
    def row(self) -> dict[str, object]:
        """`drift` of the confined weights and `error` of reconstruction, both relative to the norm.

        `captured` is the share of the boundary gradient's energy that lies in S.
        """
        found: dict[str, object] = {}
        weights = [(w.weight, w.axis) for w in confined(self._stage) if not w.is_factor]
        if weights:
            basis = self._subspace.basis
            drifts = [(w - project(w, basis, axis)).norm() / w.norm() for w, axis in weights]
            found["drift"] = float(torch.stack(drifts).max())
        if self._error is not None:
            found["error"] = float(self._error)
        if self._captured is not None:
            found["captured"] = float(self._captured)
        return found

    @torch.no_grad()
    def _leaves(self, x: Tensor, unknown: Tensor) -> None:
        lost = unknown - unknown @ self._subspace.basis @ self._subspace.basis.T
        self._error = lost.norm() / x.norm()

    @torch.no_grad()
    def _returns(self, gradient: Tensor) -> None:
        inside = (gradient @ self._subspace.basis).square().sum()
        self._captured = inside / gradient.square().sum()
