"""The sanity experiments of Protocol Models and their next checks, on a small transformer.

Whether boundaries are exact and weights stay in the subspace; ranks over training, with three kinds
of network; how the basis turns; what the projection costs; memory over the sequence length.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import gettempdir

import torch

from bench.pipeline import TIMES, TIMES_QUICK, projection_overhead
from bench.result import RESULTS, Figure, Result
from bench.subspace_memory import LENGTHS, memory
from bench.subspace_plot import draw
from bench.subspace_training import (
    BASIS_STEPS,
    RANK,
    SHAPE,
    train_confined,
    train_free,
    train_turning,
)

STEPS, STEPS_QUICK = 1000, 2 * BASIS_STEPS
KINDS = ("transformer", "mlp", "conv")
NOTES = (
    f"width {SHAPE.width}, {SHAPE.layers} layers, k = {RANK}, bytes of books, one thread",
    "drift: the largest share of a weight's norm outside of S, looked at every 20 steps, one step "
    "before rounding is taken out; error: relative, of what crosses a boundary in float32",
    "rank: mean stable rank of the layers that write into the stream, and of the centred stream",
    "overhead: of the boundary alone in a forward and backward pass, width 512, k = 5",
    "memory: of a middle stage, width 256, k = 8, one sequence; growth from 64 to 1,024 positions",
)


def measure(*, quick: bool) -> Result:
    """All of it; `quick` trains 100 steps."""
    torch.set_num_threads(1)
    steps = STEPS_QUICK if quick else STEPS
    rows, plain = train_confined("rows", steps), train_confined("plain", steps)
    turns = train_turning(steps)
    ranks = {kind: train_free(kind, steps) for kind in KINDS}
    sizes = {
        f"{length}{'/recomputed' if again else ''}": memory(length, recompute=again)
        for again in (False, True)
        for length in LENGTHS
    }
    figures = {
        "reconstruction_error": Figure(rows["error"], "<=1e-6"),
        "drift_row_adamw": Figure(rows["drift"], "<=1e-6"),
        "drift_plain_adamw": Figure(plain["drift"]),
        "reconstruction_error_plain_adamw": Figure(plain["error"]),
        "projection_overhead": Figure(
            projection_overhead(TIMES_QUICK if quick else TIMES), "<=0.01"
        ),
        **_turn_figures(turns[-1]),
        **_rank_figures(ranks),
        **_memory_figures(sizes),
    }
    folder = Path(gettempdir()) if quick else RESULTS
    plots = draw(folder, ranks, turns)
    shown = [{k: value for k, value in row.items() if k != "spectrum"} for row in turns]
    ends = {kind: {at: row[at] for at in (0, max(row))} for kind, row in ranks.items()}
    details = {"turns": shown, "ranks": ends, "memory": sizes, "plots": plots}
    return Result("subspace", figures, {"loss_rows": rows["loss"]}, NOTES, details, quick)


def _turn_figures(last: Mapping[str, float]) -> dict[str, Figure]:
    names = ("captured", "best", "overlap_first", "overlap_before")
    return {f"basis_{name}": Figure(last[name]) for name in names}


def _rank_figures(ranks: Mapping[str, Mapping[int, Mapping[str, float]]]) -> dict[str, Figure]:
    figures = {}
    for kind, history in ranks.items():
        for word, row in (("first", history[0]), ("last", history[max(history)])):
            weights = [value for name, value in row.items() if name != "x"]
            figures[f"rank_{kind}_{word}"] = Figure(sum(weights) / len(weights))
            figures[f"rank_stream_{kind}_{word}"] = Figure(row["x"])
    return figures


def _memory_figures(sizes: Mapping[str, Mapping[str, float]]) -> dict[str, Figure]:
    short, long = LENGTHS[0], LENGTHS[-1]
    return {
        "memory_growth_boundaries": _growth(sizes, f"{short}", f"{long}", "boundaries"),
        "memory_growth_activations": _growth(sizes, f"{short}", f"{long}", "activations"),
        "memory_growth_recomputed": _growth(
            sizes, f"{short}/recomputed", f"{long}/recomputed", "activations"
        ),
    }


def _growth(sizes: Mapping[str, Mapping[str, float]], short: str, long: str, key: str) -> Figure:
    return Figure(sizes[long][key] / sizes[short][key])
