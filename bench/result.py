"""The form of every result: a table for people, a JSON line for machines, a dated file."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

RESULTS = Path(__file__).parents[1] / "docs" / "results"
BOOTSTRAP = 4000  # times that seeds and items are drawn anew
# Two-sided 95 % points of Student's t for 1 to 15 degrees of freedom.
_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One claim: its value, a limit (such as ">=0.90") and a 95 % interval, where there are any."""

    value: float
    limit: str | None = None
    ci95: tuple[float, float] | None = None

    @property
    def holds(self) -> bool | Literal["not shown"] | None:
        """Whether value and interval meet the limit.

        "not shown" where the limit is within the interval; None where there is no limit.
        """
        if self.limit is None:
            return None
        sign, bound = self.limit[:2], float(self.limit[2:])
        ends = self.ci95 or (self.value, self.value)
        met = {end >= bound if sign == ">=" else end <= bound for end in ends}
        return met.pop() if len(met) == 1 else "not shown"


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
    """The mean of one value per seed (1 to 16), from 2 on with Student's 95 % interval."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return Figure(mean, limit)
    half = _T95[len(values) - 2] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Figure(mean, limit, (mean - half, mean + half))


def items_figure(values: ArrayLike, limit: str | None = None) -> Figure:
    """The mean over seeds and evaluated items, with an interval that covers both.

    `values` [seeds, items] has the same items in each row: 100 for a right answer, or for paired
    differences 100 times (right before - right after). Seeds and items are drawn anew, each with
    replacement ("pigeonhole bootstrap": Owen, Annals of Applied Statistics, 2007). With fewer
    than about five seeds the part of the seeds is too narrow.
    """
    table = np.asarray(values, dtype=np.float64)
    seeds, items = table.shape
    rng = np.random.default_rng(0)
    seed_counts = rng.multinomial(seeds, np.full(seeds, 1 / seeds), BOOTSTRAP)
    item_counts = rng.multinomial(items, np.full(items, 1 / items), BOOTSTRAP)
    means = ((seed_counts @ table) * item_counts).sum(axis=1) / table.size
    low, high = np.quantile(means, (0.025, 0.975))
    return Figure(float(table.mean()), limit, (float(low), float(high)))


def show(result: Result, *, measured: str, keep: bool) -> None:
    """Print the table and the JSON line; with `keep`, also write the dated file.

    `measured` is the commit that the tree was at when the measurement began.
    """
    coarse = " (quick: coarse figures)" if result.quick else ""
    print(f"\n{result.bench}{coarse}, on {_cpu_model()}, {os.cpu_count()} cores")
    for name, figure in result.figures.items():
        interval = f"  [{figure.ci95[0]:.4g}, {figure.ci95[1]:.4g}]" if figure.ci95 else ""
        verdict = {None: "", True: "holds", False: "MISSED", "not shown": "NOT SHOWN"}[figure.holds]
        aim = f"  {figure.limit} {verdict}" if figure.limit else ""
        print(f"  {name:32} {figure.value:>12.5g}{interval}{aim}")
    for name, value in result.peers.items():
        print(f"  peer {name:27} {value:>12.5g}")
    for note in result.notes:
        print(f"  note: {note}")
    content = _content(result, measured)
    if keep:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{content['date']}-{result.bench}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"  kept in {path.relative_to(RESULTS.parents[1])}")
    print(json.dumps(content))


def _content(result: Result, measured: str) -> dict[str, Any]:
    figures = {
        name: {**asdict(figure), "holds": figure.holds} for name, figure in result.figures.items()
    }
    return {
        "bench": result.bench,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": measured,
        "machine": machine(),
        "quick": result.quick,
        "figures": figures,
        "peers": dict(result.peers),
        "notes": list(result.notes),
        "details": dict(result.details),
    }


def commit() -> str:
    """The commit of the tree, with '+' where the tree has changes (kept results are none)."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results")
    return head + "+" * bool(changed) or "unknown"


def is_clean(measured: str) -> bool:
    """Whether a result's commit is in this repository, with nothing changed beside it."""
    known = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{measured}^{{commit}}")
    return bool(known)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
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
