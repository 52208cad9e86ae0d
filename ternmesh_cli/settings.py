"""`ternmesh settings`: what the host has set on its boards, and what is in force there."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from ternmesh.config import LOG_LEVELS, ConfigError
from ternmesh.federated.management import LIMITS, settings_text
from ternmesh.security.membership import ALL
from ternmesh_cli.process import add_config, add_json
from ternmesh_cli.status import NO_REPORT, ask_boards, table

DEFAULT = "default"  # as the board's own configuration says
WORDS: Mapping[str, Mapping[str, int]] = {
    "pause": {"off": 0, "on": 1},
    "log_level": {level.lower(): place for place, level in enumerate(LOG_LEVELS)},
}
TAKEN_S = 5.0  # how long to wait until all boards have taken what was set
_EXAMPLE = """\
settings of a board:
  pause=on          no training; off: it goes on
  pace_s=60         least seconds between the begin of two rounds
  log_level=debug   or info, warning, error
  silence=0.05      its own share in place of the host's [run] silence
  NAME=default      as the board's own configuration says
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.epilog = _EXAMPLE
    add_config(parser, "the configuration of the running host")
    add_json(parser)
    what = "a board, or all; then what to set, as NAME=VALUE"
    parser.add_argument("words", nargs="*", metavar="WORD", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Set what was named, wait for the boards, and show the settings."""
    words = list(arguments.words)
    name = words.pop(0) if words and "=" not in words[0] else ALL
    changes = {"set": dict(map(read_setting, words))} if words else {}
    answer = ask_boards(
        arguments.config,
        name,
        changes,
        lambda row: row["mute"] or row["refused"] or not row["behind"],
        TAKEN_S if words else 0.0,
    )
    if arguments.json:
        print(json.dumps(answer))
    else:
        cells = [
            (r["name"], settings_text(r["wanted"]), settings_text(r["in_force"]), note(r))
            for r in answer["boards"]
        ]
        for line in table(("board", "wanted", "in force", ""), cells):
            print(line)
    return 0


def read_setting(text: str) -> tuple[str, int | None]:
    """The name and the value in `NAME=VALUE`; None for the default. ConfigError."""
    name, _, value = text.partition("=")
    if name not in LIMITS:
        raise ConfigError(f"{text!r} is no setting: write NAME=VALUE, with {', '.join(LIMITS)}")
    if value == DEFAULT:
        return name, None
    words = WORDS.get(name, {})
    low, high = LIMITS[name]
    scale = 1000 if name == "silence" else 1  # a share, in thousandths
    allowed = ", ".join(words) or f"{low} to {high / scale:g}"
    try:
        number = words[value] if words else scale * float(value)
        if not low <= number <= high or (number % 1 and scale == 1):
            raise ValueError
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{name} is {value!r}: it must be {allowed}, or {DEFAULT}") from error
    return name, round(number)


def note(row: Mapping[str, Any]) -> str:
    """Why what a board does is not what the host wants, and what it runs."""
    if row["software"] is None:
        return NO_REPORT if row["mute"] else "has not reported yet"
    if row["refused"]:
        return "refused: see the log of the board"
    if row["behind"]:
        return "has not taken them yet"
    denied = sorted(row["wanted"].items() - row["in_force"].items())
    names = ", ".join(name for name, _ in denied)
    return f"its [remote] does not allow {names}" if denied else f"ternmesh {row['software']}"
