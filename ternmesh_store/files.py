"""Files that neither a kill nor a power cut leaves half-written."""

import os
from pathlib import Path

PRIVATE = 0o600  # only the owner may read and write


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`. A reader sees the old or the new content. Raises OSError."""
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def create_private_file(path: Path, content: bytes) -> None:
    """Write `content` to a new file that only its owner may read.

    Raises FileExistsError where there is one, or another OSError.
    """
    unfinished = path.with_name(path.name + ".new")
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.link(unfinished, path)  # the whole content at once, and never over another file
    unfinished.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
