"""The plots of the subspace benchmark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.bottleneck.rank import plot_ranks


def draw(
    folder: Path,
    ranks: Mapping[str, Mapping[int, Mapping[str, float]]],
    turns: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Writes both images to `folder`; their names."""
    folder.mkdir(parents=True, exist_ok=True)
    plot_ranks(ranks["transformer"], folder / "subspace-ranks.png")
    draw_turns(folder / "subspace-basis.png", turns)
    return ["subspace-ranks.png", "subspace-basis.png"]


def draw_turns(path: Path, turns: Sequence[Mapping[str, Any]]) -> None:
    """The spectrum of G^T G, and how far U has turned."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained", dpi=110)
    left, right = figure.subplots(1, 2)
    for row in (turns[0], turns[len(turns) // 2], turns[-1]):
        left.semilogy(
            range(1, 1 + len(row["spectrum"])), row["spectrum"], label=f"step {row['step']}"
        )
    left.set(xlabel="eigenvalue of GᵀG", ylabel="share of the energy", ylim=(1e-6, 1))
    steps = [row["step"] for row in turns]
    for key, label in (
        ("captured", "of the gradients' energy in S, before a turn"),
        ("captured_after", "after it"),
        ("best", "in the best subspace of that size"),
        ("overlap_first", "overlap with the first S"),
        ("overlap_before", "overlap with S before the turn"),
    ):
        right.plot(steps, [row[key] for row in turns], label=label)
    right.set(xlabel="step", ylabel="share", ylim=(0, 1.02))
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path, metadata={"Software": None})
