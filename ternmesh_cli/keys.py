"""Keys for a whole fleet on one machine: what `ternmesh enrol` does board by board."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ternmesh.errors import TrustError
from ternmesh.trust.identity import Role
from ternmesh.trust.roster import HOST, found_fleet
from ternmesh_store.keyring import Keyring, TrustConfig, make_identity_file


def enrol_fleet(fleet: str, host: Path, nodes: Mapping[str, Path]) -> None:
    """Make and exchange the keys of a host and its nodes, by their state folders.

    Those that have keys already keep them.
    """
    with keyring_at(host, HOST, Role.HOST) as own:
        own.adopt(found_fleet(fleet, own.own.public))
        for name, folder in nodes.items():
            with keyring_at(folder, name, Role.NODE) as member:
                member.adopt(found_fleet(fleet, own.own.public))
                own.roster.enrol(member.own.public)
        own.keep_roster()


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
