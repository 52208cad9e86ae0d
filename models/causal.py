"""A Hugging Face causal model from a folder, as a plain sequence that can be cut anywhere.

Of Llama's form: `embed_tokens`, `layers`, `norm` and `rotary_emb`, and nothing between them. Many
families have these names and do more (scaled embeddings, windows of attention), so each model's
sequence is tried against the model itself. Nothing is fetched from anywhere, and no code of the
folder is run. Tied tables are untied: the first and the last stage, which are on two machines,
train their own.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ternmesh.errors import TernmeshError

OUTPUTS = ("o_proj", "down_proj")  # the layers that write into the residual stream
TOKENS = "tokens"
DIFFERENCE_MAX = 1e-3  # of the largest logit; float32 rounds to 1e-6


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


def read_causal(folder: Path, length: int) -> list[nn.Module]:
    """Embedding, layers and head of the model in a folder, in float32; CausalError.

    For sequences of `length` tokens: on one, they compute what the model itself does.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise CausalError(
            "transformers is not installed: pip install 'ternmesh[pipeline,text]'"
        ) from error
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="float32",  # boundaries give float32, checkpoints are often of bfloat16
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
        )
    except (OSError, ValueError) as error:
        raise CausalError(f"{folder} is no causal model that can be read: {error}") from error
    layers = cut_open(model, folder)
    reason = _difference(layers, model, length)
    if reason:
        raise CausalError(
            f"{folder} holds a {type(model).__name__}, which does more than its layers in a row at "
            f"{length} tokens ({reason}): take one of Llama's form (Llama, Qwen2, Qwen3, Phi3, "
            "Olmo2, StableLm)"
        )
    return layers


def _difference(layers: list[nn.Module], model: Any, length: int) -> str:
    """How a sequence's logits of one row of tokens differ from the model's own, or nothing."""
    tokens = torch.arange(length).unsqueeze(0) % model.config.vocab_size
    with torch.no_grad():
        whole: Tensor = model(tokens, use_cache=False).logits
        try:
            x: Tensor = nn.Sequential(*layers)(tokens)
        except Exception as error:  # noqa: BLE001  (layers of other families want other arguments)
            return f"{type(error).__name__}: {error}"
    apart = float((x - whole).abs().max() / whole.abs().max())
    return "" if apart <= DIFFERENCE_MAX else f"its logits differ by {apart:.2g} of the largest"


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
