"""The README's figures, generated from the newest kept results: `python -m bench readme`."""

import json
import sys
from pathlib import Path
from typing import Any

from bench.result import RESULTS

README = RESULTS.parents[1] / "README.md"
BEGIN, END = "<!-- figures: python -m bench readme -->", "<!-- end of figures -->"


def main(*, check: bool) -> None:
    """Rewrite the README's block of figures, or with `check` exit 1 if it is not up to date."""
    text = README.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    wanted = f"{head}{BEGIN}\n{figures()}{END}{tail}"
    if not check:
        README.write_text(wanted)
    elif wanted != text:
        sys.exit("README.md's figures are not those of docs/results: run `python -m bench readme`")
    else:
        print("README.md's figures match docs/results")


def figures() -> str:
    """One table over the newest result of each benchmark."""
    lines = ["| benchmark | figure | measured | 95 % interval | aim | date, commit |"]
    lines.append("|---|---|---|---|---|---|")
    for result in newest():
        for name, figure in result["figures"].items():
            low, high = figure["ci95"] or (None, None)
            interval = "" if low is None else f"{low:.4g} to {high:.4g}"
            aim = figure["limit"] or ""
            aim += " (missed)" if figure["holds"] is False else ""
            when = f"{result['date']}, {result['commit']}"
            row = [result["bench"], name, f"{figure['value']:.4g}", interval, aim, when]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def newest() -> list[dict[str, Any]]:
    """The newest kept result of each benchmark, by name."""
    latest: dict[str, Path] = {}
    for path in sorted(RESULTS.glob("*.json")):
        latest[path.stem[len("2026-01-01-") :]] = path
    return [json.loads(path.read_text()) for _, path in sorted(latest.items())]
