"""An end of a fleet as commands about keys see it: from its files, or from the running process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError, read_table
from ternmesh.errors import TrustError
from ternmesh.trust.identity import Identity, PublicIdentity, Role, parse_identity
from ternmesh.trust.roster import HOST
from ternmesh.trust.signers import choose_signers
from ternmesh.trust.signing import Signers
from ternmesh_cli.ends import read_end, socket_of
from ternmesh_store.keyring import Keyring, TrustConfig, read_identity_file
from transports.control_socket import NobodyAnswers, ask
from transports.link_config import LinkConfig


@dataclass(frozen=True, slots=True)
class End:
    """A host, node or gateway, as far as enrolment needs to know it."""

    name: str
    role: Role
    fleet: str
    folder: Path
    socket: Path
    trust: TrustConfig


def read(path: Path) -> End:
    """What a configuration says, though the rest of it may be wrong yet; ConfigError."""
    content = read_end(path)
    is_gateway = "network" in content
    link = content.get("network" if is_gateway else "link", {})
    trust = content.get("trust", {})
    if not isinstance(link, dict) or not isinstance(trust, dict):
        raise ConfigError(f"{path}: [link], [network] and [trust] are tables")
    name, fleet = content.get("name"), link.get("fleet")
    if any(not isinstance(text, str | None) for text in (name, fleet)):
        raise ConfigError(f"{path}: name and link.fleet are texts")
    if is_gateway:
        name, role = name or Role.GATEWAY.name.lower(), Role.GATEWAY
    else:
        name, role = name or HOST, Role.HOST if name is None else Role.NODE
    return End(
        name=name,
        role=role,
        fleet=fleet or LinkConfig().fleet,
        socket=socket_of(path, content),
        folder=path.resolve().parent / content["state_dir"],
        trust=read_table(TrustConfig, trust, "trust"),
    )


def link_of(path: Path, config: End) -> LinkConfig:
    """The link of a node, or of a board of a split training; ConfigError.

    The rest of their files, which differ, is not looked at.
    """
    from transports.base import check_node
    from transports.bearer import check_link

    table = read_end(path).get("link", {})
    try:
        check_node(config.name)
        link = read_table(LinkConfig, table, "link").anchored(path.resolve().parent)
        check_link(link, config.name)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return link


def asked(config: End, request: dict[str, Any]) -> dict[str, Any] | None:
    """What the end with this configuration answers; None where it does not run."""
    try:
        return ask(config.socket, request)
    except NobodyAnswers:
        return None


@dataclass(frozen=True, slots=True)
class FleetKeys:
    """The 16 bytes that name a fleet, and who stands for its references and releases."""

    name: bytes
    signers: Signers


def fleet_of(path: Path) -> FleetKeys:
    """The fleet of the host or node with this configuration, whether it runs or not; TrustError."""
    config = read(path)
    answer = asked(config, {"command": "status"})
    if answer is not None:
        told = answer["trust"]
        if told["mode"] == "insecure":
            raise TrustError(f"{config.name} runs with --insecure: it knows no keys")
        return _fleet_keys(config, bytes.fromhex(told["fleet"]), parse_identity(told["host"]))
    keyring = Keyring(config.folder, config.trust)
    keyring.open()
    try:
        return _fleet_keys(config, keyring.roster.fleet, keyring.roster.host)
    finally:
        keyring.close()


def _fleet_keys(config: End, fleet: bytes, host: PublicIdentity) -> FleetKeys:
    rule = config.trust
    return FleetKeys(fleet, choose_signers(host, rule.signers, rule.threshold, rule.quantum))


def host_of(path: Path) -> tuple[Identity, FleetKeys]:
    """The private identity of the host with this configuration, and its fleet; TrustError."""
    config = read(path)
    if config.role is not Role.HOST:
        raise ConfigError(f"{path} is of a node: give the file of a host")
    return read_identity_file(config.trust.path(config.folder)), fleet_of(path)
