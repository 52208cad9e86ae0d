"""Keys as commands need them: an end's configuration, its keyring, and a whole fleet's keys.

An end is a host, a board or a gateway. Its configuration is read only as far as keys need it, so
the rest of the file may still be wrong.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError, read_table, read_toml
from ternmesh.errors import SecurityError
from ternmesh.security.identity import Identity, Role, parse_identity
from ternmesh.security.membership import HOST, found_fleet, write_fleet
from ternmesh.security.signatures import Signers, choose_signers
from ternmesh_service.config_file import anchored, control_path, read_settings
from ternmesh_service.control_socket import ANSWER_S, SLOW, SLOW_S, NobodyAnswers, ask
from ternmesh_service.identity_file import check_owner, make_identity_file, read_identity_file
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_service.status import read_status
from ternmesh_store.state_file import StateFile
from transports.base import check_name, check_node
from transports.link_config import LinkConfig


@dataclass(frozen=True, slots=True)
class End:
    """The part of an end's configuration that concerns its keys."""

    name: str
    role: Role
    fleet: str
    folder: Path  # its state_dir
    socket: Path  # of the running process
    security: SecurityConfig
    is_aggregator: bool = False  # a host with the keys of a gateway

    @property
    def program(self) -> str:
        """What runs with these settings."""
        return "host" if self.is_aggregator else str(self.role.name.lower())

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of the running process; None where it does not run."""
        try:
            return ask(self.socket, request, SLOW_S if SLOW & request.keys() else ANSWER_S)
        except NobodyAnswers:
            return None


@dataclass(frozen=True, slots=True)
class FleetKeys:
    """The 16 bytes that name a fleet, and the signers of its global updates and releases."""

    name: bytes
    signers: Signers


def read_end(path: Path) -> dict[str, Any]:
    """The tables of a configuration; ConfigError where it is no TOML."""
    text = read_settings(path)
    try:
        return read_toml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def socket_of(path: Path, content: Mapping[str, Any]) -> Path:
    """The control socket of the process with this configuration; ConfigError."""
    state_dir = content.get("state_dir")
    chosen = content.get("control_socket")
    if not isinstance(state_dir, str) or not isinstance(chosen, str | None):
        raise ConfigError(f"{path}: state_dir or control_socket is missing or no text")
    folder = path.resolve().parent
    try:
        state_dir = str(anchored(state_dir, folder, "state_dir"))
        return control_path(
            state_dir, str(anchored(chosen, folder, "control_socket")) if chosen else None
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(path: Path) -> End:
    """The end that a configuration describes; ConfigError."""
    content = read_end(path)
    is_gateway = "network" in content
    link = content.get("network" if is_gateway else "link", {})
    security = content.get("security", {})
    if not isinstance(link, dict) or not isinstance(security, dict):
        raise ConfigError(f"{path}: [link], [network] and [security] must be tables")
    is_aggregator = "upstream" in content
    name = link.get("aggregator") if is_aggregator else content.get("name")
    fleet = link.get("fleet")
    if not isinstance(name, str | None) or not isinstance(fleet, str | None):
        raise ConfigError(f"{path}: name, link.fleet and link.aggregator must be texts")
    try:
        if name is not None:
            check_node(name)
        if fleet is not None:
            check_name(fleet, "fleet")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    role = Role.HOST if name is None else Role.NODE
    if is_gateway or is_aggregator:
        role = Role.GATEWAY
    return End(
        name=name or (Role.GATEWAY.name.lower() if is_gateway else HOST),
        role=role,
        fleet=fleet or LinkConfig().fleet,
        socket=socket_of(path, content),  # checks state_dir too
        folder=path.resolve().parent / content["state_dir"],
        security=read_table(SecurityConfig, security, "security"),
        is_aggregator=is_aggregator,
    )


def read_host(path: Path) -> End:
    """The host that a configuration describes; ConfigError where it is of another end."""
    end = read(path)
    if end.role is not Role.HOST:
        found = "gateway" if end.role is Role.GATEWAY else "board"
        raise ConfigError(f"{path} is of a {found}: give the file of a host")
    return end


def link_of(path: Path, end: End) -> LinkConfig:
    """The link of a board, or of a board of a split training; ConfigError."""
    from transports.factory import check_link

    table = read_end(path).get("link", {})
    try:
        link = read_table(LinkConfig, table, "link").anchored(path.resolve().parent)
        check_link(link, end.name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return link


def fleet_of(path: Path) -> FleetKeys:
    """The fleet of the host or board with this configuration, running or not; SecurityError."""
    end = read(path)
    answer = end.ask({"command": "status"})
    if answer is not None:
        security = read_status(answer).security
        if security is None or security.is_insecure:
            raise SecurityError(f"{end.name} runs with --insecure: it has no keys")
        fleet, host = bytes.fromhex(security.fleet), parse_identity(security.host)
        before = {bytes.fromhex(old) for old in security.host_before}
    else:
        with _opened(end.folder, end.security) as keyring:
            return FleetKeys(keyring.member_list.fleet, keyring.signers)
    rule = end.security
    chosen = choose_signers(host, rule.signers, rule.threshold, rule.quantum)
    return FleetKeys(fleet, chosen.seated(host, before))


def host_of(path: Path) -> tuple[Identity, FleetKeys]:
    """The private identity of the host with this configuration, and its fleet; SecurityError."""
    end = read_host(path)
    return read_identity_file(end.security.path(end.folder)), fleet_of(path)


def keyring_of(end: End) -> AbstractContextManager[Keyring]:
    """The open keyring of an end, with a new identity where there is none."""
    return keyring_at(end.folder, end.name, end.role, end.security)


@contextmanager
def keyring_at(
    folder: Path, name: str, role: Role, config: SecurityConfig | None = None
) -> Iterator[Keyring]:
    """The open keyring of a state folder, with a new identity where there is none."""
    config = config or SecurityConfig()
    path = config.path(folder)
    if not path.exists():
        state = StateFile(folder)
        if role is Role.HOST and state.path.exists() and state.content().fleet is not None:
            raise SecurityError(
                f"{path} is not there, and {state.path} holds the fleet of its keys: bring that "
                "identity back (docs/backup.md)"
            )
        make_identity_file(path, name, role)
    with _opened(folder, config) as keyring:
        check_owner(path, keyring.own, name, role)
        yield keyring


@contextmanager
def _opened(folder: Path, config: SecurityConfig) -> Iterator[Keyring]:
    with closing(StateFile(folder)) as state:
        keyring = Keyring(state, config)
        state.open()
        keyring.open()
        yield keyring


def enrol_fleet(
    fleet: str, host: Path, nodes: Mapping[str, Path], gateways: Mapping[str, Path] | None = None
) -> None:
    """Make and exchange the keys of a whole fleet on this machine, by the ends' state folders.

    An end that has keys keeps them. On separate machines `ternmesh enrol` does the same.
    """
    ends = [(folder, name, Role.NODE) for name, folder in nodes.items()]
    ends += [(folder, name, Role.GATEWAY) for name, folder in (gateways or {}).items()]
    with keyring_at(host, HOST, Role.HOST) as own:
        own.found(fleet)
        for end in ends:
            with keyring_at(*end) as member:
                member.adopt(found_fleet(fleet, own.member_list.hosts))
                own.member_list.enrol(member.own.public)
        own.keep_member_list()
        fleet_list = write_fleet(own.own, own.member_list.state)
    for end in ends if gateways else ():
        with keyring_at(*end) as member:
            member.learn(fleet_list)
