"""`ternmesh broker`: a mosquitto that only the fleet may use, and who may use it."""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ternmesh.config import ConfigError
from ternmesh_cli.arguments import number
from transports.base import check_node
from transports.mqtt_settings import INBOUND_MESSAGE_MAX, MESSAGE_MAX

if TYPE_CHECKING:
    from ternmesh_cli.broker.folder import Made
    from ternmesh_cli.broker.texts import Account

FLEET = "ternmesh"
_HOST_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_NOTE = "Tell a running mosquitto: systemctl reload mosquitto, or kill -HUP its process."


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway and the boards that it stands in for."""

    name: str
    boards: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `ternmesh broker`."""
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def row(name: str, summary: str, run: Any) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = rows.add_parser(
            name,
            help=summary,
            description=summary.capitalize() + ".",
            formatter_class=parser.formatter_class,
            epilog=parser.epilog,
        )
        made.set_defaults(run_broker=run)
        what = "the folder of the deployment"
        made.add_argument("--dir", type=_path, required=True, metavar="DIR", help=what)
        made.add_argument("--json", action="store_true", help="what was done, as one JSON line")
        return made

    _config_arguments(row("config", "write a folder for a mosquitto of the fleet's own", _config))
    adding = row("add", "give further nodes a password; the others' stay", _add)
    _account_arguments(adding)
    removing = row("remove", "take a node's password away", _remove)
    removing.add_argument("--fleet", help="default: the folder's only one")
    removing.add_argument("--node", action="append", required=True, help="may be repeated")
    row("renew", "make the broker's certificate anew, for the same names", _renew)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit code."""
    code: int = arguments.run_broker(arguments)
    return code


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    _account_arguments(parser)
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        type=_host_name,
        help="by which boards reach the broker: a DNS name or an address; may be repeated",
    )
    parser.add_argument("--port", type=number(1, 65_535), default=8883, help="default: 8883")
    parser.add_argument("--bind", type=_host_name, help="an address (default: all)")
    parser.add_argument("--certificate", type=_path, help="your own, PEM; none is made then")
    parser.add_argument("--key", type=_path, help="of your own certificate, PEM")
    parser.add_argument(
        "--place", type=_place, help="where the folder will lie (default: where it is made)"
    )
    parser.add_argument(
        "--user", type=_user, default="mosquitto", help="whom the broker becomes, if root"
    )
    parser.add_argument(
        "--message-max",
        type=number(256, INBOUND_MESSAGE_MAX),
        default=MESSAGE_MAX,
        help=f"bytes of frames in one message (default: {MESSAGE_MAX})",
    )
    parser.add_argument(
        "--connections-max", type=number(2, 1_000_000), default=1024, help="default: 1024"
    )


def _account_arguments(parser: argparse.ArgumentParser) -> None:
    what = f"default: the folder's only one, {FLEET} in a new folder"
    parser.add_argument("--fleet", help=what)
    parser.add_argument("--node", action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--gateway",
        action="append",
        default=[],
        type=_gateway,
        metavar="NAME=BOARD,...",
        help="its new boards, for which it speaks on the network; may be repeated",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the passwords once, and write no files with them"
    )


def _config(arguments: argparse.Namespace) -> int:
    from ternmesh_cli.broker import folder as disk
    from ternmesh_cli.broker.texts import BrokerSettings, wanted
    from transports.mqtt_tls import check_certificate

    folder: Path = arguments.dir
    own = arguments.certificate, arguments.key
    if (own[0] is None) != (own[1] is None):
        raise ConfigError("--certificate and --key belong together: name both or none")
    if own[0] is None and not arguments.name:
        raise ConfigError("--name is missing: by what name or address do boards reach the broker?")
    try:
        if own[0] is not None:
            check_certificate(str(own[0]), str(own[1]))
        accounts = wanted(arguments.fleet or FLEET, _nodes(arguments), ())
        broker = BrokerSettings(
            folder=arguments.place or PurePosixPath(folder),
            certificate=str(own[0] or ""),
            key=str(own[1] or ""),
            port=arguments.port,
            bind=arguments.bind or "",
            user=arguments.user,
            message_max=arguments.message_max,
            connections_max=arguments.connections_max,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    disk.begin(folder)
    if own[0] is None:
        disk.certify(folder, arguments.name, datetime.now(UTC))
    made = disk.add(folder, accounts)
    disk.finish(folder, broker)
    where = arguments.name[0] if arguments.name else "NAME"
    url = f"mqtts://{f'[{where}]' if ':' in where else where}:{arguments.port}"
    start = f"mosquitto -c {broker.folder}/mosquitto.conf"
    _tell(arguments, folder, made, {"url": url, "start": start})
    return 0


def _add(arguments: argparse.Namespace) -> int:
    from ternmesh_cli.broker import folder as disk
    from ternmesh_cli.broker.texts import wanted

    folder: Path = arguments.dir
    nodes = _nodes(arguments)
    if not nodes:
        raise ConfigError("nobody to add: name a --node, or a --gateway with boards")
    try:
        known = disk.known(folder)
        accounts = wanted(_fleet(arguments.fleet, known), nodes, known)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _tell(arguments, folder, disk.add(folder, accounts), {"note": _NOTE})
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    from ternmesh_cli.broker import folder as disk
    from ternmesh_cli.broker.texts import Account

    folder: Path = arguments.dir
    fleet = _fleet(arguments.fleet, disk.known(folder))
    accounts = [Account(fleet, node) for node in arguments.node]
    for account in accounts:
        disk.remove(folder, account)
    removed = [account.username for account in accounts]
    if arguments.json:
        print(json.dumps({"folder": str(folder), "removed": removed, "note": _NOTE}))
    else:
        print(f"removed {', '.join(removed)}. {_NOTE}")
    return 0


def _renew(arguments: argparse.Namespace) -> int:
    from ternmesh_cli.broker import folder as disk

    folder: Path = arguments.dir
    names = disk.server_names(folder)
    disk.certify(folder, names, datetime.now(UTC))
    if arguments.json:
        print(json.dumps({"folder": str(folder), "names": names, "note": _NOTE}))
    else:
        print(f"a new certificate for {', '.join(names)}. {_NOTE}")
    return 0


def _tell(arguments: argparse.Namespace, folder: Path, made: "Made", more: dict[str, str]) -> None:
    """Print what was done; passwords only where they go nowhere else."""
    from ternmesh_cli.broker.folder import hand_out

    gateways = {gateway.name: gateway.boards for gateway in arguments.gateway}
    files = [] if arguments.show else hand_out(folder, made, gateways)
    rows: list[dict[str, str | None]] = [
        {"fleet": account.fleet, "role": account.role, "username": own.username}
        | ({"password": own.password} if arguments.show else {})
        for account, own in made.items()
    ]
    if arguments.json:
        content = {"folder": str(folder), "accounts": rows, "files": list(map(str, files)), **more}
        print(json.dumps(content))
        return
    for row in rows:
        print("  ".join(str(value) for value in row.values() if value))
    for path in files:
        print(f"wrote {path}")
    for value in more.values():
        print(value)


def _fleet(given: str | None, known: "Sequence[Account]") -> str:
    """The fleet that is meant; ConfigError where the folder has several."""
    fleets = sorted({account.fleet for account in known})
    if given is None and len(fleets) > 1:
        raise ConfigError(f"this broker has the fleets {', '.join(fleets)}: say --fleet")
    return given or (fleets[0] if fleets else FLEET)


def _nodes(arguments: argparse.Namespace) -> list[str]:
    gateways: Sequence[Gateway] = arguments.gateway
    nodes: list[str] = [*arguments.node, *(board for g in gateways for board in g.boards)]
    if taken := {gateway.name for gateway in gateways} & {*nodes, "host"}:
        raise ConfigError(f"a gateway may not have a board's name: {', '.join(sorted(taken))}")
    return nodes


def _gateway(text: str) -> Gateway:
    name, equals, boards = text.partition("=")
    if not (name and equals and boards):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=BOARD,BOARD")
    try:
        check_node(name)  # it becomes the name of a file
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return Gateway(name, tuple(boards.split(",")))


def _path(text: str) -> Path:
    path = Path(text).absolute()  # Symlinks stay: a certificate's leads to the newest.
    _line(str(path))
    return path


def _place(text: str) -> PurePosixPath:
    return PurePosixPath(_line(text))


def _line(text: str) -> str:
    """A path that can stand in mosquitto.conf."""
    if "\n" in text:
        raise argparse.ArgumentTypeError(f"{text!r} has a line end: choose another path")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8: choose another path") from error
    return text


def _user(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a user")
    return text


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no DNS name or address")
    return text
