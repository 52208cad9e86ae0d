"""One run in a folder: each rank holds a lock there for as long as it lives."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from host.pipeline.errors import PipelineError


def hold(folder: Path, rank: int) -> TextIO:
    """Lock a rank's place in a state folder until what is returned is closed, or this process ends.

    PipelineError where another start trains there, or the folder cannot be used.
    """
    path = folder / f"rank-{rank}.lock"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        file = path.open("a+")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PipelineError(
            f"another start trains in {folder}: end it first (kill {path.read_text().strip()}), or "
            "give this one a state_dir of its own"
        ) from error
    except OSError as error:
        raise PipelineError(f"state_dir cannot be used: {error}") from error
    file.truncate(0)
    file.write(f"{os.getppid()}\n")  # torchrun, which would start this process again
    file.flush()
    return file
