"""Files that neither a kill nor a power cut can leave half-written."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the file at `path`: a reader sees the old or the new. OSError."""
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
