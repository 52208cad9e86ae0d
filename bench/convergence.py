"""What compressed boundaries cost in validation loss: same tokens, same optimiser, three seeds.

Each arm and seed is a process of its own on one thread, and its result is kept when it ends: a
benchmark that was interrupted goes on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np

from bench import convergence_worker  # its code is that of the parts
from bench.convergence_arms import (
    BATCH,
    NONE,
    ONE_LAYER,
    PUBLISHED,
    RATIOS,
    SHAPE,
    SHAPE_QUICK,
    STAGES,
    STEPS,
    STEPS_QUICK,
    TABLES,
    Arm,
    arms,
    optimizer,
)
from bench.jobs import Job, finish
from bench.parts import Parts, fingerprint
from bench.result import RESULTS, Figure, Result, mean_figure

SEEDS = 3
LIMITS = {8: "<=1", 32: "<=3"}
QUICK_ARMS = (NONE, TABLES, ONE_LAYER, "subspace_8x", "resbm_8x", "learned_8bit_8x", "topk_fed_8x")
CODE = (
    "host.pipeline.texts",
    "host.pipeline.engine",
    "models.bottleneck",
    "models.stages",
    "models.transformer",
)
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def measure(*, quick: bool) -> Result:
    """All arms over all seeds; `quick` takes one seed, few arms and 20 steps: it tells nothing."""
    shape, steps = (SHAPE_QUICK, STEPS_QUICK) if quick else (SHAPE, STEPS)
    grid = {name: arm for name, arm in arms(shape.width).items() if not quick or name in QUICK_ARMS}
    folder = Path(gettempdir()) if quick else RESULTS / "parts"
    settings = shape, steps, optimizer(steps)
    parts = Parts("convergence", fingerprint(settings, CODE), folder)
    seeds = range(1 if quick else SEEDS)
    extent = "quick" if quick else "full"
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
    rows = {name: [done[_part(arm, seed)] for seed in seeds] for name, arm in grid.items()}
    figures = {f"gap_{name}": _figure(gaps(rows, name)) for name in grid if name != NONE}
    notes = (
        f"a small transformer: width {shape.width}, {shape.layers} layers in {STAGES} stages, "
        f"bytes of four books, {steps} steps of {BATCH * shape.length} tokens, AdamW",
        "gap: per cent of validation loss above the uncompressed run's, paired by seed",
        "strict gap: above the uncompressed run that has the learned method's token tables as well",
        "one_layer: the first layer alone, uncompressed: what a boundary that lets nothing through "
        "would leave at the least",
        "fed: with error feedback across micro-batches, in both directions",
        "ratios count payload bytes both ways, token ids included, against float32 activations",
    )
    peers = {f"bytes_per_token_{name}": row[0]["bytes_per_token"] for name, row in rows.items()}
    peers |= {
        f"loss_{name}": float(np.mean([r["loss"] for r in row])) for name, row in rows.items()
    }
    return Result("convergence", _best(rows, grid) | figures, peers, notes, {"runs": rows}, quick)


def gaps(rows: Rows, name: str, base: str = NONE) -> list[float]:
    """Per cent above the run `base`, for each seed."""
    pairs = zip(rows[name], rows[base], strict=True)
    return [100 * (ours["loss"] / theirs["loss"] - 1) for ours, theirs in pairs]


def _best(rows: Rows, grid: Mapping[str, Arm]) -> dict[str, Figure]:
    """At each ratio the method with the smallest mean gap, and the best published one."""
    figures = {}
    for ratio in RATIOS:
        names = [name for name, arm in grid.items() if arm.ratio == ratio]
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
