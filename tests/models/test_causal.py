"""Hugging Face models cut into stages compute what they computed whole."""

from pathlib import Path

import pytest
import torch

from models.bottleneck.assemble import Layout, assemble
from models.bottleneck.config import BottleneckConfig
from models.causal import OUTPUTS, TOKENS, CausalError, cut_open, read_causal
from models.stages import run_stages

transformers = pytest.importorskip("transformers")


def small_llama(folder: Path) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=60,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("method", ["none", "subspace", "learned"])
def test_stages_of_a_llama_compute_the_same(tmp_path: Path, method: str) -> None:
    whole, layers = small_llama(tmp_path), read_causal(tmp_path)
    tokens = torch.randint(0, 60, (2, 10), generator=torch.Generator().manual_seed(1))
    layout = Layout(16, 60, OUTPUTS, TOKENS)
    config = BottleneckConfig(method, latent=16)
    stages, _ = assemble(layers, layout, config, 3, 2, 10)
    logits = run_stages(stages, tokens)
    if method == "none":
        assert torch.allclose(logits, whole(tokens).logits, atol=1e-5)
    logits.sum().backward()
    assert all(p.grad is not None for stage in stages for p in stage.parameters())


def test_other_folders_and_families_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CausalError, match="no causal model"):
        read_causal(tmp_path)
    with pytest.raises(CausalError, match="only Llama's family"):
        cut_open(torch.nn.Linear(2, 2), tmp_path)
