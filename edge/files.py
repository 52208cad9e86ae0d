"""Files of a model, read and copied with a size limit.

A file that is missing or too large is a ModelError, a failure of the disk a BoardFault.
"""

import hashlib
import os
import stat
from io import BufferedReader
from pathlib import Path

from edge.errors import BoardFault, ModelError
from ternmesh.release import FILE_BYTES_MAX, FileEntry

BLOCK = 1 << 20  # bytes of one read while copying


def read_file(path: Path, size_max: int) -> bytes:
    """The content of a file of at most `size_max` bytes."""
    try:
        with open_regular(path) as file:
            # Not `size_max + 1` alone: Python allocates that much, however short the file is.
            data = file.read(min(size_max, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > size_max:
        raise too_large(path, size_max)
    return data


def read_optional(path: Path, size_max: int) -> bytes | None:
    """The same, or None if there is no such file."""
    try:
        return read_file(path, size_max)
    except ModelError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def entry_of(path: Path) -> FileEntry:
    """The size and the SHA-256 of a file."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
                raise too_large(path, FILE_BYTES_MAX)
            digest = hashlib.file_digest(file, "sha256").digest()
            return FileEntry(file.tell(), digest)
    except OSError as error:
        raise unreadable(path, error) from error


def copy_file(source: Path, target: Path, size_max: int) -> None:
    """Copy a file of at most `size_max` bytes to a new file and make it durable; also OSError."""
    left = size_max
    with open_regular(source) as reading, target.open("xb") as writing:
        while block := reading.read(min(BLOCK, left + 1)):
            left -= len(block)
            if left < 0:
                raise too_large(source, size_max)
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; ModelError for a FIFO or a device, which could block for ever."""
    file = open(path, "rb", opener=_without_wait)  # noqa: SIM115  (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ModelError(f"{path} is no regular file: copy the model again")
    return file


def _without_wait(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def unreadable(path: Path, error: OSError) -> ModelError:
    """The error for a file that cannot be read; a missing file is the model's fault."""
    if isinstance(error, FileNotFoundError):
        return ModelError(f"{path} cannot be read: {error.strerror}")
    return BoardFault(f"{path} cannot be read ({error.strerror}): check the disk and its rights")


def too_large(path: Path, size_max: int) -> ModelError:
    """The error for a file of more than `size_max` bytes."""
    return ModelError(f"{path} has more than the {size_max} bytes that it may have")
