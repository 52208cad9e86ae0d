"""What compressed boundaries cost in validation loss: same tokens, same optimiser, three seeds.

All stages of an arm run in one process on one thread: the same payloads as between ranks, without
the links. `python -m bench.convergence ARM SEED EXTENT` runs one arm and prints one JSON line. So
short a training hardly needs its depth: some arms are trained four times as long, until a model of
one layer is worse than the whole.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.jobs import Finished, Job, finish
from bench.result import Result, mean_figure
from experiments.data import find_data
from host.pipeline.engine import next_token_loss
from host.pipeline.texts import Texts, read_texts
from models.bottleneck.assemble import StageLayout, assemble
from models.bottleneck.codes import TRITS
from models.bottleneck.config import BottleneckConfig, OptimizerConfig, Shape
from models.bottleneck.payload import Bottleneck
from models.bottleneck.shared_subspace import SharedSubspace
from models.bottleneck.training import StageOptimizer
from models.stages import Stage, run_stages
from models.transformer import OUTPUTS, TOKENS, transformer

QUICK, FULL, LONG = "quick", "full", "long"
SEEDS = {QUICK: 1, FULL: 3, LONG: 1}
SHAPE, SHAPE_QUICK = (
    Shape(width=128, layers=4, heads=4, length=64),
    Shape(width=32, layers=4, heads=2, length=16),
)
STAGES, BATCH = 4, 16
STEPS, STEPS_QUICK, STEPS_LONG = 1500, 20, 6000
EXTENTS = {QUICK: (SHAPE_QUICK, STEPS_QUICK), FULL: (SHAPE, STEPS), LONG: (SHAPE, STEPS_LONG)}
RATIOS = (8, 32, 100)
ID_BYTES, SCALE_BYTES = 1, 2
TABLE_STD = 0.02
JUDGED_PARTS = 16
NONE = "none"
# The learned basis at full width loses nothing: only its token tables remain. Its loss is the
# stricter base of comparison, since such tables help a small model by themselves.
TABLES = "tables"
# The first layer alone, in one stage. Where it does as well as all layers, a boundary that passes
# nothing costs nothing either, and gaps show optimisation rather than loss of information.
ONE_LAYER = "one_layer"
# Name: method, bits of a number, form, and the ratios at which it runs.
METHODS = {
    "subspace": ("subspace", 32, "rows", RATIOS),
    "subspace_factors": ("subspace", 32, "factors", RATIOS),
    "subspace_deployed": ("subspace", 32, "deployed", (8,)),
    "resbm": ("resbm", 32, "factors", RATIOS),
    "resbm_8bit": ("resbm", 8, "factors", RATIOS),
    "learned": ("learned", 32, "factors", (32,)),
    "learned_8bit": ("learned", 8, "factors", RATIOS),
    "learned_4bit": ("learned", 4, "factors", RATIOS),
    "learned_ternary": ("learned", 2, "factors", (32, 100)),
    "topk": ("topk", 32, "factors", (8,)),
}
ARMS_QUICK = (NONE, TABLES, ONE_LAYER, "subspace_8x", "learned_8bit_8x")
ARMS_LONG = (
    NONE,
    ONE_LAYER,
    TABLES,
    "learned_8bit_8x",
    "learned_4bit_8x",
    "learned_8bit_32x",
    "learned_4bit_32x",
    "subspace_factors_8x",
    "subspace_factors_32x",
    "subspace_factors_100x",
    "resbm_8bit_8x",
)
NOTES = (
    f"a small transformer: width {SHAPE.width}, {SHAPE.layers} layers in {STAGES} stages, bytes of "
    f"four books, {STEPS} steps of {BATCH * SHAPE.length} tokens, AdamW; Muon was not tried",
    "gap: per cent of validation loss above the uncompressed run's, paired by seed",
    "one_layer: the first layer alone, uncompressed: the result of boundaries that pass nothing",
    f"long: {STEPS_LONG} steps and one seed; resbm was trained long at 8x and 8 bits alone",
    "ratios count payload bytes both ways, token ids included, against float32 activations",
)
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Arm:
    """One kind of boundary; `ratio` is how many times fewer payload bytes it may take."""

    name: str
    boundary: BottleneckConfig
    ratio: int = 1
    layers: int | None = None


def arms(width: int) -> dict[str, Arm]:
    """All arms for a model's width, the uncompressed ones first."""
    tables = BottleneckConfig("learned", latent=width, table_std=TABLE_STD)
    made = [
        Arm(NONE, BottleneckConfig()),
        Arm(TABLES, tables),
        Arm(ONE_LAYER, BottleneckConfig(), layers=1),
    ]
    for ratio in RATIOS:
        for name, (method, bits, form, ratios) in METHODS.items():
            latent = latent_of(name, ratio, width)
            if ratio in ratios and latent >= 1:
                boundary = BottleneckConfig(
                    method, latent, bits, form, basis_steps=500, table_std=TABLE_STD
                )
                made.append(Arm(f"{name}_{ratio}x", boundary, ratio))
    return {arm.name: arm for arm in made}


def latent_of(name: str, ratio: int, width: int) -> int:
    """The most numbers whose payloads, both ways and with ids, take a `ratio`-th of float32's."""
    method, bits, _, _ = METHODS[name]
    ids = ID_BYTES if method in ("subspace", "learned") else 0
    one_way = int((2 * 4 * width / ratio - ids) / 2)
    if method == "topk":
        return one_way // 3  # a byte for the place and two for the number
    scale = SCALE_BYTES if bits <= 8 else 0
    per_byte = TRITS if bits == 2 else 8 / bits
    return min(width, int((one_way - scale) * per_byte))


def run(arm: Arm, seed: int, shape: Shape, steps: int) -> dict[str, Any]:
    """Train to the end: validation loss, and payload bytes of a token."""
    began = time.monotonic()
    shape = replace(shape, layers=arm.layers or shape.layers)
    layers = transformer(shape, seed)
    positions = layers[0].get_buffer("positions")
    layout = StageLayout(shape.width, shape.vocabulary, OUTPUTS, TOKENS, positions)
    stages, frame = assemble(
        layers, layout, arm.boundary, min(STAGES, shape.layers), BATCH, shape.length
    )
    settings = OptimizerConfig(learning_rate=2e-3, warmup_steps=steps // 15, stiefel_rate=1e-3)
    trainers = [StageOptimizer(s, frame, arm.boundary, settings) for s in stages]
    texts = read_texts(find_data("text") / "text", shape.length)
    for step in range(steps):
        batch = torch.from_numpy(texts.batch(step, seed, BATCH, shape.length))
        _learn(stages, trainers, frame, batch, step, steps)
    return {
        "loss": judge(stages, texts, shape.length),
        "bytes_per_token": _bytes(stages[0].exit, shape.length),
        "train_s": round(time.monotonic() - began, 1),
    }


def _learn(
    stages: list[Stage],
    trainers: list[StageOptimizer],
    frame: SharedSubspace | None,
    batch: Tensor,
    step: int,
    steps: int,
) -> None:
    is_basis_step = trainers[0].is_basis_step(step)
    if frame is not None:
        frame.collecting = is_basis_step
    for trainer in trainers:
        trainer.zero_grad()
    loss = next_token_loss(run_stages(stages, batch[:, :-1]), batch[:, 1:])
    loss.backward()  # type: ignore[no-untyped-call]
    for trainer in trainers:
        trainer.step(step, steps)
    if is_basis_step and frame is not None:
        basis = trainers[0].next_basis()
        for trainer in trainers:
            trainer.change_basis(basis)
        frame.basis.copy_(basis)


@torch.no_grad()
def judge(stages: list[Stage], texts: Texts, length: int) -> float:
    """The mean loss on held-out text, in nats a byte."""
    losses = []
    for part in range(JUDGED_PARTS):
        batch = torch.from_numpy(texts.validation_batch(part, BATCH, length))
        losses.append(float(next_token_loss(run_stages(stages, batch[:, :-1]), batch[:, 1:])))
    return sum(losses) / len(losses)


def _bytes(boundary: Bottleneck | None, length: int) -> float:
    if boundary is None:
        return 0.0
    empty = boundary.empty(BATCH, length, torch.device("cpu"))
    return (empty.size + empty.wire.numel() * empty.wire.element_size()) / (BATCH * length)


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All arms over all seeds; `quick` trains a few arms for 20 steps: its gaps mean nothing."""
    finished = Finished(resume)
    grid = arms(EXTENTS[QUICK if quick else FULL][0].width)
    if quick:
        chosen = {name: grid[name] for name in ARMS_QUICK}
        return _result(chosen, _train(finished, QUICK, chosen), {}, quick=True)
    rows = _train(finished, FULL, grid)
    long = _train(finished, LONG, {name: grid[name] for name in ARMS_LONG})
    return _result(grid, rows, long, quick=False)


def _train(finished: Finished, extent: str, grid: Mapping[str, Arm]) -> Rows:
    seeds = range(SEEDS[extent])
    jobs = [
        Job(f"{extent}/{name}/{seed}", ("bench.convergence", name, str(seed), extent))
        for seed in seeds
        for name in grid
    ]
    finish(finished, jobs, lambda value: f"{value['loss']:.4f}, {value['train_s']:.0f} s")
    return {name: [finished.values[f"{extent}/{name}/{s}"] for s in seeds] for name in grid}


def _result(grid: Mapping[str, Arm], rows: Rows, long: Rows, *, quick: bool) -> Result:
    figures = {f"gap_{name}": mean_figure(gaps(rows, name)) for name in grid if name != NONE}
    figures |= {f"long_gap_{name}": mean_figure(gaps(long, name)) for name in long if name != NONE}
    peers = {f"bytes_per_token_{name}": row[0]["bytes_per_token"] for name, row in rows.items()}
    for word, some in (("loss", rows), ("long_loss", long)):
        peers |= {f"{word}_{n}": float(np.mean([r["loss"] for r in w])) for n, w in some.items()}
    return Result("convergence", figures, peers, NOTES, {"runs": rows, "long": long}, quick)


def gaps(rows: Rows, name: str) -> list[float]:
    """Per cent above the uncompressed run, for each seed."""
    pairs = zip(rows[name], rows[NONE], strict=True)
    return [100 * (ours["loss"] / theirs["loss"] - 1) for ours, theirs in pairs]


def main() -> None:
    """Run the command in the module's docstring."""
    name, seed, extent = sys.argv[1:4]
    torch.set_num_threads(1)
    shape, steps = EXTENTS[extent]
    print(json.dumps(run(arms(shape.width)[name], int(seed), shape, steps)))


if __name__ == "__main__":
    main()
