"""What a long benchmark has done so far: one line for each finished part, kept over restarts.

A part stays valid while the code that it ran stays the same: comments and docstrings do not count.
Where the code has changed and one part, measured anew, comes out the same to the last digit, its
group may be carried over: each run is deterministic, so what the group exercises did not change.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.result import RESULTS


class Parts:
    """The finished parts of one benchmark; `fingerprint` is that of the code and settings."""

    def __init__(self, name: str, fingerprint: str, folder: Path = RESULTS / "parts") -> None:
        self._path = folder / f"{name}.jsonl"
        self._fingerprint = fingerprint

    def all(self) -> dict[str, Any]:
        """The valid parts by name."""
        return {r["part"]: r["value"] for r in self._rows() if self._is_valid(r)}

    def old(self) -> dict[str, Any]:
        """By name, what other code made last of all parts."""
        return {r["part"]: r["value"] for r in self._rows() if not self._is_valid(r)}

    def carried(self) -> list[str]:
        """The valid parts that older code has measured."""
        return [r["part"] for r in self._rows() if self._is_valid(r) and "carried_from" in r]

    def add(self, part: str, value: Any) -> None:
        """Keep a part at once: the process may be killed after it."""
        self._write({"part": part, "fingerprint": self._fingerprint, "value": value})

    def carry_over(self, shown_by: str, group: Iterable[str], ignored: Iterable[str]) -> bool:
        """Take the old values of `group` as valid if part `shown_by` came out the same; if it did.

        Its value is valid already; what is `ignored` of it (times, say) may differ.
        """
        value, was = self.all().get(shown_by), self.old().get(shown_by)
        if value is None or was is None or _without(value, ignored) != _without(was, ignored):
            return False
        origin = {r["part"]: r["fingerprint"] for r in self._rows() if not self._is_valid(r)}
        valid, old = self.all(), self.old()
        for part in group:
            if part in old and part not in valid:
                row = {"part": part, "fingerprint": self._fingerprint, "value": old[part]}
                self._write({**row, "carried_from": origin[part], "shown_by": shown_by})
        return True

    def _rows(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def _is_valid(self, row: Mapping[str, Any]) -> bool:
        return bool(row["fingerprint"] == self._fingerprint)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _without(value: Mapping[str, Any], ignored: Iterable[str]) -> dict[str, Any]:
    return {key: value[key] for key in value.keys() - set(ignored)}


def fingerprint(settings: object, packages: Iterable[str], without: Iterable[str] = ()) -> str:
    """16 hex digits for `settings` and the code of all imported modules in or below `packages`.

    Those in or below `without` are imported and not exercised.
    """
    digest = hashlib.sha256(repr(settings).encode())
    inside = tuple(f"{package}." for package in packages)
    outside = tuple(f"{package}." for package in without)
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and f"{name}.".startswith(inside) and not f"{name}.".startswith(outside):
            digest.update(name.encode() + code_of(Path(file).read_text()).encode())
    return digest.hexdigest()[:16]


def code_of(source: str) -> str:
    """What a module does, without its comments, docstrings and layout."""
    return ast.dump(without_docstrings(ast.parse(source)))


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree, changed: each docstring is an empty statement."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if is_text and isinstance(first.value.value, str):  # type: ignore[union-attr]
            body[0] = ast.Pass()  # type: ignore[index]
    return tree
