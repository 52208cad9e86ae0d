"""`ternmesh enrol`: who belongs to a fleet. Identities travel as one line, by hand or QR code."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
from ternmesh.errors import TrustError
from ternmesh.trust.identity import (
    PUBLIC_MARK,
    Identity,
    PublicIdentity,
    Role,
    identity_text,
    parse_identity,
)
from ternmesh.trust.roster import HOST, found_fleet
from ternmesh_cli.arguments import real
from ternmesh_cli.ends import read_end, socket_of
from ternmesh_cli.keys import keyring_at
from ternmesh_store.keyring import Keyring, TrustConfig, read_identity_file
from transports.control_socket import NobodyAnswers, ask
from transports.link_config import LinkConfig

TEXT_FILE_MAX = 4096  # bytes of a file with a public identity
_EXAMPLE = """\
for a fleet, once each:
  ternmesh enrol identity --config host.toml       on the host: prints its public identity
  ternmesh enrol identity --config node.toml       on each node: prints the node's
  ternmesh enrol host --config node.toml TM1:...   on each node: trust this host
  ternmesh enrol add --config host.toml TM1:...    on the host: let this node in
or, where typing is easier than carrying lines:
  ternmesh enrol code --config host.toml           on the running host: prints a code
  ternmesh enrol join --config node.toml CODE      on the node: both learn each other's keys
"""


@dataclass(frozen=True, slots=True)
class _End:
    """A host or node, as far as enrolment needs to know it."""

    name: str
    role: Role
    fleet: str
    folder: Path
    socket: Path
    trust: TrustConfig


def _read(path: Path) -> _End:
    """What a configuration says, though the rest of it may be wrong yet; ConfigError."""
    content = read_end(path)
    link, trust = content.get("link", {}), content.get("trust", {})
    if not isinstance(link, dict) or not isinstance(trust, dict):
        raise ConfigError(f"{path}: [link] and [trust] are tables")
    name, fleet, identity = content.get("name"), link.get("fleet"), trust.get("identity_file")
    if any(not isinstance(text, str | None) for text in (name, fleet, identity)):
        raise ConfigError(f"{path}: name, link.fleet and trust.identity_file are texts")
    return _End(
        name=HOST if name is None else name,
        role=Role.HOST if name is None else Role.NODE,
        fleet=fleet or LinkConfig().fleet,
        socket=socket_of(path, content),
        folder=path.resolve().parent / content["state_dir"],
        trust=TrustConfig(identity_file=identity),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh enrol`."""
    rows = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    text = argparse.RawDescriptionHelpFormatter
    for name, action, summary in (
        ("identity", _identity, "show this end's public identity, and make one if there is none"),
        ("host", _host, "on a node: trust the host with this public identity"),
        ("add", _add, "on the host: let a node in, by its public identity"),
        ("list", _list, "on the host: who belongs to the fleet"),
        ("revoke", _revoke, "on the host: shut a node out for good"),
        ("code", _code, "on a running host: a one-time code by which a node may join"),
        ("join", _join, "on a node that is not running: join with the host's one-time code"),
    ):
        row = rows.add_parser(
            name, help=summary, description=summary, epilog=_EXAMPLE, formatter_class=text
        )
        row.set_defaults(action=action)
        row.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML file")
        row.add_argument("--json", action="store_true", help="the answer as one JSON object")
        if name in ("host", "add"):
            row.add_argument("identity", help=f"a line that begins with {PUBLIC_MARK}, or its file")
        if name == "join":
            row.add_argument("code", help="as the host has shown it")
        if name == "code":
            roles = [role.name.lower() for role in Role if role is not Role.HOST]
            row.add_argument("--role", choices=roles, default="node", help="of who joins")
            row.add_argument("--minutes", type=real(0.1, 1440.0), default=15.0, help="it lasts")
        if name == "revoke":
            row.add_argument("name", help="of the node")
        if name == "identity":
            row.add_argument("--qr", action="store_true", help="show it as a QR code too")


def run(arguments: argparse.Namespace) -> int:
    """Do it and say so; returns the exit code."""
    answer: Mapping[str, Any] = arguments.action(arguments)
    if "error" in answer:
        raise TrustError(str(answer["error"]))
    if arguments.json:
        print(json.dumps(answer))
    else:
        for key, value in answer.items():
            if key != "members":
                print(f"{key:12} {value}")
        for row in answer.get("members", []):
            state = "revoked" if row["revoked"] else row["role"]
            print(f"  {row['name']:32} {state:10} {row['fingerprint']}")
    if getattr(arguments, "qr", False):
        _show_qr(str(answer["identity"]))
    return 0


def _identity(arguments: argparse.Namespace) -> dict[str, Any]:
    config = _read(arguments.config)
    if _asked(config, {"command": "status"}) is not None:
        return _shown(read_identity_file(config.trust.path(config.folder)).public)
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        if config.role is Role.HOST:
            keyring.adopt(found_fleet(config.fleet, keyring.own.public))
        return _own(keyring)


def _host(arguments: argparse.Namespace) -> dict[str, Any]:
    config = _read(arguments.config)
    if config.role is Role.HOST:
        raise ConfigError(f"{arguments.config} is of a host: give the file of a node")
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        host = parse_identity(_text(arguments.identity))
        if keyring.has_fleet and keyring.roster.host != host:
            raise TrustError(
                f"{config.name} trusts another host: delete {keyring.store.path} to begin anew"
            )
        keyring.adopt(found_fleet(config.fleet, host))
        return {**_own(keyring), "host": host.fingerprint.hex()}


def _add(arguments: argparse.Namespace) -> dict[str, Any]:
    return _ask(arguments, {"enrol": "add", "identity": _text(arguments.identity)})


def _list(arguments: argparse.Namespace) -> dict[str, Any]:
    return _ask(arguments, {"enrol": "list"})


def _revoke(arguments: argparse.Namespace) -> dict[str, Any]:
    return _ask(arguments, {"enrol": "revoke", "name": arguments.name})


def _code(arguments: argparse.Namespace) -> dict[str, Any]:
    config = _read(arguments.config)
    request = {"enrol": "code", "role": arguments.role, "minutes": arguments.minutes}
    return ask(config.socket, request)


def _join(arguments: argparse.Namespace) -> dict[str, Any]:
    from edge.config import read_node_config
    from edge.joining import join
    from ternmesh.trust.enrolment import read_code

    config, code = _read(arguments.config), read_code(arguments.code)
    node = read_node_config(arguments.config)
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        keyring.adopt(join(node, keyring.own.public, code))
        return {**_own(keyring), "host": keyring.roster.host.fingerprint.hex()}


def _ask(arguments: argparse.Namespace, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the running host; where none runs, its files."""
    from host import membership

    config = _read(arguments.config)
    if config.role is not Role.HOST:
        raise ConfigError(f"{arguments.config} is of a node: give the file of a host")
    answer = _asked(config, request)
    if answer is not None:
        return answer
    if not config.trust.path(config.folder).exists():
        raise TrustError(
            "this host has no identity yet: run `ternmesh enrol identity` with its file first"
        )
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        return membership.answer(keyring, request)


def _asked(config: _End, request: dict[str, Any]) -> dict[str, Any] | None:
    """What the end with this configuration answers; None where it does not run."""
    try:
        return ask(config.socket, request)
    except NobodyAnswers:
        return None


@dataclass(frozen=True, slots=True)
class FleetKeys:
    """The 16 bytes that name a fleet, and the public identity of its host as text."""

    name: bytes
    host: str


def fleet_of(path: Path) -> FleetKeys:
    """The fleet of the host or node with this configuration, whether it runs or not; TrustError."""
    config = _read(path)
    answer = _asked(config, {"command": "status"})
    if answer is not None:
        told = answer["trust"]
        if told["mode"] == "insecure":
            raise TrustError(f"{config.name} runs with --insecure: it knows no keys")
        return FleetKeys(bytes.fromhex(told["fleet"]), told["host"])
    keyring = Keyring(config.folder, config.trust)
    keyring.open()
    try:
        return FleetKeys(keyring.roster.fleet, identity_text(keyring.roster.host))
    finally:
        keyring.close()


def host_of(path: Path) -> tuple[Identity, FleetKeys]:
    """The private identity of the host with this configuration, and its fleet; TrustError."""
    config = _read(path)
    if config.role is not Role.HOST:
        raise ConfigError(f"{path} is of a node: give the file of a host")
    return read_identity_file(config.trust.path(config.folder)), fleet_of(path)


def _own(keyring: Keyring) -> dict[str, Any]:
    return _shown(keyring.own.public)


def _shown(public: PublicIdentity) -> dict[str, Any]:
    return {
        "name": public.name,
        "identity": identity_text(public),
        "fingerprint": public.fingerprint.hex(),
    }


def _text(argument: str) -> str:
    """A public identity as it was typed, or from a file."""
    if argument.startswith(PUBLIC_MARK):
        return argument
    try:
        with Path(argument).open() as file:
            words = file.read(TEXT_FILE_MAX).split()
        return next((word for word in words if word.startswith(PUBLIC_MARK)), "")
    except (OSError, UnicodeDecodeError) as error:
        raise TrustError(f"{argument} is no identity, and no file with one: {error}") from error


def _show_qr(text: str) -> None:
    try:
        import segno
    except ImportError as error:
        raise TrustError(
            "QR codes need the package segno: pip install 'ternmesh[node]', or leave out --qr"
        ) from error
    segno.make(text, error="l").terminal(out=sys.stdout, compact=True)
