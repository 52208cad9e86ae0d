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
from transports.base import HOST

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
        one, is_needed = "a board; may be repeated", row is not config
        row.add_argument("--node", action="append", default=[], required=is_needed, help=one)
    what = "a DNS name or address at which boards reach the broker; may be repeated"
    config.add_argument("--name", action="append", required=True, type=_host_name, help=what)
    add_option(config, "--port", number(1, 65_535), 8883, "TCP port")
    what = "the folder's final path (default: the same as --dir)"
    config.add_argument("--place", type=_place, help=what)


def _config(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.dir
    try:
        accounts = new_accounts(arguments.fleet or FLEET, arguments.node, ())
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
    try:
        present = disk.accounts(arguments.dir)
        accounts = new_accounts(_fleet(arguments.fleet, present), arguments.node, present)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _hand_out(arguments, accounts)
    print(_note(arguments.dir, *disk.ACCOUNTS))
    return 0


def _hand_out(arguments: argparse.Namespace, accounts: Sequence[Account]) -> None:
    """Add accounts, and say who has one and where its credentials are."""
    made = disk.add(arguments.dir, accounts)
    files = disk.hand_out(arguments.dir, made)
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
