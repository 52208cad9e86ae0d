"""Copies of a program's state: the state file and the keys, without the airtime ledgers.

A program that runs owns its state file, so it makes the copy itself, asked over its control socket.
A ledger stays: it belongs to the radio, and an old one would forget airtime that was used.
"""

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from ternmesh.errors import SecurityError
from ternmesh.security.identity import Identity, Role
from ternmesh_service.control_socket import BACKUP
from ternmesh_service.identity_file import (
    IDENTITY,
    IDENTITY_MAX,
    PROPOSAL,
    VOTER,
    VOTES,
    check_owner,
    parse_identity_file,
)
from ternmesh_store.database import DamagedError, FormatError, StoreError
from ternmesh_store.files import create_private_file, read_file
from ternmesh_store.state_file import STATE, StateContent, StateFile


def make_backup(state: StateFile, identity: Path, folder: Path) -> list[str]:
    """Copy an open state file, and the identity and a voter's key where they are, into `folder`.

    Returns what the copy holds, in words. Raises StoreError where they cannot be written, or exist.
    """
    state.back_up(folder / STATE)
    held = [STATE]
    if (state.folder / VOTER).exists():
        _copy_identity(state.folder / VOTER, folder / VOTER)
        held.append(VOTER)
    if not identity.exists():
        return [*held, f"no {IDENTITY}"]
    _copy_identity(identity, folder / IDENTITY)
    return [*held, IDENTITY]


def answer_backup(state: StateFile, identity: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    folder = Path(str(request[BACKUP]))
    if not folder.is_absolute():  # it would be in the folder where this program was started
        return {"error": f"the path {str(request[BACKUP])!r} of a copy must begin with /"}
    try:
        return {BACKUP: make_backup(state, identity, folder)}
    except StoreError as error:
        if not state.is_open:
            raise
        return {"error": str(error)}


def restore_backup(
    folder: Path, identity: Path, source: Path, name: str, role: Role, *, force: bool = False
) -> bool:
    """Bring a copy in `source` back into the state folder of a program that does not run.

    The state and the identity that were there are renamed. Returns whether the copy has an
    identity. StoreError or SecurityError for a copy of another program than `name`; without `force`
    also where it is empty, older, of another run or fleet, or has another identity.
    """
    kept = source / STATE
    if not kept.is_file():
        raise StoreError(f"{source} holds no {STATE}: name a folder that `ternmesh backup` wrote")
    own = None
    if (source / IDENTITY).exists():
        own = parse_identity_file(source / IDENTITY)
        check_owner(source / IDENTITY, own, name, role)
    if own is not None and not force and _holds_other(identity, own):
        raise SecurityError(
            f"{identity} is another identity than that in {source}: move it away, or give --force"
        )
    state = StateFile(folder)
    copy, content = state.take_copy(kept)
    try:
        if others := content.groups & {kind.name.lower() for kind in Role if kind is not role}:
            raise StoreError(f"{source} is of a {min(others)}: name a copy of {name}")
        if not content.groups and not force:
            raise StoreError(f"{source} holds no fleet and no run: take another, or give --force")
        if state.path.exists():
            _check_age(state, content, source, force=force)
        if own is not None:
            _bring_back(source / IDENTITY, own, identity)
        if (source / VOTER).exists():
            seat = parse_identity_file(source / VOTER)
            if _holds_other(folder / VOTER, seat):  # its votes are of another seat
                for name in VOTES, PROPOSAL:
                    (folder / name).unlink(missing_ok=True)
            _bring_back(source / VOTER, seat, folder / VOTER)
        state.replace_by(copy)
    finally:
        copy.unlink(missing_ok=True)
    return own is not None


def _check_age(state: StateFile, kept: StateContent, source: Path, *, force: bool) -> None:
    """Raise StoreError where a state is in use, newer than a copy, or of another run or fleet."""
    try:
        content = state.content()
    except (DamagedError, FormatError) as error:
        if force or isinstance(error, DamagedError):  # there is nothing to lose
            return
        raise
    if force:
        return
    if content.fleet not in (None, kept.fleet):
        raise StoreError(
            f"{state.path} has the members of a fleet, and the copy in {source} does not: take "
            "another copy, or give --force"
        )
    for run, version in content.runs.items():
        if version > kept.runs.get(run, 0):
            held = f"global update {kept.runs[run]}" if run in kept.runs else "nothing of it"
            raise StoreError(
                f"{state.path} has reached global update {version} of run {run.hex()}, and the "
                f"copy in {source} holds {held}: take a newer copy, or give --force"
            )


def _holds_other(file: Path, own: Identity) -> bool:
    """Whether a file is there, and holds something else than this identity."""
    try:
        return parse_identity_file(file) != own
    except SecurityError:
        return os.path.lexists(file)


def _bring_back(copy: Path, own: Identity, file: Path) -> None:
    if _holds_other(file, own):  # a private key is never deleted
        numbers = (file.with_name(f"{file.name}.replaced-{n}") for n in count(1))
        file.rename(next(aside for aside in numbers if not aside.exists()))
    if not file.exists():
        _copy_identity(copy, file)


def _copy_identity(file: Path, copy: Path) -> None:
    try:
        create_private_file(copy, read_file(file, IDENTITY_MAX))
    except OSError as error:
        raise StoreError(f"cannot copy {file} to {copy} ({error})") from error
