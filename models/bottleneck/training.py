"""The optimisers of one stage, as one. The boundary decides which of them trains a parameter."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from models.bottleneck.config import BottleneckConfig, OptimizerConfig
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.optimizers import Muon, RowAdamW, StiefelDescent
from models.bottleneck.shared_subspace import SharedSubspace, grassmann_step
from models.bottleneck.subspace import change_basis, confined, return_to_subspace
from models.stages import Stage

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
        if self._subspace is not None and self._boundary.form == "deployed":
            return_to_subspace(self._stage, self._subspace.basis)

    def is_basis_step(self, step: int) -> bool:
        """Whether the basis moves after step `step`, which must then collect gradients."""
        every = self._boundary.basis_steps
        can_move = self._subspace is not None and self._boundary.form != "deployed" and every > 0
        return can_move and (step + 1) % every == 0

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
