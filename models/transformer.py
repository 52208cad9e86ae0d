"""A small causal transformer as a sequence of modules that can be cut anywhere."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.bottleneck.config import Shape

INIT_STD = 0.02
OUTPUTS = ("attention_out", "feed_out")  # the layers that write into the residual stream
TOKENS = "tokens"  # the token table


class Embedding(nn.Module):
    """A token table, and sines for the positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.register_buffer("positions", sines(shape.length, shape.width), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [batch, length] to x [batch, length, width]."""
        x: Tensor = self.tokens(tokens)
        return x + self.get_buffer("positions")[: tokens.shape[1]]


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and with a residual path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm = nn.RMSNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width)
        self.feed_in = nn.Linear(width, 4 * width, bias=False)
        self.feed_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to the same shape."""
        x = x + self._attend(self.attention_norm(x))
        hidden = functional.gelu(self.feed_in(self.feed_norm(x)))
        out: Tensor = self.feed_out(hidden)
        return x + out

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.attention_in(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Head(nn.Module):
    """The last norm, and the logits of the next token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to logits [batch, length, vocabulary]."""
        logits: Tensor = self.logits(self.norm(x))
        return logits


def sines(length: int, width: int) -> Tensor:
    """The fixed positions of Vaswani et al. 2017 [length, width], scaled like a token table."""
    places = torch.arange(length).unsqueeze(1)
    rates = 10_000 ** (-torch.arange(0, width, 2) / width)
    angles = places * rates
    return INIT_STD * torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :width]


def transformer(shape: Shape, seed: int, only: range | None = None) -> list[nn.Module]:
    """Embedding, blocks and head. The seed draws the weights: they are equal on all ranks.

    Layers that are not in `only`, where it is given, have no memory (torch's device "meta").
    """
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        for place in range(shape.layers + 2):
            is_own = only is None or place in only
            torch.manual_seed((seed << 20) + place)  # so that each rank draws only its layers
            with torch.device("cpu" if is_own else "meta"):
                kind = Embedding if place == 0 else Block if place <= shape.layers else Head
                layers.append(kind(shape))
                _initialise(layers[-1], shape.layers)
    return layers


def _initialise(layer: nn.Module, layers: int) -> None:
    for name, part in layer.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            is_output = name.rpartition(".")[2] in OUTPUTS
            nn.init.normal_(part.weight, std=INIT_STD / (2 * layers) ** (0.5 * is_output))
