"""What a pipeline says of its progress: lines of JSON in its folder, and a line for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRESS = "progress.jsonl"


class Progress:
    """Writes progress.jsonl; `forward` and `back` are the bytes of a token at each boundary."""

    def __init__(self, folder: Path, steps: int, step_tokens: int, forward: float, back: float):
        self._path, self._steps, self._step_tokens = folder / PROGRESS, steps, step_tokens
        self._bytes = {"forward": forward, "back": back}

    def step(self, step: int, loss: float, done: int, wall_s: float, idle: Sequence[float]) -> None:
        """After `step` steps, the last `done` of which took `wall_s`; `idle` shares by stage."""
        rate = done / wall_s
        self._write(
            {
                "step": step,
                "steps": self._steps,
                "loss": loss,
                "tokens_per_s": rate * self._step_tokens,
                "boundary_bytes_per_token": self._bytes,
                "bubble": [round(share, 4) for share in idle],
                "left_s": (self._steps - step) / rate,
            }
        )

    def validation(self, step: int, loss: float) -> None:
        """The loss on texts that are not learned from."""
        self._write({"step": step, "steps": self._steps, "validation_loss": loss})

    def _write(self, row: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def line(report: Mapping[str, Any]) -> str:
    """A report for people."""
    head = f"step {report['step']}/{report['steps']}"
    if "validation_loss" in report:
        return f"{head}  validation loss {report['validation_loss']:.4f}"
    sizes, idle = report["boundary_bytes_per_token"], report["bubble"]
    return (
        f"{head}  loss {report['loss']:.4f}  {report['tokens_per_s']:.0f} tokens/s  "
        f"{sizes['forward']:.4g} bytes/token forward, {sizes['back']:.4g} back, a boundary  "
        f"idle {', '.join(f'{share:.0%}' for share in idle)}  "
        f"{report['left_s'] / 60:.1f} min left"
    )
