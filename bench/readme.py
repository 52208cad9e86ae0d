"""Tables of figures from the newest kept results: `python -m bench readme`.

The README has those that had an aim, docs/results/README.md all of them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from bench.result import RESULTS

README, ALL = RESULTS.parents[1] / "README.md", RESULTS / "README.md"
BEGIN, END = "<!-- figures: python -m bench readme -->", "<!-- end of figures -->"


def main(*, check: bool) -> None:
    """Rewrite the figures in both files, or with `check` exit 1 if one is not up to date."""
    for path in (README, ALL):
        text = path.read_text()
        head, rest = text.split(BEGIN)
        _, tail = rest.split(END)
        wanted = f"{head}{BEGIN}\n{figures(with_aim=path == README)}{END}{tail}"
        if not check:
            path.write_text(wanted)
        elif wanted != text:
            sys.exit(f"{path} has other figures than the results: run `python -m bench readme`")
    if check:
        print("the READMEs' figures match docs/results")


def figures(*, with_aim: bool) -> str:
    """One table over the newest result of each benchmark; `with_aim`, of what had an aim."""
    lines = ["| benchmark | figure | measured | 95 % interval | aim | date, commit |"]
    lines.append("|---|---|---|---|---|---|")
    for result in newest():
        for name, figure in result["figures"].items():
            if with_aim and not figure["limit"]:
                continue
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
