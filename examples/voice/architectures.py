"""Further keyword models, for fleets whose boards have different ones (docs/mixed-fleet.md).

A convolutional network over time, and a multilayer perceptron. LoRA has a D of 11,088 for the
first and of 10,576 for the second.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from examples.voice.keyword import (
    CENTRE,
    FRAMES,
    FRAMES_PER_TOKEN,
    MELS,
    SPREAD,
    WORDS,
    KeywordTransformer,
)

TAPS = 3  # frames that a convolution sees


class KeywordCNN(nn.Module):
    """The same with convolutions over time, each a linear layer over three frames."""

    def __init__(self, width: int = 64, words: int = WORDS) -> None:
        super().__init__()
        widths = (MELS, width, width, width, 2 * width)
        sizes = pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(TAPS * size, out) for size, out in sizes)
        self.pooled = nn.Linear(2 * widths[-1], width)
        self.head = nn.Linear(width, words)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """features: float32 [batch, 50, 32] to logits [batch, words]."""
        logits: torch.Tensor = self.head(self.hidden(features))
        return logits

    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        """features: float32 [batch, 50, 32] to what the head gets, [batch, width]."""
        x = (features - CENTRE) * SPREAD
        for number, layer in enumerate(self.layers):
            x = functional.relu(layer(_taps(x, stride=1 + (number > 0))))
        return functional.relu(self.pooled(torch.cat([x.mean(1), x.amax(1)], -1)))


def _taps(x: torch.Tensor, stride: int) -> torch.Tensor:
    """x [batch, frames, size] to windows of three frames, [batch, frames / stride, 3 size]."""
    frames = x.shape[1]
    padded = functional.pad(x, (0, 0, TAPS // 2, TAPS // 2))
    return torch.cat([padded[:, tap : tap + frames : stride] for tap in range(TAPS)], -1)


class KeywordMLP(nn.Module):
    """The same with two layers over the whole clip, whose frames are averaged in pairs."""

    def __init__(self, width: int = 128, words: int = WORDS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(size, width) for size in (FRAMES // FRAMES_PER_TOKEN * MELS, width)
        )
        self.head = nn.Linear(width, words)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """features: float32 [batch, 50, 32] to logits [batch, words]."""
        logits: torch.Tensor = self.head(self.hidden(features))
        return logits

    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        """features: float32 [batch, 50, 32] to what the head gets, [batch, width]."""
        scaled = (features - CENTRE) * SPREAD
        pairs = scaled.reshape(len(features), -1, FRAMES_PER_TOKEN, MELS)
        x: torch.Tensor = pairs.mean(2).flatten(1)
        for layer in self.layers:
            x = functional.relu(layer(x))
        return x


ARCHITECTURES: Final[Mapping[str, Callable[..., nn.Module]]] = {
    "keyword": KeywordTransformer,
    "keyword-cnn": KeywordCNN,
    "keyword-mlp": KeywordMLP,
}
