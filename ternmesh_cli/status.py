"""`ternmesh status`: how a running host or node stands, as text or as JSON."""

import argparse
import json
from pathlib import Path

from ternmesh_cli.ends import read_end, socket_of
from ternmesh_cli.status_text import describe
from transports.control_socket import ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh status`."""
    whom = parser.add_mutually_exclusive_group(required=True)
    whom.add_argument("--config", type=Path, metavar="FILE", help="that of the running process")
    whom.add_argument("--socket", type=Path, metavar="PATH", help="its control socket")
    parser.add_argument("--json", action="store_true", help="all there is, as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    socket = arguments.socket or socket_of(arguments.config, read_end(arguments.config))
    answer = ask(socket, {"command": "status"})
    print(json.dumps(answer, indent=1) if arguments.json else "\n".join(describe(answer)))
    return 0
