"""`ternmesh settings`: what the host has set on its boards, and what is in force there."""

import argparse

from ternmesh.config import ConfigError
from ternmesh.federated.management import LIMITS, WORDS, are_allowed, settings_text
from ternmesh.security.membership import ALL
from ternmesh_cli.process import add_config, add_json
from ternmesh_cli.status import ask_boards, boards_json
from ternmesh_cli.status_text import NO_REPORT, table
from ternmesh_service.status import ManagedBoard

DEFAULT = "default"  # as the board's own configuration says
MUTE = ("mute=off", "mute=on")  # kept by the host
TAKEN_S = 5.0  # how long to wait until all boards have taken what was set
_EXAMPLE = """\
settings of a board:
  pause=on          no training; off: it goes on
  pace_s=60         least seconds between the begin of two rounds
  log_level=debug   or info, warning, error
  silence=0.05      its own share in place of the host's [run] silence
  threshold=0.6     no label for predictions that are less probable
  mute=on           its updates count nothing; off: as its reputation says
  NAME=default      as the board's own configuration says
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.epilog = _EXAMPLE
    add_config(parser, "the configuration of the running host")
    add_json(parser)
    parser.add_argument("name", nargs="?", default=ALL, metavar="BOARD", help="a board, or all")
    what = "what to set there; without it the settings are shown"
    parser.add_argument("changes", nargs="*", metavar="NAME=VALUE", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Set what was named, wait for the boards, and show the settings."""
    muted = {text: text == MUTE[1] for text in arguments.changes if text in MUTE}
    changes = dict(map(read_setting, [text for text in arguments.changes if text not in MUTE]))
    boards = ask_boards(
        arguments.config,
        arguments.name,
        {"set": changes, **({"mute": any(muted.values())} if muted else {})},
        lambda board: not board.behind,
        TAKEN_S if changes else 0.0,
    )
    if arguments.json:
        print(boards_json(boards))
        return 0
    cells = [
        (board.name, settings_text(board.wanted), settings_text(board.in_force), note(board))
        for board in boards
    ]
    print("\n".join(table(("board", "wanted", "in force", ""), cells)))
    return 0


def read_setting(text: str) -> tuple[str, float | None]:
    """The name and the value in `NAME=VALUE`; None for the default. ConfigError."""
    name, _, value = text.partition("=")
    if name not in LIMITS:
        raise ConfigError(f"{text!r} is no setting: write NAME=VALUE, with {', '.join(LIMITS)}")
    if value == DEFAULT:
        return name, None
    words = WORDS.get(name, ())
    try:
        number = words.index(value) if words else float(value)
        if not are_allowed({name: number}):
            raise ValueError
    except ValueError as error:
        allowed = ", ".join(words) or f"0 to {LIMITS[name]}"
        raise ConfigError(f"{name} is {value!r}: it must be {allowed}, or {DEFAULT}") from error
    return name, number


def note(board: ManagedBoard) -> str:
    """Why what a board does is not what the host wants, and what it runs."""
    if board.software is None:
        return NO_REPORT
    if board.behind:
        return "has not taken them yet"
    denied = sorted(board.wanted.keys() - board.in_force.keys())
    ternmesh = f"ternmesh {board.software}"
    return f"its [remote] does not allow {', '.join(denied)}" if denied else ternmesh
