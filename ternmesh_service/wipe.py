"""The end of a board: its keys and state are wiped. A flash disk may keep copies of what was there.

A file marks the folder first, so that what a kill interrupts goes on at the next start. The ledger
of the radio's airtime stays: the radio may be used again within the hour.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ternmesh.errors import SecurityError, TernmeshError
from ternmesh_store.files import BLOCK, PRIVATE, make_private_folder, sync_folder
from ternmesh_store.state_file import STATE

MARKER = "decommissioned"  # the name of that file
# Of an identity: the next one, unfinished ones, those that a restore has set aside
_SUFFIXES = r"(\.next)?(\.new|\.replaced-\d+)?"

_log = logging.getLogger(__name__)


class DecommissionOrdered(TernmeshError):
    """The host has told this board to wipe itself, now or before."""


def wipe(folder: Path, identity: Path) -> None:
    """Overwrite and delete the keys, the state and the adapters of a program that does not run.

    Raises SecurityError for files that stay, after all others are gone.
    """
    left = []
    try:
        make_private_folder(folder)  # the identity may lie elsewhere
        (folder / MARKER).touch(PRIVATE)
        sync_folder(folder)
        for file in _files(folder, identity):
            try:
                _overwrite(file)
            except OSError as error:
                left.append(f"{file} ({error.strerror})")
        sync_folder(folder)
    except OSError as error:
        left.append(f"{folder} ({error.strerror})")
    if left:
        raise SecurityError(f"cannot wipe {', '.join(left)}: delete it by hand")


@contextmanager
def wiping(folder: Path, identity: Path, name: str) -> Iterator[None]:
    """Wipe the board `name` where DecommissionOrdered ends the block; the block is done then."""
    try:
        yield
    except DecommissionOrdered:
        try:
            wipe(folder, identity)
        except SecurityError as error:
            _log.error("%s is decommissioned, and not all of it is gone: %s", name, error)
        else:
            _log.warning("%s is decommissioned: its keys and its state are wiped", name)


def check_fit(folder: Path) -> None:
    """Raise DecommissionOrdered for a wiped folder, or one that was not wiped to the end."""
    if (folder / MARKER).exists():
        raise DecommissionOrdered(
            f"{folder} was decommissioned: `ternmesh enrol identity` begins again there"
        )


def begin_again(folder: Path, identity: Path) -> None:
    """Make a wiped folder fit for a new identity."""
    if (folder / MARKER).exists():
        wipe(folder, identity)
        (folder / MARKER).unlink()


def _files(folder: Path, identity: Path) -> list[Path]:
    name = re.compile(re.escape(identity.name) + _SUFFIXES)
    keys = [file for file in identity.parent.glob("*") if name.fullmatch(file.name)]
    return [*keys, *folder.glob(f"{STATE}*"), *folder.glob("*.onnx_adapter")]


def _overwrite(file: Path) -> None:
    with file.open("r+b", buffering=0) as writing:
        left = os.fstat(writing.fileno()).st_size
        while left > 0:
            left -= writing.write(bytes(min(BLOCK, left))) or 0
        os.fsync(writing.fileno())
    file.unlink()
