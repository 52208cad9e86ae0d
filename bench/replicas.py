"""Data parallel across pipelines: ternary packets every few steps, and all-reduce in each one.

Two replicas of two stages each, real ranks, same texts, same optimiser; the loss on held-out text
is that of what the replicas agree on.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from bench.data import text_folder
from bench.parts import Parts, fingerprint
from bench.pipeline_run import WRAPPER, Tables, as_row, run
from bench.result import RESULTS, Figure, Result, mean_figure
from bench.slow_links import Link
from host.pipeline import rank  # noqa: F401  (what the ranks run is in the fingerprint)

CODE = (
    "host.pipeline",
    "models.bottleneck",
    "models.stages",
    "models.transformer",
    "ternmesh.hypervector",
    "ternmesh.swarm.packet",
    "ternmesh.swarm.step",
)
SEEDS, STEPS, STEPS_QUICK = 3, 600, 20
ALL_REDUCE = "gradients"
ARMS: Mapping[str, Mapping[str, object]] = {
    "alone": {"count": 1},
    ALL_REDUCE: {"count": 2, "method": "gradients"},
    "deltas": {"count": 2, "method": "deltas", "every_steps": 20},
    "packets": {"count": 2, "method": "packets", "every_steps": 20, "zeros": 0.5},
    "packets_90": {"count": 2, "method": "packets", "every_steps": 20, "zeros": 0.9},
    "packets_98": {"count": 2, "method": "packets", "every_steps": 20, "zeros": 0.98},
}
NOTES = (
    "a small transformer: width 64, 4 layers in 2 stages, bytes of books, AdamW; 2 replicas of 512 "
    "tokens a step each; alone reads half of the tokens",
    "gap: per cent of validation loss above all-reduce's, paired by seed",
    "bytes: what a replica tells the other of a token that it reads, without TCP's own",
    "packets: trits of error feedback, 50, 90 or 98 % zeros; deltas: the same in float32",
)
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def measure(*, quick: bool) -> Result:
    """All arms over all seeds; `quick` takes one seed and 20 steps: it tells bytes only."""
    steps, seeds = (STEPS_QUICK, range(1)) if quick else (STEPS, range(SEEDS))
    folder = Path(gettempdir()) if quick else RESULTS / "parts"
    tables = {arm: tables_of(arm, steps) for arm in ARMS}
    parts = Parts("replicas", fingerprint(tables, CODE), folder)
    for seed in seeds:
        for arm in ARMS:
            _run(parts, arm, tables[arm], seed)
    done = parts.all()
    rows = {arm: [done[f"{arm}/{seed}"] for seed in seeds] for arm in ARMS}
    size = {arm: _mean(row, "replica_bytes") for arm, row in rows.items()}
    peers = {f"bytes_{arm}": value for arm, value in size.items() if value}
    peers |= {f"loss_{arm}": _mean(row, "validation_loss") for arm, row in rows.items()}
    figures = {f"gap_{arm}": _figure(gaps(rows, arm)) for arm in ARMS if arm != ALL_REDUCE}
    figures |= {
        f"fewer_bytes_{arm}": Figure(size[ALL_REDUCE] / value)
        for arm, value in size.items()
        if value and arm != ALL_REDUCE
    }
    return Result("replicas", figures, peers, NOTES, {"runs": rows}, quick)


def tables_of(arm: str, steps: int) -> Tables:
    """The configuration of an arm."""
    return {
        "": {
            "data": str(text_folder()),
            "stages": 2,
            "micro_batch": 4,
            "micro_batches": 2,
            "steps": steps,
            "report_steps": 20 if steps > STEPS_QUICK else 10,
            "validate_steps": steps,
            "checkpoint_steps": 0,
            "device": "cpu",
        },
        "model": {"width": 64, "layers": 4, "heads": 4, "length": 64},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": steps // 15},
        "replicas": ARMS[arm],
    }


def gaps(rows: Rows, arm: str) -> list[float]:
    """Per cent above all-reduce, for each seed."""
    pairs = zip(rows[arm], rows[ALL_REDUCE], strict=True)
    return [100 * (ours["validation_loss"] / base["validation_loss"] - 1) for ours, base in pairs]


def _run(parts: Parts, arm: str, tables: Tables, seed: int) -> None:
    name = f"{arm}/{seed}"
    if name in parts.all():
        return
    began = time.monotonic()
    made = as_row(run({**tables, "": {**tables[""], "seed": seed}}, Link(), WRAPPER))
    parts.add(name, made)
    print(
        f"{name:14} {made['validation_loss']:.4f}, {made['replica_bytes']:.3f} bytes a token, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )


def _mean(row: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.mean(one[key] for one in row))


def _figure(values: Sequence[float]) -> Figure:
    return mean_figure(values) if len(values) > 1 else Figure(values[0])
