"""Exports the parts of a cut model: a model package for boards, and the host's weights.

The backward pass of a board's part is an ordinary train step: the loss
is the inner product of the part's output with the gradient that came back. The gradient of that
loss is the gradient of the part; the step computes the activations again.
"""

from pathlib import Path

import torch

from models.export import export
from models.split.cut import FIRST, HOST, Cut, save_rest


def export_cut(cut: Cut, batch: int, folder: Path) -> None:
    """Write the board's package for micro-batches of `batch`, and the host's weights; ExportError.

    The board needs the folder `first`.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(batch, *cut.input_shape, generator=generator)
    with torch.no_grad():
        crossed = cut.first(inputs)
    export(
        cut.first,
        cut.adapter,
        lambda given, gradient: (given * gradient).sum(),  # whose gradient is the part's
        ((inputs,), (torch.ones_like(crossed),)),
        folder / FIRST,
        name=f"{cut.name}-{FIRST}",
        metric="mean_absolute_error",
        replace=True,
    )
    save_rest(cut.rest, folder / HOST)
