"""The optimisers of one stage as one: who trains which parameter follows from the boundary."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from models.bottleneck.config import BottleneckConfig, OptimizerConfig
from models.bottleneck.frame import Frame
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.optimizers import RowAdamW, StiefelDescent
from models.bottleneck.subspace import confined, next_basis, return_to_subspace, turn
from models.stages import Stage

MOMENTS = ("exp_avg", "momentum_buffer")
NORM_MAX = 1.0


class StageOptimizer:
    """All optimisers of a stage; `step` also keeps weights in the subspace and turns the latter."""

    def __init__(
        self, stage: Stage, frame: Frame | None, boundary: BottleneckConfig, config: OptimizerConfig
    ) -> None:
        self._stage, self._frame, self._boundary, self._config = stage, frame, boundary, config
        self.optimizers = _optimizers(stage, frame, boundary, config)
        self._rates = [[group["lr"] for group in each.param_groups] for each in self.optimizers]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._stage.zero_grad(set_to_none=True)

    def step(self, step: int, steps: int) -> None:
        """Step number `step` of `steps`, from 0; gradients are cut to a norm of 1 in the stage."""
        share = self._config.share(step, steps)
        nn.utils.clip_grad_norm_(self._stage.parameters(), NORM_MAX)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            optimizer.step()
        if self._frame is not None and self._boundary.form == "deployed":
            return_to_subspace(self._stage, self._frame.basis)

    def is_basis_step(self, step: int) -> bool:
        """Whether the subspace turns after step `step`, in which gradients are collected."""
        every = self._boundary.basis_steps
        may = self._frame is not None and self._boundary.form != "deployed" and every > 0
        return may and (step + 1) % every == 0

    def next_basis(self) -> Tensor:
        """U after a Grassmann step; `turn` gives it to the stage."""
        assert self._frame is not None
        return next_basis(self._frame, self._boundary.basis_rate)

    def turn(self, basis: Tensor) -> None:
        """Turn the weights and their momentum to `basis`, which the frame is given after that."""
        assert self._frame is not None
        moments = {
            weight: [state[name] for name in MOMENTS if name in state]
            for optimizer in self.optimizers
            for weight, state in optimizer.state.items()
        }
        turn(self._stage, self._frame.basis, basis, moments)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The optimisers' tensors by names that do not depend on order."""
        names: dict[Tensor, str] = {
            parameter: name for name, parameter in self._stage.named_parameters()
        }
        for optimizer in self.optimizers:
            for weight, state in optimizer.state.items():
                for key, value in state.items():
                    yield f"{names[weight]}:{key}", torch.as_tensor(value)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """What `tensors` gave, for a stage of the same make; KeyError for an unknown weight."""
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
    stage: Stage, frame: Frame | None, boundary: BottleneckConfig, config: OptimizerConfig
) -> list[Optimizer]:
    basis = [p for m in stage.modules() if isinstance(m, LearnedBasis) for p in m.orthonormal()]
    rows = [] if boundary.form != "rows" else [item for item in confined(stage)]
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
        made.append(Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    if rows:
        assert frame is not None
        made.append(RowAdamW(rows, frame, lr=rate, weight_decay=decay))
    if basis:
        made.append(StiefelDescent(basis, lr=config.stiefel_rate))
    return made


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and "tokens" not in name and "logits" not in name
