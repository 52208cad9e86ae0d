"""Error feedback at a boundary: what a code lost of one micro-batch is added to the next one's.

Of use where the same numbers come again, as in a sum of gradients; at a boundary every micro-batch
is of other text, so this is an ablation and not a method that the product has.
"""

import math
from typing import Any

import torch
from torch import Tensor

from models.bottleneck.payload import Bottleneck, Context


def feed_back(boundary: Bottleneck) -> None:
    """Add feedback to a boundary in both directions, wherever gradients are wanted."""
    shrink, grow = boundary.shrink, boundary.grow
    forward, backward = _Feedback(boundary), _Feedback(boundary)

    def shrink_more(x: Tensor, context: Context) -> Tensor:
        z = shrink(x, context)
        return z + forward.lost_until(z.detach()) if torch.is_grad_enabled() else z

    def more(gradient: Tensor) -> Tensor:
        return gradient + backward.lost_until(gradient)

    def grow_more(z: Tensor, context: Context) -> Tensor:
        if z.requires_grad:
            z.register_hook(more)  # type: ignore[no-untyped-call]
        return grow(z, context)

    changed: Any = boundary
    changed.shrink, changed.grow = shrink_more, grow_more


class _Feedback:
    """What one direction of a boundary has lost."""

    def __init__(self, boundary: Bottleneck) -> None:
        self._boundary = boundary
        self._lost: Tensor | None = None

    def lost_until(self, x: Tensor) -> Tensor:
        """What to add to x; what is lost of their sum is for the next call."""
        lost = torch.zeros_like(x) if self._lost is None else self._lost
        rows = (x + lost).reshape(math.prod(x.shape[:-1]), x.shape[-1])
        code = self._boundary.code
        self._lost = (rows - code.decode(code.encode(rows), x.shape[-1])).view(x.shape)
        return lost
