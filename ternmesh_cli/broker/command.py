"""`ternmesh broker`: a mosquitto for a fleet, and its accounts."""

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from ternmesh.config import ConfigError
from ternmesh_cli import process
from ternmesh_cli.broker import folder as disk
from ternmesh_cli.broker.texts import Account, new_accounts
from ternmesh_cli.process import Subcommands, add_option, number
from transports.base import HOST, check_node

FLEET = "ternmesh"
_HOST_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_RELOAD = "reload a running mosquitto: systemctl reload mosquitto, or kill -HUP its process."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = Subcommands(parser)
    config = rows.add("config", "write a folder for a mosquitto of the fleet's own", _config)
    add = rows.add("add", "give further boards a password; other passwords stay", _add)
    remove = rows.add("remove", "remove the accounts of boards", _remove)
    renew = rows.add("renew", "replace the broker's certificate, for the same names", _renew)
    what = "the folder of the deployment"
    for row in (config, add, remove, renew):
        row.add_argument("--dir", type=_path, required=True, metavar="DIR", help=what)
    for row in (config, add, remove):
        what = f"default: the folder's only fleet, {FLEET} in a new folder"
        row.add_argument("--fleet", help=what)
        row.add_argument(
            "--node", action="append", default=[], required=row is remove, help="may be repeated"
        )
    for row in (config, add):
        what = "a gateway, and new boards whose accounts it uses; may be repeated"
        row.add_argument(
            "--gateway",
            action="append",
            default=[],
            type=_gateway,
            metavar="NAME=BOARD,...",
            help=what,
        )
    _add_config_arguments(config)


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a DNS name or address at which boards reach the broker; may be repeated"
    parser.add_argument("--name", action="append", required=True, type=_host_name, help=what)
    add_option(parser, "--port", number(1, 65_535), 8883, "TCP port")
    what = "the folder's final path (default: the same as --dir)"
    parser.add_argument("--place", type=_place, help=what)


def _config(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.dir
    try:
        accounts = new_accounts(arguments.fleet or FLEET, _nodes(arguments), ())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    disk.begin(folder)
    disk.certify(folder, arguments.name, datetime.now(UTC))
    _hand_out(arguments, accounts)
    place = arguments.place or PurePosixPath(folder)
    disk.finish(folder, place, arguments.port)
    where = arguments.name[0]
    print(f"mqtts://{f'[{where}]' if ':' in where else where}:{arguments.port}")
    print(f"mosquitto -c {place}/mosquitto.conf")
    return 0


def _add(arguments: argparse.Namespace) -> int:
    nodes = _nodes(arguments)
    if not nodes:
        raise ConfigError("no board to add: name a --node, or a --gateway with boards")
    try:
        present = disk.accounts(arguments.dir)
        accounts = new_accounts(_fleet(arguments.fleet, present), nodes, present)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _hand_out(arguments, accounts)
    print(_note(arguments.dir, *disk.ACCOUNTS))
    return 0


def _hand_out(arguments: argparse.Namespace, accounts: Sequence[Account]) -> None:
    """Add accounts, and say who has one and where its credentials are."""
    made = disk.add(arguments.dir, accounts)
    files = disk.hand_out(arguments.dir, made, dict(arguments.gateway))
    for account in made:
        print(f"{account.fleet}  {account.role}  {account.username}")
    for path in files:
        print(f"wrote {path}")


def _remove(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.dir
    fleet = _fleet(arguments.fleet, disk.accounts(folder))
    accounts = [Account(fleet, node) for node in arguments.node]
    if HOST in arguments.node:
        raise ConfigError("the host needs its account: remove those of boards alone")
    for account in accounts:
        disk.remove(folder, account)
    removed = ", ".join(account.username for account in accounts)
    print(f"removed {removed}. {_note(folder, *disk.ACCOUNTS)}")
    return 0


def _renew(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.dir
    names = disk.server_names(folder)
    disk.certify(folder, names, datetime.now(UTC))
    print(f"a new certificate for {', '.join(names)}. {_note(folder, *disk.CERTIFICATE)}")
    return 0


def _note(folder: Path, *changed: str) -> str:
    """What to do after a change of these files in the folder."""
    place = disk.place(folder)
    if place == PurePosixPath(folder):
        return f"Then {_RELOAD}"
    return f"Copy {' and '.join(changed)} from {folder} to {place} on the broker, then {_RELOAD}"


def _fleet(given: str | None, present: Sequence[Account]) -> str:
    """The given fleet, or the folder's only one; ConfigError where it has several."""
    fleets = sorted({account.fleet for account in present})
    if given is None and len(fleets) > 1:
        raise ConfigError(f"this broker has the fleets {', '.join(fleets)}: name one with --fleet")
    return given or (fleets[0] if fleets else FLEET)


def _nodes(arguments: argparse.Namespace) -> list[str]:
    gateways: Sequence[tuple[str, Sequence[str]]] = arguments.gateway
    nodes: list[str] = [*arguments.node, *(board for _, boards in gateways for board in boards)]
    if taken := {name for name, _ in gateways} & {*nodes, "host"}:
        raise ConfigError(f"a gateway may not have a board's name: {', '.join(sorted(taken))}")
    return nodes


def _gateway(text: str) -> tuple[str, Sequence[str]]:
    """The name of a gateway, and the boards whose accounts it uses."""
    name, equals, boards = text.partition("=")
    if not (name and equals and boards):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=BOARD,BOARD")
    try:
        check_node(name)  # because it becomes the name of a file
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return name, boards.split(",")


def _path(text: str) -> Path:
    path = process.path(text).absolute()
    _line(str(path))
    return path


def _place(text: str) -> PurePosixPath:
    return PurePosixPath(_line(text))


def _line(text: str) -> str:
    """Check a path for mosquitto.conf, which has one setting a line."""
    if "\n" in text:
        raise argparse.ArgumentTypeError(f"{text!r} has a line end: choose another path")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8: choose another path") from error
    return text


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no DNS name or address")
    return text
