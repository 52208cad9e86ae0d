"""The plot of the convergence benchmark: the gap by ratio, and how the long runs learn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.convergence_arms import RATIOS, STEPS, STEPS_LONG

TICKS = (-10, -5, 0, 5, 10, 20, 50)


def draw(
    path: Path,
    gaps: Mapping[str, Mapping[int, float]],
    levels: Mapping[str, float],
    long: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Left the gap of each method by ratio in per cent, and levels; right the long runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), layout="constrained", dpi=110)
    left, right = figure.subplots(1, 2)
    for index, (method, row) in enumerate(gaps.items()):
        ratios = sorted(row)
        style = "-" if index < 10 else "--"
        left.plot(ratios, [row[ratio] for ratio in ratios], style, marker=".", label=method)
    for name, value in levels.items():
        left.axhline(value, color="grey", linestyle=":", linewidth=1)
        left.annotate(name, (RATIOS[0], value), fontsize=7, color="grey", va="bottom")
    left.set_xscale("log")
    left.set_yscale("symlog", linthresh=10)
    left.set_ylim(-10, 80)
    left.set_yticks(TICKS, [f"{tick:+d}" for tick in TICKS])
    left.set_xticks(RATIOS, [f"{ratio}x" for ratio in RATIOS])
    left.minorticks_off()
    left.set_title(f"{STEPS:,} steps, mean of the seeds")
    left.set(xlabel="times fewer bytes", ylabel="loss above the uncompressed run, %")
    left.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    for name, rows in long.items():
        curve = {int(step): loss for step, loss in rows[0]["curve"].items()}
        right.plot(list(curve), list(curve.values()), label=name, linewidth=1.2)
    right.set_title(f"{STEPS_LONG:,} steps, one seed")
    right.set(xlabel="step", ylabel="validation loss")
    right.legend(fontsize=7)
    for panel in (left, right):
        panel.grid(visible=True, alpha=0.3)
    figure.savefig(path, metadata={"Software": None})
