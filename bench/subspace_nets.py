"""Three small networks with a residual stream: do their ranks behave alike?

All read bytes and predict the next one. The layers that write into the stream end in `feed_out` or
`attention_out`, as in models/transformer.py.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.transformer import Embedding, Head, transformer
from models.transformer_shape import Shape

WINDOW = 8  # bytes that the MLP sees, and a convolution's width


class MlpBlock(nn.Module):
    """A feed-forward network around a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.feed_in = nn.Linear(width, 4 * width, bias=False)
        self.feed_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to the same shape."""
        y: Tensor = self.feed_out(functional.gelu(self.feed_in(self.norm(x))))
        return x + y


class Window(nn.Module):
    """The last few positions mixed into each, so that an MLP has something to go by."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(WINDOW * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to the same shape."""
        padded = functional.pad(x, (0, 0, WINDOW - 1, 0))
        y: Tensor = self.mix(padded.unfold(1, WINDOW, 1).flatten(2))
        return y


class ConvBlock(nn.Module):
    """A causal convolution and a projection around a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, WINDOW, bias=False)
        self.feed_out = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to the same shape."""
        padded = functional.pad(self.norm(x).mT, (WINDOW - 1, 0))
        y: Tensor = self.feed_out(functional.gelu(self.conv(padded)).mT)
        return x + y


def networks(shape: Shape) -> dict[str, list[nn.Module]]:
    """One of each kind, with the same width and depth."""
    torch.manual_seed(0)
    width, layers = shape.width, range(shape.layers)
    return {
        "transformer": transformer(shape, 0),
        "mlp": [
            Embedding(shape),
            Window(width),
            *(MlpBlock(width) for _ in layers),
            Head(shape),
        ],
        "conv": [Embedding(shape), *(ConvBlock(width) for _ in layers), Head(shape)],
    }
