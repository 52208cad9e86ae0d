"""A small keyword-spotting transformer: one second of log-mel features to one of ten words."""

import torch
from torch import nn
from torch.nn import functional

from models.adapter import Adapter
from models.lora import add_lora

FRAMES, MELS, WORDS = 50, 32, 10
FRAMES_PER_TOKEN = 2
TOKEN_SIZE = FRAMES_PER_TOKEN * MELS
CENTRE, SPREAD = 0.4, 4.0  # bring the features near zero mean and unit variance
LORA_PATTERNS = ("layers.*.q", "layers.*.k", "layers.*.v", "layers.*.o", "head")
LORA_RANK, LORA_ALPHA = 8, 16.0


class Layer(nn.Module):
    """One pre-norm transformer layer; attention in plain operators, so that it traces well."""

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
        """Float32 [batch, tokens, width] to the same shape."""
        x = x + self.o(self._attend(self.norm_attention(x)))
        change: torch.Tensor = self.down(functional.gelu(self.up(self.norm_mlp(x))))
        return x + change

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        split = (*x.shape[:-1], self.heads, -1)
        q, k, v = (part(x).reshape(split).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        mixed: torch.Tensor = scores.softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(x.shape)


class KeywordTransformer(nn.Module):
    """Log-mel features, float32 in [0, 1] (uint8 / 255), [batch, 50, 32], to logits [batch, 10]."""

    def __init__(self, width: int = 112, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(TOKEN_SIZE, width)
        self.position = nn.Parameter(torch.randn(FRAMES // FRAMES_PER_TOKEN, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """See the class."""
        tokens = ((features - CENTRE) * SPREAD).reshape(-1, len(self.position), TOKEN_SIZE)
        x = self.embed(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x).mean(1))
        return logits


def add_keyword_lora(model: KeywordTransformer, seed: int = 0) -> Adapter:
    """Rank-8 LoRA on q, k, v, o of every layer and on the head: D = 15,312 for the default size."""
    return add_lora(model, LORA_PATTERNS, rank=LORA_RANK, alpha=LORA_ALPHA, seed=seed)
