"""`ternmesh enrol`: the members of a fleet. An identity is one line of text."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from host import membership
from ternmesh.config import ConfigError
from ternmesh.errors import SecurityError
from ternmesh.federated.agreement.voters import BFT, CRASH
from ternmesh.security.host_keys import HostKeys, host_text, parse_host
from ternmesh.security.identity import (
    HOST_MARK,
    PUBLIC_MARK,
    ROTATION_MARK,
    PublicIdentity,
    Role,
    identity_text,
    parse_rotation,
    quantum_text,
    rotation_text,
)
from ternmesh.security.membership import MARK as FLEET_MARK
from ternmesh.security.membership import TEXT_MAX as FLEET_MAX
from ternmesh.security.membership import found_fleet, parse_fleet
from ternmesh.security.signatures import quantum_key
from ternmesh_cli.keys import End, host_of, keyring_of, link_of, read, read_host
from ternmesh_cli.process import Subcommands, add_config, add_json, add_option, path, real
from ternmesh_cli.voters import make_voters_of
from ternmesh_service.control_socket import ask
from ternmesh_service.identity_file import read_host_file, read_identity_file
from ternmesh_store.files import UnfitFile, read_text, replace_file
from ternmesh_store.store import END
from transports.base import check_name
from transports.mqtt.settings import parse_url

LINES_MAX = 1 << 19  # bytes of a file with lines of keys
_EXAMPLE = """\
to start a fleet:
  ternmesh enrol identity --config host.toml       on the host: prints its public identity
  ternmesh enrol identity --config node.toml       on each board: prints the board's
  ternmesh enrol host --config node.toml TM1:...   on each board: trust this host
  ternmesh enrol add --config host.toml TM1:...    on the host: enrol this board
or, with a code to type instead of lines to copy:
  ternmesh enrol code --config host.toml           on the running host: prints a code
  ternmesh enrol join --config node.toml CODE      on the board: they exchange keys
a gateway between radios and a broker has keys like a board; its boards get its keys from a file:
  ternmesh enrol export --config host.toml FILE    on the host: its members, signed
  ternmesh enrol import --config node.toml FILE    on the boards of a gateway
several hosts may keep one fleet together (docs/voters.md):
  ternmesh enrol voters --config host.toml copies barn cellar attic     a folder for each
to change the key of the host, while it is stopped:
  ternmesh enrol rotate --config host.toml         its boards and gateways follow
  ternmesh enrol rotate --config node.toml TM1-ROTATION:...     or by hand, on each of them
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = Subcommands(parser, _EXAMPLE)
    for name, action, summary in (
        ("identity", _identity, "show this end's public identity, and make one if there is none"),
        ("host", _host, "on a board: trust the host with this public identity"),
        ("add", _add, "on the host: enrol a board, by its public identity"),
        ("list", _list, "on the host: show the members of the fleet"),
        ("revoke", _revoke, "on the host: exclude a board for good"),
        ("export", _export, "on the host: write the list of members, for its gateways"),
        ("import", _import, "on a gateway, a board behind one, a voter: read the list of members"),
        ("code", _code, "on a running host: make a one-time code with which a board can join"),
        ("join", _join, "on a board that is not running: join with the host's one-time code"),
        ("voters", make_voters_of, "on a host that does not run: write folders for several"),
        ("rotate", _rotate, "a new key for a host that does not run, signed by its old one"),
    ):
        row = rows.add(name, summary, run)
        row.set_defaults(action=action)
        add_config(row)
        add_json(row)
        if name in ("host", "add"):
            many = " (many, one a line: all or none are enrolled)" if name == "add" else ""
            what = f"a line that begins with {PUBLIC_MARK}, or its file{many}"
            row.add_argument("identity", help=what)
        if name in ("export", "import"):
            row.add_argument("file", type=path, help="the list of members, signed by the host")
        if name == "join":
            row.add_argument("code", nargs="+", help="the code that the host printed")
        if name == "code":
            roles = [role.name.lower() for role in Role if role is not Role.HOST]
            row.add_argument("--role", choices=roles, default="node", help="of the new member")
            add_option(row, "--minutes", real(0.1, 1440.0), 15.0, "how long it is valid")
        if name == "rotate":
            what = f"on a board: follow the host's line that begins with {ROTATION_MARK}, or a file"
            one = row.add_mutually_exclusive_group()
            one.add_argument("rotation", nargs="?", help=what)
            one.add_argument("--line", action="store_true", help="print the last lines again")
        if name == "voters":
            row.add_argument("out", type=path, help="a new folder, with one for each in it")
            row.add_argument("names", nargs="+", metavar="NAME", help="of the voters")
            what = "what they bear: that some stop (crash), or also that some lie (bft)"
            row.add_argument("--mode", choices=(CRASH, BFT), default=CRASH, help=what)
        if name == "revoke":
            row.add_argument("name", help="of the board")
        if name == "identity":
            what = "of a host: also show its ML-DSA-44 key, for security.quantum"
            row.add_argument("--quantum", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Run the action and print its answer; returns the exit code."""
    answer: Mapping[str, Any] = arguments.action(arguments)
    if arguments.json:
        print(json.dumps(answer))
    else:
        for key, value in answer.items():
            if key != "members":
                print(f"{key:12} {value}")
        for row in answer.get("members", []):
            state = "revoked" if row["revoked"] else row["role"]
            print(f"  {row['name']:32} {state:10} {row['fingerprint']}")
    return 0


def _identity(arguments: argparse.Namespace) -> dict[str, Any]:
    shown = own_identity(read(arguments.config))
    if not arguments.quantum:
        return shown
    own, _ = host_of(arguments.config)
    return {**shown, "quantum": quantum_text(quantum_key(own).public)}


def own_identity(config: End) -> dict[str, Any]:
    """The public identity of an end, with a new one where there is none. Raises SecurityError."""
    if config.ask({"command": "status"}) is not None:
        path = config.security.path(config.folder)
        if not path.exists():
            raise SecurityError(
                f"stop {config.name} first: it runs with the key that was in {path}"
            )
        return _shown(read_identity_file(path).public, read_host_file(path))
    with keyring_of(config) as keyring:
        if config.role is Role.HOST:
            keyring.found(config.fleet)
            return _shown(keyring.own.public, keyring.member_list.hosts)
        return _shown(keyring.own.public)


def _host(arguments: argparse.Namespace) -> dict[str, Any]:
    config = read(arguments.config)
    if config.role is Role.HOST:
        raise ConfigError(f"{arguments.config} is of a host: give the file of a board")
    return trust_host(config, arguments.identity)


def trust_host(config: End, identity: str) -> dict[str, Any]:
    """Make the host with this public identity (or its file) the host of a board. SecurityError."""
    with keyring_of(config) as keyring:
        [line, *_] = _texts(identity, PUBLIC_MARK, HOST_MARK).values()
        host = parse_host(line)
        if host.present.role is not Role.HOST:
            raise SecurityError(
                f"this is the line of {host.present.name}, which is no host: run `ternmesh enrol "
                "identity` on the host, and give its line"
            )
        if keyring.has_fleet and keyring.member_list.host != host.present:
            if keyring.store.sealing(END).peers:
                raise SecurityError(
                    f"{config.name} has learned with another host: move {keyring.store.path} away "
                    "to begin again, which gives up what was learned and its samples"
                )
            keyring.leave()  # a wrong line: no host has answered this board yet
        keyring.adopt(found_fleet(config.fleet, host))
        return {**_shown(keyring.own.public), "host": host.present.fingerprint.hex()}


def _add(arguments: argparse.Namespace) -> dict[str, Any]:
    identities = _texts(arguments.identity, PUBLIC_MARK)
    return ask_host(arguments.config, {"enrol": "add", "identities": identities})


def _list(arguments: argparse.Namespace) -> dict[str, Any]:
    return ask_host(arguments.config, {"enrol": "list"})


def _revoke(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        check_name(arguments.name, "name")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return ask_host(arguments.config, {"enrol": "revoke", "name": arguments.name})


def _export(arguments: argparse.Namespace) -> dict[str, Any]:
    answer = ask_host(arguments.config, {"enrol": "export"})
    file: Path = arguments.file
    try:
        if os.path.lexists(file) and not _is_list(file):
            raise SecurityError(f"{file} holds something else: name another file")
        replace_file(file, f"{answer.pop('fleet_list')}\n".encode())
    except OSError as error:
        raise SecurityError(f"cannot write {file}: {error.strerror}") from error
    return answer


def _is_list(file: Path) -> bool:
    try:
        return read_text(file, FLEET_MAX).startswith(FLEET_MARK)
    except UnfitFile:
        return False


def _import(arguments: argparse.Namespace) -> dict[str, Any]:
    config = read(arguments.config)
    try:
        text = read_text(arguments.file, FLEET_MAX)
    except OSError as error:
        raise SecurityError(f"cannot read {arguments.file}: {error.strerror}") from error
    if config.role is Role.HOST:  # a voter, whose list is that of the others
        return ask_host(arguments.config, {"enrol": "import", "fleet_list": text})
    with keyring_of(config) as keyring:
        keyring.learn(parse_fleet(text))
        return membership.members(keyring)


def _code(arguments: argparse.Namespace) -> dict[str, Any]:
    config = read(arguments.config)
    request = {"enrol": "code", "role": arguments.role, "minutes": arguments.minutes}
    return ask(config.socket, request)


def _join(arguments: argparse.Namespace) -> dict[str, Any]:
    return join_fleet(arguments.config, "".join(arguments.code))


def join_fleet(path: Path, text: str) -> dict[str, Any]:
    """Enrol the board with this configuration with a code of the host. Raises SecurityError."""
    from edge.enrolment import join
    from ternmesh.security.enrolment import read_code

    config = read(path)
    code = read_code(text)
    link = link_of(path, config)
    where = parse_url(link.url) if link.url else "this link"
    print(f"asking the host over {where}, for at most two minutes ...", file=sys.stderr)
    with keyring_of(config) as keyring:
        keyring.adopt(join(link, config.name, keyring.state, keyring.own.public, code))
        return {**_shown(keyring.own.public), "host": keyring.member_list.host.fingerprint.hex()}


def _rotate(arguments: argparse.Namespace) -> dict[str, Any]:
    config = read(arguments.config)
    if arguments.rotation is not None:
        return _follow_host(config, arguments.rotation)
    if config.role is not Role.HOST:
        raise ConfigError(
            f"{arguments.config} is of a board: for new keys `enrol revoke` it, rename its file "
            "`identity`, and enrol it again"
        )
    if not arguments.line and config.ask({"command": "status"}) is not None:
        raise SecurityError("the host runs: stop it, and change its key then")
    with keyring_of(config) as keyring:
        if not arguments.line:
            keyring.rotate_host()
        rotations = keyring.member_list.hosts.rotations
        lines = [rotation_text(one) for one in (rotations if arguments.line else rotations[-1:])]
        notes = {"note": "start the host: boards and gateways take the new key from it"}
        if config.security.quantum:
            notes["quantum"] = quantum_text(quantum_key(keyring.own).public)
            notes["then"] = "write this key into security.quantum of host and boards"
        shown = _shown(keyring.own.public, keyring.member_list.hosts)
        return {**shown, "rotation": "\n".join(lines), **notes}


def _follow_host(config: End, argument: str) -> dict[str, Any]:
    if config.role is Role.HOST:
        raise ConfigError("a host has its key already: give the file of a board or gateway")
    with keyring_of(config) as keyring:
        for text in _texts(argument, ROTATION_MARK).values():
            keyring.follow_host(parse_rotation(text))
        return _shown(keyring.member_list.host)


def ask_host(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the running host, or from its files where it does not run; TernmeshError."""
    config = read_host(path)
    answer = config.ask(request)
    if answer is not None:
        return answer
    if not config.security.path(config.folder).exists():
        raise SecurityError("this host has no identity yet: run `ternmesh enrol identity` first")
    with keyring_of(config) as keyring:
        answer = membership.answer(keyring, request)
    if "error" in answer:
        raise SecurityError(answer["error"])
    return answer


def _shown(public: PublicIdentity, hosts: HostKeys | None = None) -> dict[str, Any]:
    """An end; a host, with `hosts`, by the line by which boards trust it."""
    key = identity_text(public)
    line = key if hosts is None else host_text(hosts)
    shown = {"name": public.name, "identity": line, "fingerprint": public.fingerprint.hex()}
    return shown if line == key else {**shown, "key": key}


def _texts(argument: str, *marks: str) -> dict[str, str]:
    """The argument, where it has one of these marks, or such lines of the file that it names.

    Each by where it is. Small letters count as capitals, and an argument may have spaces in it.
    """
    whole = "".join(argument.split()).upper()
    if whole.startswith(marks):
        return {"": whole}
    try:
        lines = enumerate(read_text(Path(argument), LINES_MAX).splitlines(), 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{argument!r} does not begin with {marks[0]}, and is no file with such a line: {error}"
        ) from error
    words = ((f"line {number}: ", word.upper()) for number, line in lines for word in line.split())
    texts = {where: word for where, word in words if word.startswith(marks)}
    if not texts:
        raise ConfigError(f"{argument} holds no word that begins with {marks[0]}")
    return texts
