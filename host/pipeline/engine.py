"""One rank's stage on torch's pipeline engine.

The engine sends tensors of fixed sizes. A stage compresses its output, and the next stage expands
it, so the engine sends payloads. The gradients that come back are payloads too.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from host.pipeline.config import PipelineConfig
from models.stages import Stage

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class TimedStage(PipelineStage):
    """A stage that measures its computing time."""

    busy_s = 0.0  # seconds of computing so far

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        out = super().forward_one_chunk(*args, **kwargs)
        self.busy_s += time.perf_counter() - began
        return out

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        super().backward_one_chunk(*args, **kwargs)
        self.busy_s += time.perf_counter() - began


class Engine:
    """The training steps of one stage; `rank` is its number, from 0."""

    def __init__(
        self, stage: Stage, rank: int, config: PipelineConfig, device: torch.device
    ) -> None:
        self._config = config
        self._rank = rank
        self._device = device
        self.stage = _pipeline_stage(stage, rank, config, device)
        self._schedule = SCHEDULES[config.schedule](
            self.stage, config.micro_batches, loss_fn=next_token_loss
        )

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self._rank == self._config.stages - 1

    def train_step(self, batch: Tensor) -> float | None:
        """Compute gradients of a batch [rows, length + 1]; the mean loss on the last stage."""
        return self._run(self._schedule.step, batch)

    def evaluate(self, batch: Tensor) -> float | None:
        """The mean loss of a batch [rows, length + 1] without gradients, on the last stage."""
        return self._run(self._schedule.eval, batch)

    def _run(self, step: Callable[..., object], batch: Tensor) -> float | None:
        inputs = (batch[:, :-1].to(self._device),) if self._rank == 0 else ()
        if not self.is_last:
            step(*inputs)
            return None
        losses: list[Tensor] = []
        step(*inputs, target=batch[:, 1:].to(self._device), losses=losses)
        return float(torch.stack(losses).detach().mean())


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats: logits [batch, length, vocabulary], targets [batch, length]."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def gather_numbers(value: float, ranks: int, device: torch.device) -> list[float]:
    """The number of each stage, in order, on every stage."""
    rows = [torch.zeros(1, device=device) for _ in range(ranks)]
    dist.all_gather(rows, torch.tensor([value], device=device))
    return [float(row) for row in rows]


def _pipeline_stage(
    stage: Stage, rank: int, config: PipelineConfig, device: torch.device
) -> TimedStage:
    batch, length = stage.batch, stage.length
    shape = (batch, length, config.model.vocabulary)
    tokens = torch.zeros(batch, length, dtype=torch.long, device=device)
    inputs: tuple[Tensor, ...] = (tokens,)
    if stage.entry is not None:
        inputs = stage.entry.empty(batch, length, device).tensors
    outputs: tuple[Tensor, ...] = (torch.zeros(shape, device=device, requires_grad=True),)
    if stage.exit is not None:
        outputs = stage.exit.empty(batch, length, device).tensors
    return TimedStage(
        stage,
        rank,
        config.stages,
        device,
        input_args=inputs,
        output_args=outputs,
        input_grads=tuple(_gradient(t) for t in inputs),
        output_grads=tuple(_gradient(t) for t in outputs),
    )


def _gradient(tensor: Tensor) -> Tensor | None:
    return torch.zeros_like(tensor) if tensor.requires_grad else None
