"""`ternmesh enrol voters`: one host becomes several that keep its fleet together (docs/voters.md).

Each voter's folder holds what a backup holds, the key with which it votes, and its settings.
"""

import argparse
import re
from contextlib import closing
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError, read_toml
from ternmesh.federated.agreement.voters import BFT, make_voters
from ternmesh.security.identity import Role, identity_text
from ternmesh_cli.keys import End, read_end, read_host
from ternmesh_cli.process import write_toml
from ternmesh_service.backup import make_backup
from ternmesh_service.config_file import read_settings
from ternmesh_service.identity_file import VOTER, make_identity_file
from ternmesh_store.database import StoreError
from ternmesh_store.files import replace_private_file
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import StateFile
from transports.base import check_name

_SECURITY = re.compile(r"^\[security\]", re.MULTILINE)


def make_voters_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a folder for each voter in `arguments.out`. ConfigError or StoreError.

    In the mode "bft" the answer has the settings that boards need, too.
    """
    names, mode, path = arguments.names, arguments.mode, arguments.config
    end, out = read_host(path), arguments.out.absolute()
    voters = make_voters(b"", names, mode)
    try:
        for name in names:
            check_name(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if len(names) < 2:
        raise ConfigError("one voter bears nothing: name 3, 4, 5 or 7")
    if "agreement" in read_end(path):
        raise ConfigError(f"{path} has [agreement]: this host is a voter already")
    if end.ask({"command": "status"}) is not None:
        raise ConfigError("stop the host first: nothing of its run may be newer than the copies")
    _check_run(end, mode)
    _with_seat(path, {}, {"signers": [], "threshold": 1, "signer_files": []} if mode == BFT else {})
    for name in names:
        if (out / name).exists():
            raise StoreError(f"{out / name} exists: name another folder, or remove it")
    with closing(StateFile(end.folder)) as state:
        state.open()
        for name in names:
            make_backup(state, end.security.path(end.folder), out / name)
    for name in names:
        _forget_seat(out / name)
    keys = [make_identity_file(out / name / VOTER, name, Role.OBSERVER) for name in names]
    lines = [identity_text(key.public) for key in keys]
    rule = {"signers": lines, "threshold": voters.witnesses} if mode == BFT else {}
    for name in names:
        seat = {"name": name, "voters": lines, "mode": mode}
        text = _with_seat(path, seat, {**rule, "signer_files": [VOTER]} if rule else {})
        replace_private_file(out / name / path.name, text.encode())
    shown = {name: str(out / name) for name in names}
    return shown | ({"[boards]": write_toml({"security": rule}).strip()} if rule else {})


def _forget_seat(folder: Path) -> None:
    """Take out of a copy what an earlier seat of this host has left in it."""
    (folder / VOTER).unlink(missing_ok=True)
    with closing(StateFile(folder)) as copy:
        copy.open(keep=())
        HostStore(copy).forget_seat()
        copy.commit()


def _check_run(end: End, mode: str) -> None:
    if not end.security.path(end.folder).exists():
        raise StoreError("this host has no keys: voters need them (`ternmesh enrol identity`)")
    state = StateFile(end.folder)
    runs = state.content().runs if state.path.exists() else {}
    if not runs:
        raise StoreError("this host has no run yet: start it once, and stop it when it serves")
    if mode == BFT and max(runs.values()):
        raise ConfigError(
            "in the mode bft boards take nothing that one host alone has signed: begin another run "
            "with `ternmesh host --new-run`, and stop that before its first round ends"
        )


def _with_seat(path: Path, seat: dict[str, Any], rule: dict[str, Any]) -> str:
    """The settings of a host with those of a voter. ConfigError where they have both."""
    text = read_settings(path)
    if rule:
        own = write_toml({"security": rule})
        text, count = _SECURITY.subn(lambda _: own.strip(), text, count=1)
        text += "" if count else "\n" + own
    text += "\n" + write_toml({"agreement": seat})
    try:
        read_toml(text)
    except ConfigError as error:
        raise ConfigError(
            f"{path}: write [security] as a line of its own, without signers and signer_files: "
            f"here they are the voters ({error})"
        ) from error
    return text
