"""Keys for a whole fleet on one machine: what `ternmesh enrol` does board by board."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ternmesh.errors import TrustError
from ternmesh.trust.identity import Role
from ternmesh.trust.neighbours import write_fleet
from ternmesh.trust.roster import HOST, found_fleet
from ternmesh_store.keyring import Keyring, TrustConfig, make_identity_file


def enrol_fleet(
    fleet: str, host: Path, nodes: Mapping[str, Path], gateways: Mapping[str, Path] | None = None
) -> None:
    """Make and exchange the keys of a host, its nodes and gateways, by their state folders.

    Those that have keys already keep them.
    """
    ends = [(name, folder, Role.NODE) for name, folder in nodes.items()]
    ends += [(name, folder, Role.GATEWAY) for name, folder in (gateways or {}).items()]
    with keyring_at(host, HOST, Role.HOST) as own:
        own.adopt(found_fleet(fleet, own.own.public))
        for end in ends:
            with keyring_at(end[1], end[0], end[2]) as member:
                member.adopt(found_fleet(fleet, own.own.public))
                own.roster.enrol(member.own.public)
        own.keep_roster()
        everybody = write_fleet(own.own, own.roster.state)
    for end in ends if gateways else ():
        with keyring_at(end[1], end[0], end[2]) as member:
            member.learn(everybody)


@contextmanager
def keyring_at(
    folder: Path, name: str, role: Role, config: TrustConfig | None = None
) -> Iterator[Keyring]:
    """The open keyring of a state folder, with a new identity where there is none."""
    config = config or TrustConfig()
    path = config.path(folder)
    if not path.exists():
        make_identity_file(path, name, role)
    keyring = Keyring(folder, config)
    keyring.open()
    try:
        if keyring.own.public.name != name:
            raise TrustError(
                f"{path} is the identity of {keyring.own.public.name}, not of {name}: move it away "
                "for a new one"
            )
        yield keyring
    finally:
        keyring.close()
