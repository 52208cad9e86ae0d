"""A Hugging Face causal model from a folder, as a plain sequence that can be cut anywhere.

Of the Llama family: models with `embed_tokens`, `layers`, `norm` and `rotary_emb`. Nothing is
fetched from anywhere, and no code of the folder is run. Tied tables are untied: the first and the
last stage, which are on two machines, train their own.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ternmesh.errors import TernmeshError

OUTPUTS = ("o_proj", "down_proj")  # the layers that write into the residual stream
TOKENS = "tokens"


class CausalError(TernmeshError):
    """A folder that is no causal model that can be cut."""


class Embedding(nn.Module):
    """Tokens to x."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.tokens = table

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] to [batch, length, width]."""
        x: Tensor = self.tokens(tokens)
        return x


class Layer(nn.Module):
    """One decoder layer, which turns queries and keys by their positions itself."""

    def __init__(self, layer: nn.Module, rotary: nn.Module) -> None:
        super().__init__()
        self.layer, self.rotary = layer, rotary

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to the same shape."""
        places = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        out = self.layer(
            x,
            attention_mask=None,  # without a mask, attention is causal
            position_ids=places,
            position_embeddings=self.rotary(x, places),
            use_cache=False,
        )
        y: Tensor = out[0] if isinstance(out, tuple) else out
        return y


class Head(nn.Module):
    """x to the logits of the next token."""

    def __init__(self, norm: nn.Module, logits: nn.Linear) -> None:
        super().__init__()
        self.norm, self.logits = norm, logits

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to [batch, length, vocabulary]."""
        y: Tensor = self.logits(self.norm(x))
        return y


def read_causal(folder: Path) -> list[nn.Module]:
    """Embedding, layers and head of the model in a folder; CausalError."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise CausalError(
            "transformers is not installed: pip install 'ternmesh[pipeline,text]'"
        ) from error
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise CausalError(f"{folder} is no causal model that can be read: {error}") from error
    return cut_open(model, folder)


def cut_open(model: Any, folder: Path) -> list[nn.Module]:
    """The parts of a model as a sequence; CausalError where it is of another family."""
    inner: Any = getattr(model, "model", None)
    if not all(hasattr(inner, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
        raise CausalError(
            f"{folder} holds a {type(model).__name__}: only Llama's family can be cut"
        )
    table = nn.Embedding(*inner.embed_tokens.weight.shape)
    table.load_state_dict({"weight": inner.embed_tokens.weight})
    layers = [Layer(layer, inner.rotary_emb) for layer in inner.layers]
    return [Embedding(table), *layers, Head(inner.norm, model.lm_head)]
