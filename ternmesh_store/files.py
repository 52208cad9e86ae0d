"""Files that neither a kill nor a power cut leaves half-written."""

import os
from pathlib import Path

PRIVATE = 0o600  # only the owner may read and write
PUBLIC = 0o666  # whatever the umask allows


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`. A reader sees the old or the new content. Raises OSError."""
    _write_new(path, content, PUBLIC).replace(path)


def create_private_file(path: Path, content: bytes) -> None:
    """Write `content` to a new file that only its owner may read.

    Raises FileExistsError where there is one, or another OSError.
    """
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    unfinished = _write_new(path, content, PRIVATE)
    os.link(unfinished, path)  # the whole content at once, and never over another file
    unfinished.unlink()
    sync_folder(path.parent)


def unfinished_file(path: Path, mode: int) -> Path:
    """Make an empty file beside `path`, to fill and rename; a link in its place is not followed."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    return unfinished


def _write_new(path: Path, content: bytes, mode: int) -> Path:
    unfinished = unfinished_file(path, mode)
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return unfinished


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
