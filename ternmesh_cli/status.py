"""`ternmesh status`: how a running host or node stands, as text or as JSON."""

import argparse
import json
import tomllib
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh_cli.status_text import describe
from transports.control_socket import ask

SOCKET = "control.sock"  # in the state_dir of a host or node


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh status`."""
    whom = parser.add_mutually_exclusive_group(required=True)
    whom.add_argument("--config", type=Path, metavar="FILE", help="that of the running process")
    whom.add_argument("--socket", type=Path, metavar="PATH", help="its control socket")
    parser.add_argument("--json", action="store_true", help="all there is, as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    answer = ask(arguments.socket or _socket_of(arguments.config), {"command": "status"})
    print(json.dumps(answer, indent=1) if arguments.json else "\n".join(describe(answer)))
    return 0


def _socket_of(path: Path) -> Path:
    """Where the process with this configuration answers, though the rest of it may be wrong."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    state_dir, chosen = content.get("state_dir"), content.get("control_socket")
    if not isinstance(state_dir, str) or not isinstance(chosen, str | None):
        raise ConfigError(f"{path}: state_dir or control_socket is missing or no text")
    return path.resolve().parent / (chosen or Path(state_dir) / SOCKET)
