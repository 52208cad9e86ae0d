"""Exports the parts of a cut model: model packages for boards, and the host's weights.

A board's part is an ordinary model package. Its backward pass is an ordinary train step: the loss
is the inner product of the part's output with the gradient that came back. The gradient of that
loss is the gradient of the part; the step computes the activations again.
"""

import shutil
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from models.export import export
from models.split.cut import FIRST, HEAD, HOST, Cut, save_middle


def export_cut(cut: Cut, batch: int, folder: Path) -> None:
    """Write the board's packages for micro-batches of `batch`, and the host's weights; ExportError.

    The board needs the folders `first` and, where there is one, `head`.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(batch, *cut.input_shape, generator=generator)
    with torch.no_grad():
        crossed = cut.first(inputs)
        down = cut.middle(crossed)
    export(
        cut.first,
        cut.first_adapter,
        inner_product,
        ((inputs,), (torch.ones_like(crossed),)),
        folder / FIRST,
        name=f"{cut.name}-{FIRST}",
        metric="mean_absolute_error",
        replace=True,
    )
    if cut.head is None:
        shutil.rmtree(folder / HEAD, ignore_errors=True)  # a board would use an old one
    else:
        assert cut.head_adapter is not None
        labels = torch.arange(batch) % cut.classes
        export(
            cut.head,
            cut.head_adapter,
            functional.cross_entropy,
            ((down,), (labels,)),
            folder / HEAD,
            name=f"{cut.name}-{HEAD}",
            input_gradient=True,
            replace=True,
        )
    save_middle(cut.middle, folder / HOST)


def inner_product(given: Tensor, gradient: Tensor) -> Tensor:
    """The loss of the first part; its gradient is the part's, for the `gradient` of its output."""
    return (given * gradient).sum()
