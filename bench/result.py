"""The form of every result: a table for people, a JSON line for machines, a dated file."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "docs" / "results"
# Two-sided 95 % points of Student's t for 1 to 15 degrees of freedom.
_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One claim: the mean, its limit (such as ">=0.90"), and the 95 % interval over seeds."""

    value: float
    limit: str | None = None
    ci95: tuple[float, float] | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the value meets the limit; None where there is none."""
        if self.limit is None:
            return None
        sign, bound = self.limit[:2], float(self.limit[2:])
        return self.value >= bound if sign == ">=" else self.value <= bound


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark measured. `notes` say what is simulated, small, or was not tried."""

    bench: str
    figures: Mapping[str, Figure]
    peers: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False


def mean_figure(values: Sequence[float], limit: str | None = None) -> Figure:
    """The mean of one value per seed, with Student's 95 % interval (needs 2 to 16 seeds)."""
    mean = float(np.mean(values))
    half = _T95[len(values) - 2] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Figure(mean, limit, (mean - half, mean + half))


def show(result: Result, *, keep: bool) -> None:
    """Print the table and the JSON line; with `keep`, also write the dated file."""
    print(f"\n{result.bench}{' (quick: coarse figures)' if result.quick else ''}")
    for name, figure in result.figures.items():
        interval = f"  [{figure.ci95[0]:.4g}, {figure.ci95[1]:.4g}]" if figure.ci95 else ""
        verdict = {None: "", True: f"  {figure.limit} holds", False: f"  {figure.limit} MISSED"}
        print(f"  {name:32} {figure.value:>12.5g}{interval}{verdict[figure.holds]}")
    for name, value in result.peers.items():
        print(f"  peer {name:27} {value:>12.5g}")
    for note in result.notes:
        print(f"  note: {note}")
    content = _content(result)
    if keep:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{content['date']}-{result.bench}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"  kept in {path.relative_to(RESULTS.parents[1])}")
    print(json.dumps(content))


def _content(result: Result) -> dict[str, Any]:
    figures = {
        name: {**asdict(figure), "holds": figure.holds} for name, figure in result.figures.items()
    }
    return {
        "bench": result.bench,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "quick": result.quick,
        "figures": figures,
        "peers": dict(result.peers),
        "notes": list(result.notes),
        "details": dict(result.details),
    }


def commit() -> str:
    """The commit that is measured, with '+' where the tree has changes (kept results are none)."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results")
    return head + "+" * bool(changed) or "unknown"


def _git(*ask: str) -> str:
    root = Path(__file__).parents[1]
    command = ["git", "-C", str(root), *ask]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
