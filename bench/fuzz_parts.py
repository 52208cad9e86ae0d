"""Which targets have been fuzzed long enough, in one file over restarts: a line for each.

A line stays valid until code changes that its target ran (`bench.fuzz_reach`). A target in which
something was found has none.
"""

import json
from pathlib import Path
from threading import Lock
from typing import Any

from bench.fuzz_reach import changed_since, fingerprint
from bench.fuzz_targets.target import Target
from bench.result import RESULTS

Row = dict[str, Any]


class FuzzParts:
    """The finished targets; threads may add theirs."""

    def __init__(self, path: Path = RESULTS / "parts" / "fuzz.jsonl") -> None:
        self._path = path
        self._lock = Lock()

    def valid(self, target: Target, seconds: float) -> Row | None:
        """What a run of at least `seconds` came to, if its code is the same still."""
        row = self._rows().get(target.name)
        if row is None or row["seconds"] < seconds:
            return None
        is_same = row["fingerprint"] == fingerprint(_settings(target), row["reach"])
        return row if is_same else None

    def add(self, target: Target, row: Row, reach: dict[str, list[str]], begun: float) -> bool:
        """Keep a run at once, as the program may be stopped; if its code did not change meanwhile.

        `begun`: when the run began, in seconds as the times of files have it.
        """
        if row["findings"] or changed_since(reach, begun):
            return False
        marked = {"target": target.name, "fingerprint": fingerprint(_settings(target), reach)}
        with self._lock:
            rows = self._rows() | {target.name: {**marked, **row, "reach": reach}}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self._path.with_suffix(".new")
            unfinished.write_text("".join(f"{json.dumps(rows[name])}\n" for name in sorted(rows)))
            unfinished.replace(self._path)
        return True

    def _rows(self) -> dict[str, Row]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return {row["target"]: row for row in map(json.loads, lines)}


def _settings(target: Target) -> tuple[object, ...]:
    refusals = sorted(error.__name__ for error in target.refusals)
    return (refusals, target.length_max, target.memory_max)
