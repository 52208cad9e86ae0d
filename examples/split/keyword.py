"""The shipped keyword model, cut: embedding and first layer on the board, the rest on the host.

The weights are read from the graph that boards run.
"""

import onnx_ir as ir
import torch
from torch import Tensor, nn

from examples.voice.keyword import (
    FRAMES,
    FRAMES_PER_TOKEN,
    LORA_ALPHA,
    LORA_RANK,
    MELS,
    SPEAKERS,
    WORDS,
    KeywordTransformer,
    load_clips,
    to_tokens,
)
from models.adapters.base import Adapter
from models.adapters.lora import add_lora
from models.adapters.spaces import train_whole
from models.errors import ExportError
from models.split.cut import BOUNDARY, BoundaryReceiver, BoundarySender, Cut, fit, make_boundary
from models.zoo import fsdd_path, package_path
from ternmesh.model_package import FORWARD

NAME = "keyword-split"
LENGTH, CUT_AFTER, WIDTH = FRAMES // FRAMES_PER_TOKEN, 1, 112
PATTERNS = ("layers.layers.*.q", "layers.layers.*.k", "layers.layers.*.v", "layers.layers.*.o")


def shipped_keyword() -> KeywordTransformer:
    """The shipped keyword model as a torch module, read from its graph; ExportError.

    The graph names vectors like torch. Its matrices are transposed and have no such names, but they
    stand in the order in which the model uses them.
    """
    graph = ir.load(package_path("keyword") / FORWARD).graph
    model = KeywordTransformer()
    state, matrices = model.state_dict(), []
    for name, value in graph.initializers.items():
        assert value.const_value is not None
        tensor = torch.from_numpy(value.const_value.numpy().copy())
        if name.startswith("module."):
            state[name.removeprefix("module.").replace(".base.", ".")] = tensor
        elif name.startswith("val_") and tensor.ndim == 2:
            matrices.append(tensor.T)
    names = [n for n, p in state.items() if p.ndim == 2 and n not in ("position", "head.weight")]
    if [state[n].shape for n in names] != [m.shape for m in matrices]:
        raise ExportError(
            "the shipped keyword model does not fit this version of ternmesh: export it again"
        )
    state |= dict(zip(names, matrices, strict=True))
    model.load_state_dict(state)
    return model.eval()


class KeywordStart(nn.Module):
    """The embedding and the first layers."""

    def __init__(self, model: KeywordTransformer) -> None:
        super().__init__()
        self.embed = model.embed
        self.position = model.position
        self.layers = model.layers[:CUT_AFTER]

    def forward(self, features: Tensor) -> Tensor:
        """features: float32 [batch, 50, 32] to x [batch, 25, width]."""
        x = to_tokens(features, self.embed, self.position)
        for layer in self.layers:
            x = layer(x)
        return x


class KeywordEnd(nn.Module):
    """The layers behind the cut, and the head."""

    def __init__(self, model: KeywordTransformer) -> None:
        super().__init__()
        self.layers = model.layers[CUT_AFTER:]
        self.norm = model.norm
        self.head = model.head

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, 25, width] to logits."""
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


def make(method: str, latent: int, *, is_new: bool) -> Cut:
    """The parts of the shipped keyword model; see `models.split.cut.Make`."""
    if not is_new:
        return cut_keyword(KeywordTransformer(), method, latent)
    clips = load_clips(fsdd_path("train"), SPEAKERS)[0] if method == "learned" else None
    return cut_keyword(shipped_keyword(), method, latent, clips=clips)


def cut_keyword(
    model: KeywordTransformer, method: str, latent: int, *, clips: Tensor | None = None
) -> Cut:
    """The parts of `model`, which use its modules; LoRA and the boundaries are trained.

    A learned basis begins at the principal components of the activations of `clips` [n, 50, 32].
    """
    start = KeywordStart(model)
    sent, received = (make_boundary(method, WIDTH, min(latent, WIDTH), LENGTH) for _ in range(2))
    if clips is not None:
        with torch.no_grad():
            activations = start(clips)
        fit(sent, activations)
        fit(received, activations)
    first = BoundarySender(start, sent, LENGTH)
    rest = BoundaryReceiver(received, KeywordEnd(model), LENGTH)
    _adapt(rest, (*PATTERNS, "layers.head"))
    return Cut(NAME, (FRAMES, MELS), WORDS, first, rest, _adapt(first, PATTERNS))


def _adapt(part: nn.Module, patterns: tuple[str, ...]) -> Adapter:
    """Train LoRA on the layers that `patterns` name, and the boundary; freeze the rest."""
    adapter = add_lora(part, patterns, rank=LORA_RANK, alpha=LORA_ALPHA)
    boundary = part.get_submodule(BOUNDARY)
    return adapter + train_whole(part, (BOUNDARY,)) if list(boundary.parameters()) else adapter
