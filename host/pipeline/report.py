"""Progress reports of a pipeline: lines of JSON in its folder, and lines for people."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from host.pipeline.config import PipelineConfig

PROGRESS = "progress.jsonl"
ALARM = 1e-3  # drift and reconstruction error of a subspace, relative


class Progress:
    """Writes progress.jsonl; `forward` and `back` are bytes for each token at a boundary."""

    def __init__(self, config: PipelineConfig, forward: float, back: float) -> None:
        self._config = config
        self._bytes = {"forward": forward, "back": back}

    def step(
        self, step: int, loss: float, done: int, wall_s: float, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Report after `step` steps; the last `done` of them took `wall_s` seconds.

        `rows` is what each stage tells: `idle` is the part of the time in which it waited, `sent`
        what it sent in a step since its process began, `activations` and `replicas` parts of that.
        """
        rate = done / wall_s
        config = self._config
        sent = sum(row["sent"] for row in rows)
        row: dict[str, Any] = {
            "step": step,
            "steps": config.steps,
            "loss": loss,
            "tokens_per_s": rate * config.step_tokens,
            "boundary_bytes_per_token": self._bytes,
            "bubble": [round(row["idle"], 4) for row in rows],
            "micro_batch_ms": [round(row["micro_batch_ms"], 2) for row in rows],
            "devices": [row["device"] for row in rows],
            "links": [row["transport"] for row in rows],
            "activation_share": round(sum(row["activations"] for row in rows) / sent, 4),
            "left_s": (config.steps - step) / rate,
        }
        for name in ("drift", "error", "captured"):
            if values := [row[name] for row in rows if name in row]:
                row[name] = values
        if config.replicas.count > 1:
            tokens = config.step_tokens / config.replicas.count
            row["replica_bytes_per_token"] = sum(row["replicas"] for row in rows) / tokens
        self._write(row)

    def validation(self, step: int, loss: float) -> None:
        self._write({"step": step, "steps": self._config.steps, "validation_loss": loss})

    def _write(self, row: Mapping[str, Any]) -> None:
        self._config.folder.mkdir(parents=True, exist_ok=True)
        with (self._config.folder / PROGRESS).open("a+b") as file:
            start = "\n" if _is_torn(file) else ""
            file.write(f"{start}{json.dumps(row)}\n".encode())


def _is_torn(file: IO[bytes]) -> bool:
    """Whether the last line is incomplete, because a rank died."""
    if not file.tell():
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def parse(line: bytes) -> dict[str, Any] | None:
    """The report in a line of progress.jsonl, or None for an incomplete line."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def line(report: Mapping[str, Any]) -> str:
    head = f"step {report['step']}/{report['steps']}"
    if "validation_loss" in report:
        return f"{head}  validation loss {report['validation_loss']:.4f}"
    sizes, idle = report["boundary_bytes_per_token"], report["bubble"]
    replicas, loses = report.get("replica_bytes_per_token"), alarm(report)
    return (
        f"{head}  loss {report['loss']:.4f}  {report['tokens_per_s']:.0f} tokens/s  "
        f"{sizes['forward']:.4g} bytes/token forward, {sizes['back']:.4g} back, a boundary  "
        f"{'' if replicas is None else f'{replicas:.4g} to each other replica  '}"
        f"idle {', '.join(f'{share:.0%}' for share in idle)}  "
        f"{report['left_s'] / 60:.1f} min left{'  ' if loses else ''}{loses}"
    )


def alarm(report: Mapping[str, Any]) -> str:
    """What a diagnosis says of a report: a sentence where the subspace loses too much, or ""."""
    worst = {name: max(report.get(name, [0.0])) for name in ("drift", "error")}
    if not max(worst.values()) > ALARM:
        return ""
    return (
        f"ALARM: what crosses is not what was computed (drift {worst['drift']:.2g}, reconstruction "
        f"error {worst['error']:.2g}, at most {ALARM:g})"
    )
