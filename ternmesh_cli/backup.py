"""`ternmesh backup` and `restore`: copies of the state of a host or a board."""

import argparse

from ternmesh_cli import keys, process
from ternmesh_service.backup import make_backup, restore_backup
from ternmesh_service.control_socket import BACKUP, ControlError
from ternmesh_store.database import StoreError
from ternmesh_store.state_file import STATE, StateFile


def add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_backup)
    process.add_config(parser, "the configuration of the host or board")
    parser.add_argument("out", type=process.path, metavar="OUT", help="a new folder for the copy")


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_restore)
    process.add_config(parser, "the configuration of the host or board")
    what = "the folder of a copy"
    parser.add_argument("source", type=process.path, metavar="FROM", help=what)
    what = "also over a newer state, one of another run, or another identity"
    parser.add_argument("--force", action="store_true", help=what)


def run_backup(arguments: argparse.Namespace) -> int:
    """Let the running program copy its state, or copy it here where none runs."""
    end = keys.read(arguments.config)
    out = arguments.out.absolute()
    answer = end.ask({BACKUP: str(out)})
    if answer is not None and BACKUP not in answer:
        raise ControlError(f"{end.name} runs and makes no copies: stop it, and ask again")
    if answer is None:
        state = StateFile(end.folder)
        if not state.path.exists():
            raise StoreError(f"{state.path} is not there: {end.name} has not run yet")
        state.open()
        try:
            answer = {BACKUP: make_backup(state, end.security.path(end.folder), out)}
        finally:
            state.close()
    elif not (out / STATE).exists():
        what = f"{end.name} runs as a unit with a /tmp of its own, where its copy is lost"
        raise ControlError(f"{out} is not there: {what}; name a folder in {end.folder}")
    print(f"{out} holds {' and '.join(answer[BACKUP])} of {end.name}")
    return 0


def run_restore(arguments: argparse.Namespace) -> int:
    """Bring a copy back; the program must not run."""
    end = keys.read(arguments.config)
    if end.ask({"command": "status"}) is not None:
        raise ControlError(f"{end.name} runs: stop it, and restore then")
    identity = end.security.path(end.folder)
    source = arguments.source.absolute()
    has_key = restore_backup(
        end.folder, identity, source, end.name, end.role, force=arguments.force
    )
    stays = "stays as it is" if identity.exists() else "is not there"
    note = "" if has_key else f"; the copy has no identity, and {identity} {stays}"
    print(f"{end.folder} holds the state from {arguments.source}{note}")
    return 0
