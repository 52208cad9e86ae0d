"""The parts of a cut model as what boards and host begin with; needs what `models.export` needs.

A part of a board is an ordinary bundle. Its backward pass is a train step like any other: the loss
is the inner product of what the part gives with the gradient that came back, so that the gradient
of that loss is the part's own, and everything in between is computed again.
"""

import shutil
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from models.export import export
from models.split import FIRST, HEAD, HOST, Cut, save_middle


def export_cut(cut: Cut, batch: int, folder: Path, version: int = 1) -> None:
    """Write the board's bundles for micro-batches of `batch`, and the host's weights; ExportError.

    What is for a board are the folders `first`, and `head` where there is one.
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
        version=version,
        metric="mean_absolute_error",
    )
    if cut.head is None:
        shutil.rmtree(folder / HEAD, ignore_errors=True)  # a board takes what it finds
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
            version=version,
            input_gradient=True,
        )
    save_middle(cut.middle, folder / HOST)


def inner_product(given: Tensor, gradient: Tensor) -> Tensor:
    """The loss whose gradient is the part's, once `gradient` has come back."""
    return (given * gradient).sum()
