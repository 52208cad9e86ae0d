"""Pre-train a keyword model on three speakers and export its model package.

    python -m examples.voice.pretrain_keyword --data CLIPS.npz --out models/zoo/keyword
    python -m examples.voice.pretrain_keyword --architecture keyword-cnn --out FOLDER

CLIPS.npz is by default the copy in models/zoo/fsdd. Only the clips of three speakers are used, so
that the boards have something to learn from the other three.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ternmesh.extras import how_to_install

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    raise ImportError(f"pre-training needs torch: {how_to_install('train')}") from error

from examples.voice.architectures import ARCHITECTURES
from examples.voice.keyword import SPEAKERS, WORDS, add_keyword_lora, load_clips
from models.export import export
from models.zoo import fsdd_path

NAME = "keyword"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VERSION = 1
STEPS = 2000
BATCH = 32
LEARNING_RATE_MAX = 2e-3
WEIGHT_DECAY = 0.05
GRADIENT_NORM_MAX = 1.0
BATCH_ON_BOARD = 32
SHOWN_EVERY = 20  # steps

# Augmentation: the largest change of each kind; a change is drawn for each clip. Small changes were
# best, measured by what boards learn afterwards on held-out training clips.
SPEED_LOG, SHIFT_FRAMES = 0.1, 4.0
WARP_LOG, SHIFT_BANDS = 0.06, 0.5  # stretches the mel axis, like a longer or shorter vocal tract
GAIN, TILT, NOISE = 0.03, 0.03, 0.03  # of the feature range [0, 1]
MASKS, MASK_FRAMES_MAX, MASK_BANDS_MAX = 2, 5.0, 3.0


def augment(clips: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Clips [n, 50, 32] with random changes of voice, speed, position and microphone."""

    def draw(bound: float) -> torch.Tensor:
        return (2 * torch.rand(len(clips), 1, generator=generator) - 1) * bound

    clips = _warp(clips, draw)
    sound = (clips > 0).to(clips.dtype)  # padding stays zero
    slope = torch.linspace(-1, 1, clips.shape[2])
    clips = clips + sound * (draw(GAIN) + draw(TILT) * slope)[:, None, :]
    clips = clips + NOISE * torch.rand(len(clips), 1, 1, generator=generator) * torch.randn(
        clips.shape, generator=generator
    )
    for _ in range(MASKS):
        clips = clips * _mask(clips, 1, MASK_FRAMES_MAX, generator)[:, :, None]
        clips = clips * _mask(clips, 2, MASK_BANDS_MAX, generator)[:, None, :]
    return clips.clamp(0, 1)


def _warp(clips: torch.Tensor, draw: Callable[[float], torch.Tensor]) -> torch.Tensor:
    count, frames, bands = clips.shape
    frame = torch.arange(frames) * torch.exp(draw(SPEED_LOG)) - draw(SHIFT_FRAMES)
    band = torch.arange(bands) * torch.exp(draw(WARP_LOG)) + draw(SHIFT_BANDS)
    y = (frame / (frames - 1) * 2 - 1)[:, :, None].expand(count, frames, bands)
    x = (band.clamp(0, bands - 1) / (bands - 1) * 2 - 1)[:, None, :].expand(count, frames, bands)
    grid = torch.stack((x, y), -1)
    return functional.grid_sample(clips[:, None], grid, align_corners=True)[:, 0]


def _mask(
    clips: torch.Tensor, axis: int, width_max: float, generator: torch.Generator
) -> torch.Tensor:
    """Ones with one random block of zeros for each clip: [n, size of `axis`]."""
    size = clips.shape[axis]
    start = torch.rand(len(clips), 1, generator=generator) * size
    width = torch.rand(len(clips), 1, generator=generator) * width_max
    place = torch.arange(size)
    return 1 - ((place >= start) & (place < start + width)).to(clips.dtype)


def pretrain(
    clips: torch.Tensor,
    digits: torch.Tensor,
    *,
    steps: int = STEPS,
    seed: int = 0,
    words: int = WORDS,
    architecture: str = NAME,
    report: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """A model of `words` classes trained on augmented clips [n, 50, 32] and their digits [n].

    `architecture` is one of `ARCHITECTURES`.

    The same seed and thread count give the same weights. `report` gets each step and its loss.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = ARCHITECTURES[architecture](words=words)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE_MAX, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, LEARNING_RATE_MAX, total_steps=steps, pct_start=0.1
    )
    for step in range(steps):
        chosen = torch.randint(len(clips), (BATCH,), generator=generator)
        logits = model(augment(clips[chosen], generator))
        loss = functional.cross_entropy(logits, digits[chosen])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimiser.step()
        schedule.step()
        if report is not None:
            report(step + 1, loss.item())
    return model.eval()


def main() -> None:
    """The command in the module's docstring."""
    parser = argparse.ArgumentParser(description="Pre-train and export the keyword model.")
    parser.add_argument("--data", type=Path, default=fsdd_path("train"), help="training clips")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model package")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=NAME)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)  # sums in another order give other weights
    clips, digits = load_clips(options.data, SPEAKERS)
    steps, start_s = options.steps, time.monotonic()

    def show(step: int, loss: float) -> None:
        if step % SHOWN_EVERY == 0:
            left_s = (time.monotonic() - start_s) / step * (steps - step)
            sys.stdout.write(f"\rstep {step}/{steps}  loss {loss:.3f}  {left_s:.0f} s left ")
            sys.stdout.flush()

    name = options.architecture
    model = pretrain(clips, digits, steps=steps, seed=options.seed, architecture=name, report=show)
    adapter = add_keyword_lora(model)
    example = (clips[:BATCH_ON_BOARD],), (digits[:BATCH_ON_BOARD],)
    loss, out = functional.cross_entropy, options.out
    package = export(
        model, adapter, loss, example, out, name=name, version=VERSION, labels=DIGITS, replace=True
    )
    sys.stdout.write(f"\n{options.out}: {package.name}, adapter of {package.dimension} numbers\n")


if __name__ == "__main__":
    main()
