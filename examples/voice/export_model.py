"""Pre-train a model of the ten digits that has room for words of your own, and export it.

    python -m examples.voice.export_model --words stop go --out voice_bundle

It never hears the words: boards learn them. The adapter includes the head, so a board can train it.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.nn import functional

from examples.voice.keyword import SPEAKERS, WORDS, add_keyword_lora, load_clips
from examples.voice.pretrain_keyword import BATCH_ON_BOARD, pretrain
from models.export import export
from models.zoo import fsdd_path

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STEPS = 1000


def main() -> None:
    """The command in the docstring."""
    parser = argparse.ArgumentParser(description="Pre-train and export the voice model.")
    parser.add_argument("--words", nargs="+", required=True, help="names of the new words")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model package")
    options = parser.parse_args()
    labels = (*DIGITS, *options.words)
    torch.set_num_threads(1)  # sums in another order give other weights
    clips, digits = load_clips(fsdd_path("train"), SPEAKERS)
    model = pretrain(clips, digits, steps=STEPS, words=len(labels), report=show)
    dev_clips, dev_digits = load_clips(fsdd_path("dev"), SPEAKERS)
    with torch.no_grad():
        right = (model(dev_clips).argmax(1) == dev_digits).float().mean().item()
    sys.stdout.write(
        f"\ndigits of the three known speakers: {right:.1%} of {len(dev_clips)} clips\n"
    )
    adapter = add_keyword_lora(model)
    example = (clips[:BATCH_ON_BOARD],), (digits[:BATCH_ON_BOARD],)
    loss, out = functional.cross_entropy, options.out
    package = export(model, adapter, loss, example, out, name="voice", labels=labels, replace=True)
    sys.stdout.write(
        f"{out}: {', '.join(labels[WORDS:])} can be learned in {package.dimension} numbers\n"
    )


def show(step: int, loss: float) -> None:
    """Write the progress of the pre-training."""
    if step % 50 == 0:
        sys.stdout.write(f"\rstep {step}/{STEPS}  loss {loss:.3f} ")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
