"""How much of a matrix is one direction: the stable rank, over the training of a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn


def stable_rank(matrix: Tensor) -> float:
    """||W||_F^2 / ||W||_2^2: 1 for one direction, at most the smaller side."""
    wide = matrix.detach().double()
    return float(wide.square().sum() / torch.linalg.matrix_norm(wide, ord=2).square())


def stable_ranks(module: nn.Module, names: Sequence[str]) -> dict[str, float]:
    """That of all weights whose layer's last name is in `names`, by full name."""
    return {
        name: stable_rank(part.weight)
        for name, part in module.named_modules()
        if name.rpartition(".")[2] in names and isinstance(part, nn.Linear)
    }


def plot_ranks(history: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """Draw `stable_ranks` by step as an image at `path`; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="stable rank")
    for name in next(iter(history.values())):
        axes.plot(list(history), [row[name] for row in history.values()], label=name)
    axes.legend(fontsize="x-small", ncols=2)
    figure.savefig(path)
