"""`ternmesh logs`: what the units of this machine wrote to the journal, as text."""

import argparse
import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ternmesh.errors import TernmeshError
from ternmesh_cli import keys, process

LEVELS = ("debug", "info", "warning", "err", "crit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    what = "settings of the program (default: all programs)"
    parser.add_argument("--config", type=process.path, metavar="FILE", help=what)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    what = "only what is at least as bad"
    parser.add_argument("-p", "--priority", choices=LEVELS, default="info", help=what)
    process.add_option(parser, "-n", process.number(1, 1_000_000), 200, "lines at most")


def run(arguments: argparse.Namespace) -> int:
    """Print the lines as they come; TernmeshError where there is no journal."""
    role = keys.read(arguments.config).role.name.lower() if arguments.config else "*"
    command = ["journalctl", "--quiet", "--no-pager", "--output=json", f"--unit=ternmesh-{role}"]
    command += ["--all", f"--priority={arguments.priority}", f"--lines={arguments.n}"]  # also long
    command += ["--follow"] * arguments.follow
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as journal:
            assert journal.stdout is not None
            is_empty = True
            for line in journal.stdout:
                print(readable(json.loads(line)), flush=True)
                is_empty = False
    except FileNotFoundError as error:
        raise TernmeshError("this machine has no journal: see where stderr goes") from error
    if is_empty:
        raise TernmeshError("the journal shows nothing of it: does it run, and may you read it?")
    return 0


def readable(entry: Mapping[str, Any]) -> str:
    """An entry of the journal as text: time, unit, level and message."""
    text = entry.get("MESSAGE") or ""
    text = text if isinstance(text, str) else bytes(text).decode(errors="replace")
    try:
        ours = json.loads(text)
        text = "\n".join(str(ours[key]) for key in ("message", "exception") if ours.get(key))
    except (ValueError, AttributeError):
        pass  # a text, of systemd say, and no object of ours
    at = datetime.fromtimestamp(int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6, UTC).astimezone()
    unit = str(entry.get("_SYSTEMD_UNIT", "systemd")).removesuffix(".service")
    is_bad = int(entry.get("PRIORITY", 6)) <= 4
    return f"{at:%Y-%m-%d %H:%M:%S} {unit}: {'! ' if is_bad else ''}{text}"
