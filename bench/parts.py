"""What a long benchmark has done so far: one line for each finished part, kept over restarts.

A part stays valid while the code that it ran stays the same: comments and docstrings do not count.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
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
        if not self._path.exists():
            return {}
        rows = map(json.loads, self._path.read_text().splitlines())
        return {r["part"]: r["value"] for r in rows if r["fingerprint"] == self._fingerprint}

    def add(self, part: str, value: Any) -> None:
        """Keep a part at once: the process may be killed after it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        row = {"part": part, "fingerprint": self._fingerprint, "value": value}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def forget_old(self) -> None:
        """Drop the lines that other code has made."""
        parts = self.all()
        self._path.unlink(missing_ok=True)
        for part, value in parts.items():
            self.add(part, value)


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
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if is_text and isinstance(first.value.value, str):  # type: ignore[union-attr]
            body[0] = ast.Pass()  # type: ignore[index]
    return ast.dump(tree)
