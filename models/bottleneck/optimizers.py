"""Optimisers that keep weights where a boundary needs them: in the subspace, or orthonormal."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.bottleneck.frame import Frame, project
from models.bottleneck.subspace import Confined

SETTLE_STEPS = 100


class RowAdamW(Optimizer):
    """AdamW whose second moment is one number a row, so that a step never leaves S.

    A row of W (as x W) is a vector of length `width`: gradients are projected on S, and dividing a
    whole row by one number does not turn it. Rounding does: it takes 1e-6 of a weight's norm out of
    S in 1,000 steps, so weights are projected again every `SETTLE_STEPS`.
    """

    def __init__(
        self,
        weights: Iterable[Confined],
        frame: Frame,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        groups = [{"params": [weight], "axis": axis} for weight, axis, _ in weights]
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(groups, defaults)
        self._frame = frame

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step from the gradients that there are; no closure is called."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, group)

    def _step(self, weight: Tensor, group: dict[str, Any]) -> None:
        gradient = project(weight.grad, self._frame.basis, group["axis"])  # type: ignore[arg-type]
        state = self.state[weight]
        square = gradient.square().mean(group["axis"], keepdim=True)
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(weight)
            state["row_avg_sq"] = torch.zeros_like(square)
        state["step"] += 1
        first, second = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["row_avg_sq"].lerp_(square, 1 - second)
        count = float(state["step"])
        size = (state["row_avg_sq"] / (1 - second**count)).sqrt_().add_(group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(state["exp_avg"], size, value=-group["lr"] / (1 - first**count))
        if count % SETTLE_STEPS == 0:
            weight.copy_(project(weight, self._frame.basis, group["axis"]))


class StiefelDescent(Optimizer):
    """Momentum along the Stiefel manifold: tangent projection, a fixed step, polar retraction.

    A step moves A by `lr` in units of its own norm, whatever the gradient's scale.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float = 1e-3, momentum: float = 0.9
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step from the gradients that there are; no closure is called."""
        assert closure is None
        for group in self.param_groups:
            for basis in group["params"]:
                if basis.grad is None:
                    continue
                state = self.state[basis]
                velocity = state.setdefault("momentum_buffer", torch.zeros_like(basis))
                velocity.mul_(group["momentum"]).add_(_tangent(basis, basis.grad))
                velocity.copy_(_tangent(basis, velocity))
                scale = basis.norm() / velocity.norm().clamp_min(1e-30)
                basis.copy_(polar(basis - group["lr"] * scale * velocity))


def _tangent(basis: Tensor, gradient: Tensor) -> Tensor:
    inner = basis.T @ gradient
    return gradient - basis @ (inner + inner.T) / 2


def polar(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal columns: A (A^T A)^(-1/2), computed in float64."""
    wide = matrix.double()
    values, vectors = torch.linalg.eigh(wide.T @ wide)
    root: Tensor = vectors / values.clamp_min(1e-30).sqrt() @ vectors.T
    return (wide @ root).to(matrix.dtype)
