"""Run a program that ends with its parent, and alone in its folder.

    python -m ternmesh_cli.experiment.child LOCK PARENT PROGRAM ARGUMENT ...

An experiment that is killed leaves nobody to end its processes: Linux does it here. Where a system
cannot, the lock keeps a second process out of the folder until the first one is gone.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

SET_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
LOCK_S = 30.0
POLL_S = 0.05


def main(lock: str, parent: str, *command: str) -> int:
    """Become `command`; returns only where that cannot be."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):
        return 1
    if not _hold(Path(lock)):
        sys.stderr.write(f"another process still runs in {Path(lock).parent}: end it\n")
        return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
        return 1


def _hold(path: Path) -> bool:
    """Lock the file at `path` for as long as this process lives, whatever program it becomes."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(handle, True)
    deadline = time.monotonic() + LOCK_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(POLL_S)
        else:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
