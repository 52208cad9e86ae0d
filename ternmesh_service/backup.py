"""Copies of a program's state: the state file and the identity, without the airtime ledgers.

A program that runs owns its state file, so it makes the copy itself, asked over its control socket.
A ledger stays: it belongs to the radio, and an old one would forget airtime that was used.
"""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from ternmesh.errors import SecurityError
from ternmesh_service.control_socket import BACKUP
from ternmesh_service.keyring import IDENTITY, NEXT
from ternmesh_store.database import DamagedError, StoreError
from ternmesh_store.files import create_private_file
from ternmesh_store.state_file import STATE, StateFile


def make_backup(state: StateFile, identity: Path, folder: Path) -> list[str]:
    """Copy an open state file, and the identity where there is one, into `folder`.

    Returns the names of the copies. Raises StoreError where they cannot be written, or exist.
    """
    state.back_up(folder / STATE)
    names = [STATE]
    for suffix in ("", NEXT):  # the second is there while keys are being changed
        file = identity.with_name(identity.name + suffix)
        if file.exists():
            _copy_identity(file, folder / (IDENTITY + suffix))
            names.append(IDENTITY + suffix)
    return names


def answer_backup(state: StateFile, identity: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a running program to a request for a backup."""
    try:
        return {BACKUP: make_backup(state, identity, Path(str(request[BACKUP])))}
    except StoreError as error:
        return {"error": str(error)}


def restore_backup(folder: Path, identity: Path, source: Path, *, force: bool = False) -> None:
    """Bring a copy in `source` back into the state folder of a program that does not run.

    The state and the identity that were there are renamed. Raises StoreError, also where the state
    is newer or of another run, and SecurityError for another identity; not with `force`.
    """
    if not (source / STATE).is_file():
        raise StoreError(f"{source} holds no {STATE}: name a folder that `ternmesh backup` wrote")
    own = source / IDENTITY
    is_other = own.exists() and identity.exists() and own.read_bytes() != identity.read_bytes()
    if is_other and not force:
        raise SecurityError(
            f"{identity} is another identity than that in {source}: move it away, or give --force"
        )
    state = StateFile(folder)
    copy = state.take_copy(source / STATE)
    try:
        if state.path.exists():
            _check_age(state, copy, source, force=force)
        for suffix in ("", NEXT):
            _bring_back(source / (IDENTITY + suffix), identity.with_name(identity.name + suffix))
        state.replace_by(copy.path)
    finally:
        copy.path.unlink(missing_ok=True)


def _check_age(state: StateFile, copy: StateFile, source: Path, *, force: bool) -> None:
    """Raise StoreError where a state is in use, or newer than a copy, or of another run."""
    try:
        reached = state.reached()
    except DamagedError:
        return  # there is nothing to lose
    kept = copy.reached()
    for run, version in reached.items():
        if version > kept.get(run, 0) and not force:
            found = f"global update {kept[run]}" if run in kept else "nothing of it"
            raise StoreError(
                f"{state.path} has reached global update {version} of run {run.hex()}, and the "
                f"copy in {source} holds {found}: take a newer copy, or give --force"
            )


def _bring_back(copy: Path, file: Path) -> None:
    if copy.exists() and not (file.exists() and file.read_bytes() == copy.read_bytes()):
        if file.exists():  # a private key is never deleted
            numbers = (file.with_name(f"{file.name}.replaced-{n}") for n in count(1))
            file.rename(next(aside for aside in numbers if not aside.exists()))
        _copy_identity(copy, file)


def _copy_identity(file: Path, copy: Path) -> None:
    try:
        create_private_file(copy, file.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot copy {file} to {copy} ({error})") from error
