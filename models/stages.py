"""A sequence of layers cut into stages, with a boundary at each cut.

A stage maps the tensors of one payload to those of the next. The first stage takes tokens, and the
last returns logits.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.bottleneck.payload import Bottleneck, BoundaryContext, unpack_ids

T = TypeVar("T")


class Stage(nn.Module):
    """Some layers between an entry (None in the first stage) and an exit (None in the last).

    All micro-batches have the shape [batch, length]. With `recompute`, the backward pass computes
    the activations inside the layers again, and they are not kept. With `is_bf16`, layers compute
    in bfloat16 where torch's autocast says so; boundaries and weights are float32.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        entry: Bottleneck | None,
        exit_: Bottleneck | None,
        batch: int,
        length: int,
        recompute: bool = False,
        is_bf16: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.entry = entry
        self.exit = exit_
        self.batch = batch
        self.length = length
        self.recompute = recompute
        self.is_bf16 = is_bf16

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Tokens [batch, length] or a payload's tensors, to a payload's tensors or logits."""
        x, context = self._enter(tensors)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.is_bf16):
            for layer in self.layers:
                if self.recompute and x.requires_grad:
                    x = checkpoint(layer, x, use_reentrant=False)
                else:
                    x = layer(x)
        return x if self.exit is None else self.exit.compress(x, context)

    def _enter(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, BoundaryContext]:
        if self.entry is None:
            return tensors[0], BoundaryContext(self.batch, self.length, tensors[0])
        tokens = None
        if self.entry.sends_ids:
            tokens = unpack_ids(tensors[1], self.batch, self.length, self.entry.vocabulary)
        context = BoundaryContext(self.batch, self.length, tokens)
        return self.entry.expand(tensors[0], context), context


def cut(layers: Sequence[T], stages: int) -> list[Sequence[T]]:
    """The layers in groups of nearly equal size; the first and the last layer do not count.

    ValueError where there are fewer layers between these two than stages.
    """
    inner = len(layers) - 2
    if inner < stages:
        raise ValueError(f"{inner} layers cannot make {stages} stages: use fewer stages")
    ends = [1 + inner * (stage + 1) // stages for stage in range(stages)]
    starts = [0, *ends[:-1]]
    ends[-1] = len(layers)
    return [layers[start:end] for start, end in zip(starts, ends, strict=True)]
