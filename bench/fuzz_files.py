"""The folder of a fuzzing run: what its parent puts there, and what the run leaves there."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CORPUS, FINDINGS, STATS, REACH = "corpus", "findings", "stats.json", "reach.json"
# Whose branches and comparisons guide the fuzzer: our packages, and the readers that are Python.
INSTRUMENTED = (
    *("ternmesh", "ternmesh_store", "transports", "edge", "host", "models"),
    *("ternmesh_cli", "bench.fuzz_targets", "tomllib"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error that no target may raise; `input` is the shortest that raised it."""

    where: str
    what: str
    input: str


@dataclass(frozen=True, slots=True)
class Stats:
    """How far a run has come: inputs tried, and CPU seconds of its process."""

    executions: int
    seconds: float
    findings: tuple[Finding, ...]
    slowest_s: float = 0.0


def write_stats(folder: Path, stats: Stats) -> None:
    """Replace the stats of the run in `folder`."""
    unfinished = folder / f"{STATS}.new"
    unfinished.write_text(json.dumps(asdict(stats)))
    unfinished.replace(folder / STATS)


def read_stats(folder: Path) -> Stats:
    """The stats of the run in `folder`; zeros where it never wrote any."""
    path = folder / STATS
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    findings = tuple(Finding(**item) for item in content.pop("findings", ()))
    return Stats(**{"executions": 0, "seconds": 0.0} | content, findings=findings)
