"""What a pipeline says of its progress: lines of JSON in its folder, and a line for people."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from host.pipeline.config import PipelineConfig

PROGRESS = "progress.jsonl"


class Progress:
    """Writes progress.jsonl; `forward` and `back` are the bytes of a token at each boundary."""

    def __init__(self, config: PipelineConfig, forward: float, back: float) -> None:
        self._config, self._bytes = config, {"forward": forward, "back": back}

    def step(
        self,
        step: int,
        loss: float,
        done: int,
        wall_s: float,
        idle: Sequence[float],
        replica_bytes: float = 0.0,
    ) -> None:
        """After `step` steps, the last `done` of which took `wall_s`; `idle` shares by stage.

        `replica_bytes` is what all stages of a replica tell each other replica in a step, on
        average since the process began.
        """
        rate, config = done / wall_s, self._config
        row: dict[str, Any] = {
            "step": step,
            "steps": config.steps,
            "loss": loss,
            "tokens_per_s": rate * config.step_tokens,
            "boundary_bytes_per_token": self._bytes,
            "bubble": [round(share, 4) for share in idle],
            "left_s": (config.steps - step) / rate,
        }
        if config.replicas.count > 1:
            tokens = config.step_tokens / config.replicas.count
            row["replica_bytes_per_token"] = replica_bytes / tokens
        self._write(row)

    def validation(self, step: int, loss: float) -> None:
        """The loss on texts that are not learned from."""
        self._write({"step": step, "steps": self._config.steps, "validation_loss": loss})

    def _write(self, row: Mapping[str, Any]) -> None:
        self._config.folder.mkdir(parents=True, exist_ok=True)
        with (self._config.folder / PROGRESS).open("a+b") as file:
            start = "\n" if _is_torn(file) else ""
            file.write(f"{start}{json.dumps(row)}\n".encode())


def _is_torn(file: IO[bytes]) -> bool:
    """Whether a rank that died has left half a line at the end."""
    if not file.tell():
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def parse(line: bytes) -> dict[str, Any] | None:
    """The report in a line of progress.jsonl, or None where a rank died while it wrote it."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def line(report: Mapping[str, Any]) -> str:
    """A report for people."""
    head = f"step {report['step']}/{report['steps']}"
    if "validation_loss" in report:
        return f"{head}  validation loss {report['validation_loss']:.4f}"
    sizes, idle = report["boundary_bytes_per_token"], report["bubble"]
    replicas = ""
    if "replica_bytes_per_token" in report:
        replicas = f"{report['replica_bytes_per_token']:.4g} to each other replica  "
    return (
        f"{head}  loss {report['loss']:.4f}  {report['tokens_per_s']:.0f} tokens/s  "
        f"{sizes['forward']:.4g} bytes/token forward, {sizes['back']:.4g} back, a boundary  "
        f"{replicas}"
        f"idle {', '.join(f'{share:.0%}' for share in idle)}  "
        f"{report['left_s'] / 60:.1f} min left"
    )
