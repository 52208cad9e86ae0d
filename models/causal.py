"""Reads a Hugging Face causal model from a folder as a sequence of layers that can be cut anywhere.

It must have Llama's form (`embed_tokens`, `layers`, `norm` and `rotary_emb`) or GPT-2's (`wte`,
`wpe`, `h` and `ln_f`). Many families have these names and do more (scaled embeddings, windows of
attention), so the sequence is compared with the model itself. Nothing is downloaded, and no code in
the folder is run. Tied tables are untied: the first and the last stage train separate copies.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ternmesh.errors import TernmeshError
from ternmesh.extras import installed

OUTPUTS = ("o_proj", "down_proj")  # the layers that write into the residual stream
TOKENS = "tokens"
DIFFERENCE_MAX = 1e-3  # relative to the largest logit; float32 rounds to 1e-6


class CausalError(TernmeshError):
    """The folder holds no causal model that can be cut."""


class CausalEmbedding(nn.Module):
    """The token table, with learned positions where a model has them."""

    def __init__(self, table: nn.Embedding, positions: nn.Embedding | None = None) -> None:
        super().__init__()
        self.tokens = table
        self.positions = positions

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [batch, length] to x [batch, length, width]."""
        x: Tensor = self.tokens(tokens)
        if self.positions is None:
            return x
        places: Tensor = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return x + places


class CausalLayer(nn.Module):
    """One decoder layer; `rotary` computes its position embeddings, where it takes any."""

    def __init__(self, layer: nn.Module, rotary: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to the same shape."""
        arguments = {}
        if self.rotary is not None:
            places = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
            arguments = {"position_ids": places, "position_embeddings": self.rotary(x, places)}
        # Without a mask, attention is causal.
        out = self.layer(x, attention_mask=None, use_cache=False, **arguments)
        y: Tensor = out[0] if isinstance(out, tuple) else out
        return y


class CausalHead(nn.Module):
    """The last norm, and the logits of the next token."""

    def __init__(self, norm: nn.Module, logits: nn.Linear) -> None:
        super().__init__()
        self.norm = norm
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width] to logits [batch, length, vocabulary]."""
        y: Tensor = self.logits(self.norm(x))
        return y


def read_causal(folder: Path, length: int) -> list[nn.Module]:
    """Embedding, layers and head of the model in a folder, in float32; CausalError.

    They are checked against the model itself on a sequence of `length` tokens.
    """
    with installed("pipeline,text", "transformers is not installed", CausalError):
        from transformers import AutoModelForCausalLM
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="float32",  # boundaries give float32, checkpoints are often of bfloat16
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
        )
    except (OSError, ValueError) as error:
        raise CausalError(f"{folder} holds no causal model that can be read: {error}") from error
    layers = cut_open(model, folder)
    reason = _difference(layers, model, length)
    if reason:
        raise CausalError(
            f"{folder} holds a {type(model).__name__}, which computes more than its layers one by "
            f"one at {length} tokens ({reason}): use a model of Llama's form (Llama, Qwen2, Qwen3, "
            "Phi3, Olmo2, StableLm) or a GPT-2"
        )
    return layers


def _difference(layers: list[nn.Module], model: Any, length: int) -> str:
    """How the layers' logits differ from the model's own on one row of tokens; "" if they agree."""
    tokens = torch.arange(length).unsqueeze(0) % model.config.vocab_size
    with torch.no_grad():
        try:
            whole: Tensor = model(tokens, use_cache=False).logits
            x: Tensor = nn.Sequential(*layers)(tokens)
        except Exception as error:  # noqa: BLE001  (other families take other arguments, or fewer tokens)
            return f"{type(error).__name__}: {error}"
    apart = float((x - whole).abs().max() / whole.abs().max())
    return "" if apart <= DIFFERENCE_MAX else f"its logits differ by {apart:.2g} of the largest"


def cut_open(model: Any, folder: Path) -> list[nn.Module]:
    """The parts of a model as a sequence; CausalError for another family."""
    inner: Any = getattr(model, "model", None)
    if _has(inner, "embed_tokens", "layers", "norm", "rotary_emb"):
        layers = [CausalLayer(layer, inner.rotary_emb) for layer in inner.layers]
        embedding = CausalEmbedding(_untied(inner.embed_tokens))
        return [embedding, *layers, CausalHead(inner.norm, model.lm_head)]
    inner = getattr(model, "transformer", None)
    if _has(inner, "wte", "wpe", "h", "ln_f"):
        embedding = CausalEmbedding(_untied(inner.wte), inner.wpe)
        return [embedding, *map(CausalLayer, inner.h), CausalHead(inner.ln_f, model.lm_head)]
    raise CausalError(
        f"{folder} holds a {type(model).__name__}: only models of Llama's and GPT-2's form can be "
        "cut"
    )


def _has(inner: object, *names: str) -> bool:
    return all(hasattr(inner, name) for name in names)


def _untied(tokens: nn.Embedding) -> nn.Embedding:
    table = nn.Embedding(*tokens.weight.shape)
    table.load_state_dict({"weight": tokens.weight})
    return table
