"""The keyword model cut for boards: embedding and first layer there, the rest on the host.

Where labels stay on the board, so does the last linear layer.
"""

import numpy as np
import torch
from torch import Tensor, nn

from models.adapter import Adapter
from models.bottleneck.payload import Bottleneck
from models.keyword import (
    CENTRE,
    FRAMES,
    FRAMES_PER_TOKEN,
    LORA_ALPHA,
    LORA_RANK,
    MELS,
    SPREAD,
    TOKEN_SIZE,
    WORDS,
    KeywordTransformer,
)
from models.lora import add_lora
from models.split import BOUNDARY, Cut, Receiver, Sender, fit, make_boundary
from models.whole import train_whole
from models.zoo import fsdd_path

SPEAKERS = ("george", "jackson", "lucas")  # whom the shipped model has heard
NAME = "keyword-split"
LENGTH, CUT_AFTER, WIDTH = FRAMES // FRAMES_PER_TOKEN, 1, 112
PATTERNS = ("layers.layers.*.q", "layers.layers.*.k", "layers.layers.*.v", "layers.layers.*.o")


class Start(nn.Module):
    """Features [batch, 50, 32] to [batch, 25, width]: embedding and the first layers."""

    def __init__(self, model: KeywordTransformer) -> None:
        super().__init__()
        self.embed, self.position = model.embed, model.position
        self.layers = model.layers[:CUT_AFTER]

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        tokens = ((features - CENTRE) * SPREAD).reshape(-1, LENGTH, TOKEN_SIZE)
        x: Tensor = self.embed(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return x


class End(nn.Module):
    """[batch, 25, width] to logits, or without a head to [batch, 1, width], the mean over time."""

    def __init__(self, model: KeywordTransformer, head: nn.Module | None) -> None:
        super().__init__()
        self.layers, self.norm, self.head = model.layers[CUT_AFTER:], model.norm, head

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        for layer in self.layers:
            x = layer(x)
        pooled: Tensor = self.norm(x).mean(1)
        return pooled[:, None] if self.head is None else self.head(pooled)


class Squeeze(nn.Module):
    """A layer on the only position of [batch, 1, width]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 1, width] to [batch, out]."""
        result: Tensor = self.layer(x[:, 0])
        return result


def make(method: str, latent: int, *, labels_stay: bool, is_new: bool) -> Cut:
    """The shipped keyword model in parts; see `models.split.Make`."""
    if not is_new:
        return cut_keyword(KeywordTransformer(), method, latent, labels_stay=labels_stay)
    from models.split_shipped import shipped_keyword  # needs what export needs

    heard = heard_clips() if method == "learned" else None
    return cut_keyword(shipped_keyword(), method, latent, labels_stay=labels_stay, heard=heard)


def cut_keyword(
    model: KeywordTransformer,
    method: str,
    latent: int,
    *,
    labels_stay: bool = False,
    heard: Tensor | None = None,
) -> Cut:
    """The parts of `model`, which they share; trained are LoRA and what boundaries learn.

    Boundaries with a basis begin where the activations of the features `heard` lie.
    """
    start, end = Start(model), End(model, None if labels_stay else model.head)
    given = None if heard is None else _run(start, heard)
    sent, received = _boundaries(method, latent, LENGTH, given)
    first, middle = Sender(start, sent, LENGTH), Receiver(received, end, LENGTH)
    first_adapter = _adapt(first, PATTERNS)
    if not labels_stay:
        _adapt(middle, (*PATTERNS, "layers.head"))
        return Cut(NAME, (FRAMES, MELS), WORDS, first, middle, first_adapter)
    sent, received = _boundaries(method, latent, 1, None if given is None else _run(end, given))
    _adapt(middle, PATTERNS)
    back, head = Sender(nn.Identity(), sent, 1), Receiver(received, Squeeze(model.head), 1)
    _adapt(back, ())
    head_adapter = _adapt(head, ("layers.layer",))
    whole = nn.Sequential(middle, back)
    return Cut(NAME, (FRAMES, MELS), WORDS, first, whole, first_adapter, head, head_adapter)


def _boundaries(
    method: str, latent: int, length: int, given: Tensor | None
) -> tuple[Bottleneck, Bottleneck]:
    """The two sides of a boundary."""
    sides = [make_boundary(method, WIDTH, min(latent, WIDTH), length) for _ in range(2)]
    for side in sides:
        if given is not None:
            fit(side, given)
    return sides[0], sides[1]


def _adapt(part: nn.Module, patterns: tuple[str, ...]) -> Adapter:
    """Freeze a part but for LoRA on the layers that `patterns` name, and for its boundary."""
    found = Adapter((), (), ())
    if patterns:
        found = add_lora(part, patterns, rank=LORA_RANK, alpha=LORA_ALPHA)
    boundary = part.get_submodule(BOUNDARY)
    return found + train_whole(part, (BOUNDARY,)) if list(boundary.parameters()) else found


@torch.no_grad()
def _run(part: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = part(x)
    return result


def heard_clips() -> Tensor:
    """Training clips of the speakers that the shipped model has heard, float32 [clips, 50, 32]."""
    with np.load(fsdd_path("train"), allow_pickle=False) as data:
        known = np.isin(data["speaker_names"][data["speaker"]], SPEAKERS)
        return torch.from_numpy(data["x"][known].astype(np.float32) / 255)
