"""One arm of the convergence benchmark: `python -m bench.convergence_worker ARM SEED EXTENT`.

All stages in one process: the same payloads as between ranks, without the links. It prints one JSON
line.
"""

import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.convergence_arms import (
    BATCH,
    EXTENTS,
    STAGES,
    Arm,
    arms,
    optimizer,
)
from bench.convergence_feedback import feed_back
from bench.data import text_folder
from host.pipeline.engine import next_token_loss
from host.pipeline.texts import Texts, read_texts
from models.bottleneck.assemble import Layout, assemble
from models.bottleneck.frame import Frame
from models.bottleneck.payload import Bottleneck
from models.bottleneck.training import StageOptimizer
from models.stages import Stage, run_stages
from models.transformer import OUTPUTS, TOKENS, transformer
from models.transformer_shape import Shape

JUDGED_PARTS, CURVE = 16, 10


def run(arm: Arm, seed: int, shape: Shape, steps: int) -> dict[str, Any]:
    """Train to the end: validation loss there and along the way, and payload bytes of a token."""
    began = time.monotonic()
    shape = replace(shape, layers=arm.layers or shape.layers)
    layers = transformer(shape, seed)
    positions = layers[0].get_buffer("positions")
    layout = Layout(shape.width, shape.vocabulary, OUTPUTS, TOKENS, positions)
    stages, frame = assemble(
        layers, layout, arm.boundary, min(STAGES, shape.layers), BATCH, shape.length
    )
    for stage in stages:
        if arm.feedback and stage.exit is not None:
            feed_back(stage.exit)
    settings = optimizer(steps, arm.rate_share)
    trainers = [StageOptimizer(s, frame, arm.boundary, settings) for s in stages]
    texts = read_texts(text_folder(), shape.length)
    curve = {}
    for step in range(steps):
        batch = torch.from_numpy(texts.batch(step, seed, BATCH, shape.length))
        _learn(stages, trainers, frame, batch, step, steps)
        if (step + 1) % (steps // CURVE) == 0:
            curve[step + 1] = judge(stages, texts, shape.length)
    return {
        "loss": curve[max(curve)],
        "curve": curve,
        "bytes_per_token": _bytes(stages[0].exit, shape.length),
        "parameters": sum(p.numel() for s in stages for p in s.parameters()),
        "train_s": round(time.monotonic() - began, 1),
    }


def _learn(
    stages: list[Stage],
    trainers: list[StageOptimizer],
    frame: Frame | None,
    batch: Tensor,
    step: int,
    steps: int,
) -> None:
    turns = trainers[0].is_basis_step(step)
    if frame is not None:
        frame.collecting = turns
    for trainer in trainers:
        trainer.zero_grad()
    loss = next_token_loss(run_stages(stages, batch[:, :-1]), batch[:, 1:])
    loss.backward()  # type: ignore[no-untyped-call]
    for trainer in trainers:
        trainer.step(step, steps)
    if turns and frame is not None:
        basis = trainers[0].next_basis()
        for trainer in trainers:
            trainer.turn(basis)
        frame.basis.copy_(basis)


@torch.no_grad()
def judge(stages: list[Stage], texts: Texts, length: int) -> float:
    """The mean loss on held-out text, in nats a byte."""
    losses = []
    for part in range(JUDGED_PARTS):
        batch = torch.from_numpy(texts.judged(part, BATCH, length))
        losses.append(float(next_token_loss(run_stages(stages, batch[:, :-1]), batch[:, 1:])))
    return sum(losses) / len(losses)


def _bytes(boundary: Bottleneck | None, length: int) -> float:
    if boundary is None:
        return 0.0
    empty = boundary.empty(BATCH, length, torch.device("cpu"))
    return (empty.size + empty.wire.numel() * empty.wire.element_size()) / (BATCH * length)


def main() -> None:
    """The command in the module's docstring."""
    name, seed, extent = sys.argv[1:4]
    torch.set_num_threads(1)
    shape, steps = EXTENTS[extent]
    print(json.dumps(run(arms(shape.width)[name], int(seed), shape, steps)))


if __name__ == "__main__":
    main()
