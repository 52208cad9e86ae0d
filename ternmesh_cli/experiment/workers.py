"""The processes of an experiment end with it, however it ends: see child.py."""

import os
from collections.abc import Sequence
from pathlib import Path

from ternmesh_cli.workers import Worker, python

GUARD = "ternmesh_cli.experiment.child"


def guarded(name: str, folder: Path, command: Sequence[str]) -> Worker:
    """The worker that runs `command` alone in `folder`, and ends with this process."""
    guard = python(GUARD, str(folder / "lock"), str(os.getpid()))
    return Worker(name, folder, [*guard, *command], may_end=True)
