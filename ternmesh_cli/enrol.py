"""`ternmesh enrol`: who belongs to a fleet. Identities travel as one line, by hand or QR code."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
from ternmesh.errors import TrustError
from ternmesh.trust.identity import (
    PUBLIC_MARK,
    ROTATION_MARK,
    PublicIdentity,
    Role,
    identity_text,
    parse_identity,
    parse_rotation,
    quantum_text,
    rotation_text,
)
from ternmesh.trust.neighbours import TEXT_MAX as FLEET_MAX
from ternmesh.trust.roster import found_fleet
from ternmesh.trust.signers import quantum_key
from ternmesh_cli.arguments import real
from ternmesh_cli.key_ends import End, asked, host_of, link_of, read
from ternmesh_cli.keys import keyring_at
from ternmesh_store.keyring import Keyring, read_identity_file
from transports.control_socket import ask
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
for a gateway between radios and a broker, which has keys like a node, whenever the fleet changes:
  ternmesh enrol export --config host.toml FILE    on the host: who belongs to it, signed
  ternmesh enrol import --config gateway.toml FILE     on the gateway, for its boards' keys
  ternmesh enrol import --config node.toml FILE        on its boards, for the gateway's
new keys for a node, now and then:
  ternmesh enrol rotate --config node.toml         on the node: the host hears of it over the link
or, where radios or a gateway are in between, which know the old keys:
  ternmesh enrol rotate --config node.toml --line  on the node: prints its line
  ternmesh enrol rotate --config host.toml TM1-ROTATION:...     and so on its gateway
  ternmesh enrol rotate --config node.toml --finish             on the node, when all have it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh enrol`."""
    rows = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, action, summary in (
        ("identity", _identity, "show this end's public identity, and make one if there is none"),
        ("host", _host, "on a node: trust the host with this public identity"),
        ("add", _add, "on the host: let a node in, by its public identity"),
        ("list", _list, "on the host: who belongs to the fleet"),
        ("revoke", _revoke, "on the host: shut a node out for good"),
        ("export", _export, "on the host: write down who belongs to the fleet, for its gateways"),
        ("import", _import, "on a gateway, or a node behind one: learn the keys of its neighbours"),
        ("code", _code, "on a running host: a one-time code by which a node may join"),
        ("join", _join, "on a node that is not running: join with the host's one-time code"),
        ("rotate", _rotate, "new keys for a node that is not running, signed by its old ones"),
    ):
        row = rows.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=_EXAMPLE,
            formatter_class=parser.formatter_class,
        )
        row.set_defaults(action=action)
        row.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML file")
        row.add_argument("--json", action="store_true", help="the answer as one JSON object")
        if name in ("host", "add"):
            row.add_argument("identity", help=f"a line that begins with {PUBLIC_MARK}, or its file")
        if name in ("export", "import"):
            row.add_argument("file", type=Path, help="with the fleet, signed by the host")
        if name == "join":
            row.add_argument("code", help="as the host has shown it")
        if name == "code":
            roles = [role.name.lower() for role in Role if role is not Role.HOST]
            row.add_argument("--role", choices=roles, default="node", help="of who joins")
            row.add_argument("--minutes", type=real(0.1, 1440.0), default=15.0, help="it lasts")
        if name == "rotate":
            what = f"another end's line that begins with {ROTATION_MARK}, or its file: take it"
            row.add_argument("rotation", nargs="?", help=what)
            row.add_argument("--line", action="store_true", help="print the line, use no link")
            row.add_argument("--finish", action="store_true", help="the host has the line")
        if name == "revoke":
            row.add_argument("name", help="of the node")
        if name == "identity":
            row.add_argument("--qr", action="store_true", help="show it as a QR code too")
            what = "of a host: show its ML-DSA-44 key for trust.quantum too"
            row.add_argument("--quantum", action="store_true", help=what)


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
    shown = _identity_of(read(arguments.config))
    if not arguments.quantum:
        return shown
    own, _ = host_of(arguments.config)
    return {**shown, "quantum": quantum_text(quantum_key(own).public)}


def _identity_of(config: End) -> dict[str, Any]:
    if asked(config, {"command": "status"}) is not None:
        return _shown(read_identity_file(config.trust.path(config.folder)).public)
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        if config.role is Role.HOST:
            keyring.adopt(found_fleet(config.fleet, keyring.own.public))
        return _own(keyring)


def _host(arguments: argparse.Namespace) -> dict[str, Any]:
    config = read(arguments.config)
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


def _export(arguments: argparse.Namespace) -> dict[str, Any]:
    answer = _ask(arguments, {"enrol": "export"})
    if "error" not in answer:
        try:
            arguments.file.write_text(answer.pop("fleet_list") + "\n")
        except OSError as error:
            raise TrustError(f"cannot write {arguments.file}: {error.strerror}") from error
    return answer


def _import(arguments: argparse.Namespace) -> dict[str, Any]:
    from host.membership import members

    config = read(arguments.config)
    if config.role is Role.HOST:
        raise ConfigError(f"{arguments.config} is of a host, which has made the list itself")
    try:
        with arguments.file.open() as file:
            text = file.read(FLEET_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise TrustError(f"cannot read {arguments.file}: {error}") from error
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        keyring.learn(text)
        return members(keyring)


def _code(arguments: argparse.Namespace) -> dict[str, Any]:
    config = read(arguments.config)
    request = {"enrol": "code", "role": arguments.role, "minutes": arguments.minutes}
    return ask(config.socket, request)


def _join(arguments: argparse.Namespace) -> dict[str, Any]:
    from edge.joining import join
    from ternmesh.trust.enrolment import read_code

    config, code = read(arguments.config), read_code(arguments.code)
    link = link_of(arguments.config, config)
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        keyring.adopt(join(link, config.name, config.folder, keyring.own.public, code))
        return {**_own(keyring), "host": keyring.roster.host.fingerprint.hex()}


def _rotate(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.rotation is not None:
        text = _text(arguments.rotation, ROTATION_MARK)
        return _take_rotation(arguments, text)
    config = read(arguments.config)
    if config.role is Role.HOST:
        raise ConfigError(
            "a host keeps its keys as long as its fleet lives: SECURITY.md says how to begin anew"
        )
    link = None if arguments.line or arguments.finish else _open_link(arguments.config, config)
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        if arguments.finish:
            return _finish_rotation(config, keyring)
        line = rotation_text(keyring.begin_rotation())
        note = "whenever the node starts, it asks the host to take its new keys"
        if link is not None:
            from edge.joining import rotate

            if rotate(link, config.name, config.folder, keyring):
                return _own(keyring)
            note = f"the host does not answer: {note}"
        return {"name": config.name, "rotation": line, "note": note}


def _finish_rotation(config: End, keyring: Keyring) -> dict[str, Any]:
    if keyring.rotation is None:
        raise TrustError(f"{config.name} has no new keys waiting: make them with --line first")
    keyring.finish_rotation()
    return _own(keyring)


def _open_link(path: Path, config: End) -> LinkConfig:
    """The link of a node over which it may ask the host; TrustError where that goes elsewhere."""
    from edge.joining import may_ask

    link = link_of(path, config) if config.role is Role.NODE else None
    if link is None or not may_ask(link):
        raise TrustError(
            "over radios and gateways, which know the old keys, the line must be carried: "
            "see --line and --finish"
        )
    return link


def _take_rotation(arguments: argparse.Namespace, text: str) -> dict[str, Any]:
    config = read(arguments.config)
    if config.role is Role.HOST:
        return _ask(arguments, {"enrol": "rotate", "rotation": text})
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        new = keyring.roster.rotate(parse_rotation(text))
        keyring.keep_rotation()
        return _shown(new)


def _ask(arguments: argparse.Namespace, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the running host; where none runs, its files."""
    from host import membership

    config = read(arguments.config)
    if config.role is not Role.HOST:
        raise ConfigError(f"{arguments.config} is of a node: give the file of a host")
    answer = asked(config, request)
    if answer is not None:
        return answer
    if not config.trust.path(config.folder).exists():
        raise TrustError(
            "this host has no identity yet: run `ternmesh enrol identity` with its file first"
        )
    with keyring_at(config.folder, config.name, config.role, config.trust) as keyring:
        return membership.answer(keyring, request)


def _own(keyring: Keyring) -> dict[str, Any]:
    return _shown(keyring.own.public)


def _shown(public: PublicIdentity) -> dict[str, Any]:
    return {
        "name": public.name,
        "identity": identity_text(public),
        "fingerprint": public.fingerprint.hex(),
    }


def _text(argument: str, mark: str = PUBLIC_MARK) -> str:
    """A line as it was typed, or from a file."""
    if argument.startswith(mark):
        return argument
    try:
        with Path(argument).open() as file:
            words = file.read(TEXT_FILE_MAX).split()
        return next((word for word in words if word.startswith(mark)), "")
    except (OSError, UnicodeDecodeError) as error:
        raise TrustError(f"{argument} begins not with {mark}, and is no file: {error}") from error


def _show_qr(text: str) -> None:
    try:
        import segno
    except ImportError as error:
        raise TrustError(
            "QR codes need the package segno: pip install 'ternmesh[node]', or leave out --qr"
        ) from error
    segno.make(text, error="l").terminal(out=sys.stdout, compact=True)
