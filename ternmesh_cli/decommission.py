"""`ternmesh decommission`: the end of a board, on the board itself or on its host."""

import argparse
import json
from contextlib import suppress

from ternmesh.config import ConfigError
from ternmesh.security.identity import Role
from ternmesh_cli import enrol, keys, process
from ternmesh_cli.broker import command as broker
from ternmesh_service.control_socket import ControlError
from ternmesh_service.wipe import wipe
from ternmesh_store.database import DamagedError, FormatError
from ternmesh_store.state_file import StateFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    process.add_config(
        parser, "of the board: wipe its keys and state; of the host: exclude a board"
    )
    process.add_json(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="on the host: of the board")
    parser.add_argument("--yes", action="store_true", help="do it: there is no way back")
    what = "on the host: also remove its account from this folder of `ternmesh broker config`"
    parser.add_argument("--broker", type=process.path, metavar="DIR", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Do each part in its order, and say each when it is done: all may be repeated."""
    end = keys.read(arguments.config)
    if end.role is Role.HOST:
        _on_host(arguments, end)
    else:
        _on_board(arguments, end)
    return process.ExitCode.DONE


def _on_host(arguments: argparse.Namespace, end: keys.End) -> None:
    name = arguments.name
    if name is None:
        raise ConfigError(f"{arguments.config} is of a host: name the board to decommission")
    if not arguments.yes:
        raise ConfigError(
            f"this excludes {name} for good, and it wipes itself: if that is intended, add --yes"
        )
    enrol.revoke(arguments, "decommission")
    _say(arguments, "key", f"revoked for good; {name} is told to wipe itself when it shows up")
    _say(arguments, "gateways", "they learn of it within a minute; a gateway itself is not told")
    if arguments.broker is not None:
        _say(arguments, "broker", broker.drop_account(arguments.broker.absolute(), end.fleet, name))


def _on_board(arguments: argparse.Namespace, end: keys.End) -> None:
    if arguments.name is not None or arguments.broker is not None:
        raise ConfigError(f"{arguments.config} is of a board: NAME and --broker are for the host")
    identity = end.security.path(end.folder)
    if not arguments.yes:
        raise ConfigError(
            f"this wipes the private key {identity} and the state in {end.folder}, for good: if "
            "that is intended, add --yes"
        )
    if end.ask({"command": "status"}) is not None:
        raise ControlError(f"{end.name} runs: stop it, and decommission it then")
    state = StateFile(end.folder)
    if state.path.exists():
        with suppress(DamagedError, FormatError):
            state.content()  # StoreError where a process uses it without a control socket
    if end.folder.is_dir() or identity.exists():
        wipe(end.folder, identity)
    _say(arguments, "board", f"the keys and the state of {end.name} are wiped")


def _say(arguments: argparse.Namespace, part: str, sentence: str) -> None:
    print(json.dumps({part: sentence}) if arguments.json else f"{part:12} {sentence}", flush=True)
