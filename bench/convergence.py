"""What compressed boundaries cost in validation loss: same tokens, same optimiser, three seeds.

Each arm and seed is a process of its own on one thread, and its result is kept when it ends: a
benchmark that was interrupted goes on. So short a training hardly needs its depth: some arms are
trained four times as long, until a model of one layer falls behind.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np

from bench import convergence_worker  # its code is that of the parts
from bench.convergence_arms import (
    BATCH,
    EXTENTS,
    FULL,
    LONG,
    NONE,
    ONE_LAYER,
    PUBLISHED,
    QUICK,
    RATIOS,
    SHAPE,
    STAGES,
    STEPS,
    STEPS_LONG,
    TABLES,
    Arm,
    arms,
    optimizer,
)
from bench.convergence_plot import draw
from bench.jobs import Job, finish
from bench.parts import Parts, fingerprint
from bench.result import RESULTS, Figure, Result, mean_figure

SEEDS = {QUICK: 1, FULL: 3, LONG: 1}
PLOT = "convergence.png"
LIMITS = {8: "<=1", 32: "<=3"}
QUICK_ARMS = (NONE, TABLES, ONE_LAYER, "subspace_8x", "resbm_8x", "learned_8bit_8x", "topk_fed_8x")
LONG_ARMS = (
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
CODE = (
    "host.pipeline.texts",
    "host.pipeline.engine",
    "models.bottleneck",
    "models.stages",
    "models.transformer",
)
NOTES = (
    f"a small transformer: width {SHAPE.width}, {SHAPE.layers} layers in {STAGES} stages, bytes of "
    f"four books, {STEPS} steps of {BATCH * SHAPE.length} tokens, AdamW",
    "gap: per cent of validation loss above the uncompressed run's, paired by seed",
    "strict gap: above the uncompressed run that has the learned method's token tables as well",
    "one_layer: the first layer alone, uncompressed: what a boundary that lets nothing through "
    "would leave at the least",
    f"long: {STEPS_LONG} steps and one seed",
    "fed: with error feedback across micro-batches, in both directions",
    "ratios count payload bytes both ways, token ids included, against float32 activations",
)
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def measure(*, quick: bool) -> Result:
    """All arms over all seeds; `quick` takes one seed, few arms and 20 steps: it tells nothing."""
    grid = arms(EXTENTS[QUICK if quick else FULL][0].width)
    if quick:
        chosen = {name: grid[name] for name in QUICK_ARMS}
        return _result(chosen, _train(QUICK, chosen), {}, quick=True)
    rows = _train(FULL, grid)
    return _result(grid, rows, _train(LONG, {name: grid[name] for name in LONG_ARMS}), quick=False)


def _train(extent: str, grid: Mapping[str, Arm]) -> Rows:
    """The finished parts of some arms, and those that were missing."""
    shape, steps = EXTENTS[extent]
    folder = Path(gettempdir()) if extent == QUICK else RESULTS / "parts"
    name = "convergence_long" if extent == LONG else "convergence"
    parts = Parts(name, fingerprint((shape, steps, optimizer(steps)), CODE), folder)
    seeds = range(SEEDS[extent])
    jobs = [
        Job(
            _part(arm, seed),
            f"{name:22} seed {seed}",
            (convergence_worker.__name__, name, str(seed), extent),
        )
        for seed in seeds
        for name, arm in grid.items()
    ]
    finish(parts, jobs, _told)
    done = parts.all()
    return {name: [done[_part(arm, seed)] for seed in seeds] for name, arm in grid.items()}


def _result(grid: Mapping[str, Arm], rows: Rows, long: Rows, *, quick: bool) -> Result:
    figures = _best(rows, grid) | {
        f"gap_{name}": _figure(gaps(rows, name)) for name in grid if name != NONE
    }
    figures |= {f"long_{name}": figure for name, figure in _best(long, grid).items()}
    figures |= {f"long_gap_{name}": _figure(gaps(long, name)) for name in long if name != NONE}
    peers = {f"bytes_per_token_{name}": row[0]["bytes_per_token"] for name, row in rows.items()}
    for word, some in (("loss", rows), ("long_loss", long)):
        peers |= {
            f"{word}_{n}": float(np.mean([r["loss"] for r in row])) for n, row in some.items()
        }
    if long:
        _plot(RESULTS / PLOT, rows, long, grid)
    details = {"runs": rows, "long": long, "plots": [PLOT] if long else []}
    return Result("convergence", figures, peers, NOTES, details, quick)


def _plot(path: Path, rows: Rows, long: Rows, grid: Mapping[str, Arm]) -> None:
    mean = {name: float(np.mean(gaps(rows, name))) for name in rows}
    by_method: dict[str, dict[int, float]] = {}
    for name in rows:
        if grid[name].ratio > 1:
            by_method.setdefault(name.rpartition("_")[0], {})[grid[name].ratio] = mean[name]
    draw(path, by_method, {name: mean[name] for name in (TABLES, ONE_LAYER)}, long)


def gaps(rows: Rows, name: str, base: str = NONE) -> list[float]:
    """Per cent above the run `base`, for each seed."""
    pairs = zip(rows[name], rows[base], strict=True)
    return [100 * (ours["loss"] / theirs["loss"] - 1) for ours, theirs in pairs]


def _best(rows: Rows, grid: Mapping[str, Arm]) -> dict[str, Figure]:
    """At each ratio the method with the smallest mean gap, and the best published one."""
    figures = {}
    for ratio in RATIOS:
        names = [name for name in rows if grid[name].ratio == ratio]
        published = [name for name in names if name.rpartition("_")[0] in PUBLISHED]
        for word, some in (("best", names), ("published", published)):
            if some:
                chosen = min(some, key=lambda name: float(np.mean(gaps(rows, name))))
                limit = LIMITS.get(ratio) if word == "best" else None
                figures[f"{word}_gap_{ratio}x"] = _figure(gaps(rows, chosen), limit)
                figures[f"{word}_strict_gap_{ratio}x"] = _figure(gaps(rows, chosen, TABLES), limit)
    return figures


def _figure(values: Sequence[float], limit: str | None = None) -> Figure:
    return mean_figure(values, limit) if len(values) > 1 else Figure(values[0], limit)


def _part(arm: Arm, seed: int) -> str:
    return f"{arm.name}/{arm.rate_share:g}/{arm.boundary.latent}/{arm.boundary.bits}/{seed}"


def _told(value: Mapping[str, Any]) -> str:
    return f"{value['loss']:.4f}, {value['train_s']:.0f} s"
