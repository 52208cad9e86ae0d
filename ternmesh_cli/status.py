"""`ternmesh status`: the status of a running host, board, gateway or split training, as text."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
from ternmesh.federated.management import settings_text
from ternmesh_cli.keys import read_end, read_host, socket_of
from ternmesh_cli.process import add_json
from ternmesh_cli.status_text import NO_REPORT, describe
from ternmesh_service import commands
from ternmesh_service.control_socket import BOARDS, ControlError, ask
from ternmesh_service.status import ManagedBoard, from_json, read_status, to_json

REPORT_S = 10.0  # how long to wait for the report of a board
POLL_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    target = parser.add_mutually_exclusive_group()
    what = "the configuration of the running process (default: the one here or in /etc/ternmesh)"
    target.add_argument("--config", type=Path, metavar="FILE", help=what)
    target.add_argument("--socket", type=Path, metavar="PATH", help="its control socket")
    what = "with --config of a host: ask this board over the link, or all"
    parser.add_argument("--node", metavar="NAME", help=what)
    add_json(parser, "print the whole answer as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if arguments.config is None and arguments.socket is None:
        arguments.config = commands.find((commands.HOST,) if arguments.node else commands.ALL)
    if arguments.node is not None:
        return _ask_board(arguments)
    socket = arguments.socket or socket_of(arguments.config, read_end(arguments.config))
    answer = ask(socket, {"command": "status"})
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        print(commands.as_run("\n".join(describe(read_status(answer)))))
    return 0


def ask_boards(
    path: Path,
    name: str,
    request: Mapping[str, Any],
    is_done: Callable[[ManagedBoard], bool],
    wait_s: float,
) -> tuple[ManagedBoard, ...]:
    """What the running host says of one board, or all; a later answer, until all are done."""
    end = read_host(path)
    give_up_at = time.monotonic() + wait_s
    answer = ask(end.socket, {BOARDS: name, **request})
    if "role" in answer:
        raise ControlError("this host trains a split model: it sets nothing on boards")
    while True:
        try:
            boards = from_json(tuple[ManagedBoard, ...], answer["boards"])
        except (KeyError, ValueError) as error:
            raise ControlError(f"the host runs another version of ternmesh ({error})") from error
        if all(map(is_done, boards)) or time.monotonic() >= give_up_at:
            return boards
        time.sleep(POLL_S)
        answer = ask(end.socket, {BOARDS: name})


def _ask_board(arguments: argparse.Namespace) -> int:
    """Ask for a report; where none comes, show the last one."""
    if arguments.config is None:
        raise ConfigError("--node needs --config with the file of a host")
    boards = ask_boards(
        arguments.config,
        arguments.node,
        {"inquire": True},
        lambda board: not board.awaited,
        REPORT_S,
    )
    if arguments.json:
        print(boards_json(boards))
    else:
        print("\n\n".join("\n".join(_report(board)) for board in boards))
    return 0


def boards_json(boards: tuple[ManagedBoard, ...]) -> str:
    return json.dumps({"boards": [to_json(board) for board in boards]})


def _report(board: ManagedBoard) -> Iterator[str]:
    if board.reported_s_ago is None:
        yield f"{board.name}: {NO_REPORT}"
        return
    late = f"no answer within {REPORT_S:.0f} s, so this is its last: " if board.awaited else ""
    yield f"{late}report of {board.name}, {board.reported_s_ago:.0f} s old"
    own = {"software": board.software, "settings": settings_text(board.in_force) or "none"}
    yield from (f"{name:16} {value}" for name, value in {**own, **board.report}.items())
