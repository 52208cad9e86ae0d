"""Short trainings in one process, watched: the subspace, its basis, and ranks without any."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bench.data import text_folder
from bench.subspace_nets import networks
from host.pipeline.engine import next_token_loss
from host.pipeline.texts import read_texts
from models.bottleneck.assemble import Layout, assemble
from models.bottleneck.config import BottleneckConfig, OptimizerConfig
from models.bottleneck.frame import Frame, captured, outside
from models.bottleneck.rank import stable_rank, stable_ranks
from models.bottleneck.subspace import confined
from models.bottleneck.training import StageOptimizer
from models.stages import Stage, run_stages
from models.transformer import OUTPUTS, TOKENS, transformer
from models.transformer_shape import Shape

SHAPE = Shape(width=64, layers=4, heads=4, length=64)
RANK, STAGES, BATCH = 8, 4, 8
RATE = 2e-3
WATCH_STEPS, BASIS_STEPS = 20, 50


def batches(steps: int) -> Iterator[Tensor]:
    """[BATCH, length + 1] of text for each step."""
    texts = read_texts(text_folder(), SHAPE.length)
    for step in range(steps):
        yield torch.from_numpy(texts.batch(step, 0, BATCH, SHAPE.length))


def confined_stages(form: str, basis_steps: int) -> tuple[list[Stage], Frame, BottleneckConfig]:
    """The transformer in stages, confined to a subspace of 8 of 64 dimensions."""
    layers = transformer(SHAPE, 0)
    positions = layers[0].get_buffer("positions")
    layout = Layout(SHAPE.width, SHAPE.vocabulary, OUTPUTS, TOKENS, positions)
    config = BottleneckConfig("subspace", latent=RANK, form=form, basis_steps=basis_steps)
    stages, frame = assemble(layers, layout, config, STAGES, BATCH, SHAPE.length)
    assert frame is not None
    return stages, frame, config


def drift(stages: list[Stage], frame: Frame) -> float:
    """The largest share of a confined weight's norm that lies outside of the subspace."""
    weights = [item for stage in stages for item in confined(stage)]
    return max(outside(weight, frame.basis, axis) for weight, axis, _ in weights)


@torch.no_grad()
def reconstruction(stages: list[Stage], tokens: Tensor) -> float:
    """The largest relative error that a boundary makes of what crosses it."""
    tensors: tuple[Tensor, ...] = (tokens,)
    worst = 0.0
    for stage in stages[:-1]:
        x, context = stage._enter(tensors)  # what a boundary sees is no part of the interface
        for layer in stage.layers:
            x = layer(x)
        assert stage.exit is not None
        worst = max(worst, float((stage.exit(x, context) - x).norm() / x.norm()))
        tensors = stage.exit.compress(x, context).tensors
    return worst


def train_confined(name: str, steps: int) -> dict[str, float]:
    """Training with weights in the subspace by the modified AdamW (rows), or by plain AdamW.

    The largest drift and reconstruction error on the way, and the last loss.
    """
    stages, frame, config = confined_stages("rows", 0)
    if name == "rows":
        trainers = [StageOptimizer(s, frame, config, _optimizer(steps)) for s in stages]
    else:
        weights = [weight for stage in stages for weight in stage.parameters()]
        plain = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    found = {"drift": 0.0, "error": 0.0, "loss": 0.0}
    for step, batch in enumerate(batches(steps)):
        found["loss"] = _gradients(stages, batch)
        if name == "rows":
            for trainer in trainers:
                trainer.step(step, steps)
        else:
            plain.step()
        if (step + 1) % WATCH_STEPS == WATCH_STEPS - 1:  # rounding is taken out every 100 steps
            found["drift"] = max(found["drift"], drift(stages, frame))
            found["error"] = max(found["error"], reconstruction(stages, batch[:, :-1]))
    return found


def train_turning(steps: int) -> list[dict[str, Any]]:
    """Training with a Grassmann step every 50: the gradients' spectrum, and how far U turned."""
    stages, frame, config = confined_stages("factors", BASIS_STEPS)
    trainers = [StageOptimizer(s, frame, config, _optimizer(steps)) for s in stages]
    first, rows = frame.basis.clone(), []
    for step, batch in enumerate(batches(steps)):
        turns = frame.collecting = trainers[0].is_basis_step(step)
        _gradients(stages, batch)
        for trainer in trainers:
            trainer.step(step, steps)
        if not turns:
            continue
        gram, old = frame.gram.clone(), frame.basis.clone()
        basis = trainers[0].next_basis()
        for trainer in trainers:
            trainer.turn(basis)
        frame.basis.copy_(basis)
        values = torch.linalg.eigvalsh(gram.double()).flip(0).clamp_min(0)
        rows.append(
            {
                "step": step + 1,
                "spectrum": (values / values.sum()).tolist(),
                "captured": captured(old, gram),
                "captured_after": captured(basis, gram),
                "best": float(values[:RANK].sum() / values.sum()),
                "overlap_first": _overlap(first, basis),
                "overlap_before": _overlap(old, basis),
            }
        )
    return rows


def train_free(name: str, steps: int) -> dict[int, dict[str, float]]:
    """The stable ranks by step of a network without any bottleneck, and of its stream (`x`)."""
    layers = nn.Sequential(*networks(SHAPE)[name])
    optimizer = torch.optim.AdamW(layers.parameters(), lr=RATE, betas=(0.9, 0.95))
    history = {}
    for step, batch in enumerate(batches(steps + 1)):
        if step % (steps // 10) == 0:
            history[step] = {**stable_ranks(layers, OUTPUTS), "x": _stream_rank(layers, batch)}
        optimizer.zero_grad()
        next_token_loss(layers(batch[:, :-1]), batch[:, 1:]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return history


@torch.no_grad()
def _stream_rank(layers: nn.Sequential, batch: Tensor) -> float:
    x = layers[:-1](batch[:, :-1]).flatten(0, 1)
    return stable_rank(x - x.mean(0))


def _gradients(stages: list[Stage], batch: Tensor) -> float:
    for stage in stages:
        stage.zero_grad(set_to_none=True)
    loss = next_token_loss(run_stages(stages, batch[:, :-1]), batch[:, 1:])
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _overlap(a: Tensor, b: Tensor) -> float:
    """||A^T B||_F^2 / k: 1 for the same subspace, 0 for orthogonal ones."""
    return float((a.T @ b).square().sum() / a.shape[1])


def _optimizer(steps: int) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=RATE, warmup_steps=steps // 15)
