"""Hugging Face models cut into stages compute what they computed whole."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from bench.one_process import assemble, run_stages
from models.bottleneck.assemble import StageLayout
from models.bottleneck.config import BottleneckConfig
from models.causal import OUTPUTS, TOKENS, CausalError, cut_open, read_causal

transformers = pytest.importorskip("transformers")


def small_model(folder: Path, family: str = "llama", **settings: object) -> torch.nn.Module:
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=60,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        **settings,
    )
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("method", ["none", "subspace", "learned"])
def test_stages_of_a_llama_compute_the_same(tmp_path: Path, method: str) -> None:
    whole = small_model(tmp_path, tie_word_embeddings=True)
    layers = read_causal(tmp_path, 10)
    tokens = torch.randint(0, 60, (2, 10), generator=torch.Generator().manual_seed(1))
    layout = StageLayout(16, 60, OUTPUTS, TOKENS)
    config = BottleneckConfig(method, latent=16, bits=32, back_bits=32)
    stages, _ = assemble(layers, layout, config, 3, 2, 10)
    logits = run_stages(stages, tokens)
    if method == "none":
        assert torch.allclose(logits, whole(tokens).logits, atol=1e-5)
    logits.sum().backward()
    assert all(p.grad is not None for stage in stages for p in stage.parameters())


def test_other_folders_and_families_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CausalError, match="no causal model"):
        read_causal(tmp_path, 10)
    with pytest.raises(CausalError, match="only models of Llama's"):
        cut_open(torch.nn.Linear(2, 2), tmp_path)


def test_a_checkpoint_of_bfloat16_is_trained_in_float32(tmp_path: Path) -> None:
    cast(Any, small_model(tmp_path)).to(torch.bfloat16).save_pretrained(tmp_path)
    layers = read_causal(tmp_path, 10)
    assert {p.dtype for layer in layers for p in layer.parameters()} == {torch.float32}
    config = BottleneckConfig("resbm", latent=4, bits=8)
    stages, _ = assemble(layers, StageLayout(16, 60, OUTPUTS, TOKENS), config, 2, 1, 10)
    run_stages(stages, torch.zeros(1, 10, dtype=torch.long)).sum().backward()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi3", "olmo2", "stablelm", "gpt2"])
def test_families_that_are_named_can_be_cut(tmp_path: Path, family: str) -> None:
    small_model(tmp_path, family)
    assert len(read_causal(tmp_path, 10)) == 5


def test_a_gpt_2_reads_as_many_tokens_as_it_has_places(tmp_path: Path) -> None:
    small_model(tmp_path, "gpt2")
    with pytest.raises(CausalError, match="IndexError"):
        read_causal(tmp_path, 33)


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("gemma", {}, "its logits differ"),
        ("granite", {"logits_scaling": 2.0}, "its logits differ"),
        ("cohere", {}, "its logits differ"),
        ("mistral", {"sliding_window": 4}, "its logits differ"),
        ("gemma2", {}, "no causal model that can be read"),
        ("gemma3_text", {}, "TypeError"),
    ],
)
def test_families_that_do_more_than_their_layers_are_refused(
    tmp_path: Path, family: str, settings: dict[str, object], said: str
) -> None:
    small_model(tmp_path, family, **settings)
    with pytest.raises(CausalError, match=said):
        read_causal(tmp_path, 10)


def test_a_window_of_attention_that_no_sequence_fills_does_no_harm(tmp_path: Path) -> None:
    small_model(tmp_path, "mistral", sliding_window=10)
    assert read_causal(tmp_path, 10)
