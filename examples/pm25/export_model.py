"""Pre-train a PM2.5 forecaster on 2010 and 2011 and export it for boards.

    python examples/pm25/export_model.py --data pm25_train_2010_2012.npz --out pm25_bundle

It is an ordinary torch module with an ordinary loss: everything about boards is in the last lines.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from features import FEATURES, HOURS, unscale_pm25, windows
from torch import nn
from torch.nn import functional

from models.adapters.lora import add_lora
from models.export import export

STEPS, BATCH = 800, 128
LEARNING_RATE_MAX, WEIGHT_DECAY = 1e-3, 1.0
BATCH_ON_BOARD = 16
LORA_RANK, LORA_ALPHA = 4, 8.0


class Forecaster(nn.Module):
    """PM2.5 of the next hour from the last 24: it predicts the change since the last hour."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.mix = nn.Linear(HOURS * FEATURES, width)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.change = nn.Linear(width, 1)
        nn.init.zeros_(self.change.weight)

    def forward(self, hours: torch.Tensor) -> torch.Tensor:
        """Features [batch, 24, 16] to scaled PM2.5 [batch, 1]."""
        x = functional.gelu(self.mix(hours.flatten(1)))
        x = x + functional.gelu(self.hidden(self.norm(x)))
        return hours[:, -1, :1] + self.change(x)


def loss(predicted: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The absolute error, rounded off near zero."""
    return functional.smooth_l1_loss(predicted, targets, beta=0.1)


def pretrain(features: torch.Tensor, targets: torch.Tensor) -> Forecaster:
    """A forecaster trained on these windows; always the same one."""
    torch.manual_seed(0)
    model = Forecaster()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE_MAX, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE_MAX, total_steps=STEPS)
    for _ in range(STEPS):
        chosen = torch.randint(len(features), (BATCH,))
        value = loss(model(features[chosen]), targets[chosen])
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def error(predicted: torch.Tensor, targets: torch.Tensor) -> float:
    """The mean absolute error in µg/m³ of scaled predictions."""
    difference = unscale_pm25(predicted.numpy()) - unscale_pm25(targets.numpy())
    return float(np.abs(difference).mean())


def main() -> None:
    """The command in the docstring."""
    parser = argparse.ArgumentParser(description="Pre-train and export the PM2.5 forecaster.")
    parser.add_argument("--data", type=Path, required=True, help="pm25_train_2010_2012.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundle")
    options = parser.parse_args()
    with np.load(options.data) as data:
        records, year = data["x"], data["year"]
    features, targets = map(torch.from_numpy, windows(records[year < 2012]))
    model = pretrain(features, targets)

    new_features, new_targets = map(torch.from_numpy, windows(records[year == 2012]))
    with torch.no_grad():
        model_error = error(model(new_features), new_targets)
    same_again = error(new_features[:, -1, :1], new_targets)
    sys.stdout.write(f"2012: {model_error:.2f} µg/m³ off; the last hour again: {same_again:.2f}\n")

    adapter = add_lora(model, ("mix", "hidden", "change"), rank=LORA_RANK, alpha=LORA_ALPHA)
    example = (features[:BATCH_ON_BOARD],), (targets[:BATCH_ON_BOARD],)
    out, metric = options.out, "mean_absolute_error"
    package = export(model, adapter, loss, example, out, name="pm25", metric=metric, replace=True)
    sys.stdout.write(f"{out}: adapter of {package.dimension} numbers\n")


if __name__ == "__main__":
    main()
