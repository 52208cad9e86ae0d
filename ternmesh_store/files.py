"""Files that are read with a limit, and written so that neither a kill nor a power cut halves them.

All errors are OSError.
"""

import errno
import os
import stat
from functools import partial
from io import BufferedReader, BufferedWriter
from pathlib import Path

PRIVATE = 0o600  # only the owner may read and write
PUBLIC = 0o666  # whatever the umask allows
BLOCK = 1 << 20  # bytes of one read while copying
GITIGNORE = ".gitignore"


class UnfitFile(OSError):
    """A file of another kind, size or encoding than it must have."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; UnfitFile for a FIFO or a device, which could block for ever."""
    file = open(path, "rb", opener=_without_wait)  # noqa: SIM115  (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnfitFile(errno.EINVAL, "it is no regular file", str(path))
    return file


def read_file(path: Path, size_max: int) -> bytes:
    """The content of a regular file of at most `size_max` bytes; UnfitFile for another one."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > size_max:
            raise too_large(path, size_max)
        # Not `size_max + 1`: Python allocates that much, however short the file is.
        data = file.read(size + 1)
    if len(data) > size_max:
        raise too_large(path, size_max)
    return data


def read_text(path: Path, size_max: int) -> str:
    """The text of such a file."""
    try:
        return read_file(path, size_max).decode()
    except UnicodeDecodeError as error:
        raise UnfitFile(errno.EILSEQ, "it is no text in UTF-8", str(path)) from error


def copy_file(source: Path, target: Path, size_max: int, mode: int = PUBLIC) -> None:
    """Copy a file of at most `size_max` bytes to a new file and make it durable."""
    left = size_max
    with open_regular(source) as reading, _create(target, mode) as writing:
        while block := reading.read(min(BLOCK, left + 1)):
            left -= len(block)
            if left < 0:
                raise too_large(source, size_max)
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())


def too_large(path: Path, size_max: int) -> UnfitFile:
    """The error for a file of more than `size_max` bytes."""
    return UnfitFile(
        errno.EFBIG, f"it has more than the {size_max} bytes that it may have", str(path)
    )


def _without_wait(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def make_private_folder(folder: Path) -> None:
    """Make a folder where there is none. Only its owner may use it, and git ignores it."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(
            errno.ENOTDIR, "it is no folder, or a link to none", str(folder)
        ) from error
    (folder / GITIGNORE).touch(PRIVATE)
    (folder / GITIGNORE).write_text("*\n")


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`. A reader sees the old or the new content."""
    _write_new(path, content, PUBLIC).replace(path)


def replace_private_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`, which only the owner may read, and make it durable."""
    _write_new(path, content, PRIVATE).replace(path)
    sync_folder(path.parent)


def create_private_file(path: Path, content: bytes) -> None:
    """Write `content` to a new file that only its owner may read.

    Raises FileExistsError where there is one.
    """
    make_private_folder(path.parent)
    unfinished = _write_new(path, content, PRIVATE)
    os.link(unfinished, path)  # the whole content at once, and never over another file
    unfinished.unlink()
    sync_folder(path.parent)


def unfinished_file(path: Path, mode: int) -> Path:
    """Make an empty file beside `path`, to fill and rename; a link in its place is not followed."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    _create(unfinished, mode).close()
    return unfinished


def _create(path: Path, mode: int) -> BufferedWriter:
    return open(path, "xb", opener=partial(os.open, mode=mode))


def _write_new(path: Path, content: bytes, mode: int) -> Path:
    unfinished = unfinished_file(path, mode)
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return unfinished


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
