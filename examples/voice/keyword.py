"""The keyword model: from one second of log-mel features to one of ten words.

A small transformer. The shipped one was trained on the clips of three speakers; the other three
are new to it.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from models.adapters.base import Adapter
from models.adapters.lora import add_lora

FRAMES, MELS, WORDS = 50, 32, 10
FRAMES_PER_TOKEN = 2
TOKEN_SIZE = FRAMES_PER_TOKEN * MELS
CENTRE, SPREAD = 0.4, 4.0  # give the features nearly zero mean and unit variance
SPEAKERS = ("george", "jackson", "lucas")  # whose clips the shipped model was trained on
LORA_PATTERNS = ("layers.*.q", "layers.*.k", "layers.*.v", "layers.*.o", "head")
LORA_RANK, LORA_ALPHA = 8, 16.0


class Layer(nn.Module):
    """One pre-norm transformer layer. Attention is written in plain operators to trace well."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: float32 [batch, tokens, width] to the same shape."""
        x = x + self.o(self._attend(self.norm_attention(x)))
        change: torch.Tensor = self.down(functional.gelu(self.up(self.norm_mlp(x))))
        return x + change

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        split = (*x.shape[:-1], self.heads, -1)
        q, k, v = (part(x).reshape(split).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        mixed: torch.Tensor = scores.softmax(-1) @ v  # [batch, heads, tokens, width / heads]
        return mixed.transpose(1, 2).reshape(x.shape)


class KeywordTransformer(nn.Module):
    """A classifier of `words` words; its inputs are log-mel features in [0, 1] (uint8 / 255)."""

    def __init__(
        self, width: int = 112, depth: int = 2, heads: int = 4, words: int = WORDS
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(TOKEN_SIZE, width)
        self.position = nn.Parameter(torch.randn(FRAMES // FRAMES_PER_TOKEN, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """features: float32 [batch, 50, 32] to logits [batch, words]."""
        logits: torch.Tensor = self.head(self.hidden(features))
        return logits

    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        """features: float32 [batch, 50, 32] to what the head gets, [batch, width]."""
        x = to_tokens(features, self.embed, self.position)
        for layer in self.layers:
            x = layer(x)
        normed: torch.Tensor = self.norm(x)
        return normed.mean(1)


def to_tokens(features: torch.Tensor, embed: nn.Linear, position: torch.Tensor) -> torch.Tensor:
    """features [batch, 50, 32] to x [batch, 25, width]; `position` is [25, width]."""
    tokens = ((features - CENTRE) * SPREAD).reshape(-1, len(position), TOKEN_SIZE)
    x: torch.Tensor = embed(tokens) + position
    return x


def load_clips(path: Path, speakers: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features float32 [clips, 50, 32] in [0, 1] and digits int64 [clips] of these speakers."""
    with np.load(path, allow_pickle=False) as data:
        wanted = np.isin(data["speaker_names"][data["speaker"]], speakers)
        features = data["x"][wanted].astype(np.float32) / 255
        digits = data["y"][wanted].astype(np.int64)
    return torch.from_numpy(features), torch.from_numpy(digits)


def add_keyword_lora(model: nn.Module) -> Adapter:
    """Rank-8 LoRA on q, k, v, o and the head of the transformer, or on all of another's layers.

    D is 15,312 for the transformer.
    """
    patterns = LORA_PATTERNS if isinstance(model, KeywordTransformer) else "*"
    return add_lora(model, patterns, rank=LORA_RANK, alpha=LORA_ALPHA)
