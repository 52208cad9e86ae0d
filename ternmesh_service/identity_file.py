"""The file with the private identity of a process: one line that only the file's owner may read.

It may also be a systemd credential (`LoadCredential=ternmesh-identity:...`, systemd.exec(5)). From
a host's first rotation on it has a second line: the host's keys and their rotations.
"""

import os
from pathlib import Path

from ternmesh.errors import SecurityError
from ternmesh.security.host_keys import HostKeys, parse_host, write_host_keys
from ternmesh.security.identity import (
    ENTROPY_SIZE,
    HOST_MARK,
    Identity,
    Role,
    make_identity,
    parse_private,
    private_text,
    to_text,
)
from ternmesh_store.files import create_private_file, read_text, replace_private_file

IDENTITY = "identity"  # the name of the identity file
# In the state folder of a host that is a voter: the key with which it votes, its votes, and the
# newest proposal that it agreed to
VOTER, VOTES, PROPOSAL = "voter", "votes", "proposal"
IDENTITY_MAX = 1 << 15  # bytes of it, with the rotations of a host
CREDENTIALS = "CREDENTIALS_DIRECTORY"


def read_identity_file(path: Path) -> Identity:
    """Return the identity in a file.

    Raises SecurityError if there is no identity or if other users may read the file.
    """
    identity = parse_identity_file(path)
    is_credential = str(path.parent) == os.environ.get(CREDENTIALS)  # systemd guards those
    if path.stat().st_mode & 0o077 and not is_credential:
        raise SecurityError(f"others may read {path}: chmod 600 it, or make a new identity")
    return identity


def parse_identity_file(path: Path) -> Identity:
    """Return the identity in a file, whoever may read it; SecurityError."""
    try:
        return parse_private(read_text(path, IDENTITY_MAX).partition(HOST_MARK)[0])
    except FileNotFoundError as error:
        raise SecurityError(
            f"no identity at {path}: after a lost disk bring a copy back (`ternmesh restore`); for "
            "the first time make one with `ternmesh enrol identity`; or start with --insecure to "
            "run without keys"
        ) from error
    except OSError as error:
        raise SecurityError(
            f"the identity {path} cannot be read ({error.strerror}): it must be a file of the user "
            "that runs this program"
        ) from error
    except SecurityError as error:
        raise SecurityError(f"{path}: {error}") from error


def read_host_file(path: Path) -> HostKeys | None:
    """The keys of a host in its identity file: there since its first rotation; SecurityError."""
    _, mark, line = read_text(path, IDENTITY_MAX).partition(HOST_MARK)
    return parse_host(mark + line) if mark else None


def check_owner(path: Path, identity: Identity, name: str, role: Role) -> None:
    """Raise SecurityError if the identity at `path` is that of another program."""
    public = identity.public
    if (public.name, public.role) != (name, role):
        raise SecurityError(
            f"{path} is the identity of {public.name} ({public.role.name.lower()}), not of {name} "
            f"({role.name.lower()}): give this configuration a state_dir of its own"
        )


def make_identity_file(path: Path, name: str, role: Role) -> Identity:
    """Write a new identity to a new file. Raises SecurityError if the file exists."""
    identity = make_identity(name, role, os.urandom(ENTROPY_SIZE))
    try:
        create_private_file(path, f"{private_text(identity)}\n".encode())
    except OSError as error:
        raise SecurityError(
            f"cannot write {path} ({error.strerror}): choose another folder"
        ) from error
    return identity


def replace_host_file(path: Path, identity: Identity, hosts: HostKeys) -> None:
    """Give a host another identity at once: a kill leaves the old one or the new. SecurityError."""
    line = to_text(HOST_MARK, write_host_keys(hosts))
    try:
        replace_private_file(path, f"{private_text(identity)}\n{line}\n".encode())
    except OSError as error:
        raise SecurityError(
            f"cannot write {path} ({error.strerror}): the host keeps its key"
        ) from error
