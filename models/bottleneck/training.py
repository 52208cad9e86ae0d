"""The optimisers of one stage, as one. The boundary decides which of them trains a parameter."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from models.bottleneck.config import BottleneckConfig, OptimizerConfig
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.shared_subspace import SharedSubspace, grassmann_step, project
from models.bottleneck.subspace import Confined, change_basis, confined
from models.stages import Stage

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

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
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

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.9) -> None:
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


MOMENTS = ("exp_avg", "momentum_buffer")
NORM_MAX = 1.0


class StageOptimizer:
    """All optimisers of a stage. They also keep its weights in the subspace and move its basis."""

    def __init__(
        self,
        stage: Stage,
        subspace: SharedSubspace | None,
        boundary: BottleneckConfig,
        config: OptimizerConfig,
    ) -> None:
        self._stage = stage
        self._subspace = subspace
        self._boundary = boundary
        self._config = config
        self.optimizers = _optimizers(stage, subspace, boundary, config)
        self._rates = [[group["lr"] for group in each.param_groups] for each in self.optimizers]

    def zero_grad(self) -> None:
        self._stage.zero_grad(set_to_none=True)

    def square(self) -> float:
        """The sum of the squares of the stage's gradients, which waits for the GPU."""
        gradients = [p.grad for p in self._stage.parameters() if p.grad is not None]
        return float(nn.utils.get_total_norm(gradients)) ** 2

    def step(self, step: int, steps: int, norm: float | None = None) -> None:
        """Do step `step` of `steps`, counted from 0.

        `norm` is that of the whole model's gradients (None: this stage's); it is clipped to 1.
        """
        factor = self._config.share(step, steps)
        norm = self.square() ** 0.5 if norm is None else norm
        gradients = [p.grad for p in self._stage.parameters() if p.grad is not None]
        if norm > NORM_MAX:
            torch._foreach_mul_(gradients, NORM_MAX / norm)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()

    def is_basis_step(self, step: int) -> bool:
        """Whether the basis moves after step `step`, which must then collect gradients."""
        every = self._boundary.basis_steps
        return self._subspace is not None and every > 0 and (step + 1) % every == 0

    def next_basis(self) -> Tensor:
        """U after a Grassmann step for the gradients in `gram`, which is set to zero."""
        assert self._subspace is not None
        gram = self._subspace.gram
        basis = grassmann_step(self._subspace.basis, gram, self._boundary.basis_rate)
        gram.zero_()
        return basis

    def change_basis(self, basis: Tensor) -> None:
        """Move weights and momentum to `basis`; the caller then sets the basis of the subspace."""
        assert self._subspace is not None
        moments = {
            weight: [state[name] for name in MOMENTS if name in state]
            for optimizer in self.optimizers
            for weight, state in optimizer.state.items()
        }
        change_basis(self._stage, self._subspace.basis, basis, moments)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The optimisers' tensors, named "parameter:state", for a checkpoint."""
        names: dict[Tensor, str] = {weight: name for name, weight in self._stage.named_parameters()}
        for optimizer in self.optimizers:
            for weight, state in optimizer.state.items():
                for key, value in state.items():
                    yield f"{names[weight]}:{key}", torch.as_tensor(value)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned for an equal stage; KeyError for an unknown parameter."""
        states: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            weight, _, key = name.rpartition(":")
            states.setdefault(weight, {})[key] = value
        weights = dict(self._stage.named_parameters())
        owner = {
            parameter: optimizer
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for name, state in states.items():
            device = weights[name].device
            owner[weights[name]].state[weights[name]] = {
                key: value.clone() if key == "step" else value.to(device, copy=True)
                for key, value in state.items()
            }


def _optimizers(
    stage: Stage,
    subspace: SharedSubspace | None,
    boundary: BottleneckConfig,
    config: OptimizerConfig,
) -> list[Optimizer]:
    basis = [p for m in stage.modules() if isinstance(m, LearnedBasis) for p in m.orthonormal()]
    rows = list(confined(stage)) if boundary.form == "rows" else []
    taken = {id(p) for p in [*basis, *(item.weight for item in rows)]}
    free = [(n, p) for n, p in stage.named_parameters() if id(p) not in taken]
    matrices = [p for n, p in free if config.name == "muon" and _is_matrix(n, p)]
    taken |= {id(p) for p in matrices}
    rest = [p for _, p in free if id(p) not in taken]
    rate, decay = config.learning_rate, config.weight_decay
    made: list[Optimizer] = []
    if rest:
        made.append(AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=decay))
    if matrices:
        made.append(Muon(matrices, lr=rate, weight_decay=decay))
    if rows:
        assert subspace is not None
        made.append(RowAdamW(rows, subspace, lr=rate, weight_decay=decay))
    if basis:
        made.append(StiefelDescent(basis, lr=config.stiefel_rate))
    return made


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and "tokens" not in name and "logits" not in name
