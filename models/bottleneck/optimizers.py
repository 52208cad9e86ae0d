"""Optimisers with a constraint (rows stay in S, a basis stays orthonormal), and a batched Muon."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.bottleneck.shared_subspace import SharedSubspace, project
from models.bottleneck.subspace import Confined

SETTLE_STEPS = 100
BETAS, TINY = (0.9, 0.95), 1e-8  # of AdamW
MUON = (3.4445, -4.7750, 2.0315)  # coefficients of Muon's polynomial


class RowAdamW(Optimizer):
    """AdamW with one second moment for each row, so that a step never leaves S.

    A row of W (as in x W) has length `width`. Gradients are projected on S, and dividing a whole
    row by one number keeps it in S. Rounding does not: it moves 1e-6 of a weight's norm out of S in
    1,000 steps, so weights are projected again every `SETTLE_STEPS` steps.
    """

    def __init__(
        self,
        weights: Iterable[Confined],
        subspace: SharedSubspace,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
    ) -> None:
        groups = [{"params": [weight], "axis": axis} for weight, axis, _ in weights]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        self._subspace = subspace

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, group)

    def _step(self, weight: Tensor, group: dict[str, Any]) -> None:
        gradient = project(weight.grad, self._subspace.basis, group["axis"])  # type: ignore[arg-type]
        state = self.state[weight]
        square = gradient.square().mean(group["axis"], keepdim=True)
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(weight)
            state["row_avg_sq"] = torch.zeros_like(square)
        state["step"] += 1
        first, second = BETAS
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["row_avg_sq"].lerp_(square, 1 - second)
        count = float(state["step"])
        size = (state["row_avg_sq"] / (1 - second**count)).sqrt_().add_(TINY)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(state["exp_avg"], size, value=-group["lr"] / (1 - first**count))
        if count % SETTLE_STEPS == 0:
            weight.copy_(project(weight, self._subspace.basis, group["axis"]))


class Muon(Optimizer):
    """torch.optim.Muon with AdamW's step size, for all matrices of a shape at once.

    Momentum of matrices is orthogonalised by five steps of Newton and Schulz (Jordan et al., 2024):
    in bfloat16 on a GPU, else in float32.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float = 1e-3, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                self._step(weights, group, 0.2 * max(shape) ** 0.5 * group["lr"])

    def _step(self, weights: list[Tensor], group: dict[str, Any], rate: float) -> None:
        momenta = [
            self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
            for weight in weights
        ]
        gradients: list[Tensor] = [weight.grad for weight in weights]  # type: ignore[misc]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        updates = orthogonalised(torch.stack(list(ahead)))
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(updates), alpha=-rate)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices [count, rows, columns] with all singular values near 1, in float32."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = MUON[0] * x + (MUON[1] * gram + MUON[2] * gram @ gram) @ x
    made: Tensor = (x.mT if is_tall else x).float()
    return made


class StiefelDescent(Optimizer):
    """Momentum on the Stiefel manifold: tangent projection, a fixed step, polar retraction.

    A step moves a basis by `lr` times its norm; the scale of the gradient does not matter.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float = 1e-3, momentum: float = 0.9
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
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
