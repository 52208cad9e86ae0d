"""A small GPT-2, trained on plain texts: no published weights of GPT-2 are at hand everywhere."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import GPT2Config, GPT2Model, GPT2TokenizerFast

from host.pipeline.texts import read_texts

SMALL_GPT2 = "gpt2-small"
WIDTH, LAYERS, HEADS, LENGTH = 64, 4, 4, 128
STEPS, ROWS, ROW_LENGTH = 2000, 16, 64
OTHERS = 2000  # tokens that the next one is told from, besides those of the batch
LEARNING_RATE = 3e-3
SHOWN_EVERY = 20  # steps


def train_gpt2(texts: Path, tokenizer: Path, out: Path) -> None:
    """Train on the texts of a folder, and write a folder that transformers loads."""
    words = GPT2TokenizerFast.from_pretrained(tokenizer)

    def encode(text: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
        return np.array(words(text.decode(), verbose=False)["input_ids"], np.int32)

    data = read_texts(texts, ROW_LENGTH, encode)
    torch.manual_seed(0)
    sizes = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    config = GPT2Config(
        vocab_size=len(words), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes
    )
    model = GPT2Model(config)
    optimiser = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=STEPS)
    for step in range(STEPS):
        rows = torch.from_numpy(data.batch(step, 0, ROWS, ROW_LENGTH))
        loss = _loss(model, rows, torch.randint(len(words), (OTHERS,)))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % SHOWN_EVERY == 0:
            shown = f"{SMALL_GPT2}: step {step + 1} of {STEPS}, loss {loss.item():.2f}"
            print(shown, file=sys.stderr, flush=True)
    unfinished = out.with_name(f"{out.name}.unfinished")
    model.save_pretrained(unfinished)
    words.save_pretrained(unfinished)
    unfinished.rename(out)


def _loss(model: GPT2Model, rows: Tensor, others: Tensor) -> Tensor:
    """The loss of the next token among those of the batch and some others (Jean et al. 2015)."""
    tokens, targets = torch.cat([rows[:, 1:].flatten(), others]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    hidden = model(rows[:, :-1]).last_hidden_state.flatten(0, 1)
    return functional.cross_entropy(hidden @ model.wte.weight[tokens].T, targets[: len(hidden)])


def small_gpt2(kept: Path, data: Path) -> Path:
    """The folder of the trained model in `kept`, made where it is missing."""
    out = kept / SMALL_GPT2
    if not out.is_dir():
        train_gpt2(data / "text", data / "models" / "gpt2_tokenizer", out)
    return out
