"""A disk that loses what was not synced: it notes what SQLite does to the files of a folder.

The functions of a SQLite VFS that change a file are replaced in the library that Python's sqlite3
uses, so that the product's own stores are watched as they are.
"""

import ctypes
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

LEFT = ("nothing", "all", "torn", "sectors")  # of what was not synced
SECTOR = 512  # bytes that are written whole or not at all
OK, IO_ERROR = 0, 10  # codes of SQLite


class Operation(NamedTuple):
    """A change of a file: bytes at an offset, its end at an offset (None), or -1: it is deleted."""

    name: str
    offset: int
    data: bytes | None = None


@dataclass(slots=True)
class Disk:
    """The state files of one end: what is durable, and what is not yet, in order."""

    durable: dict[str, bytes]
    committed: str  # digest of all rows after the last commit
    under_way: str  # and after the commit that was begun last
    is_checked: bool = True  # that one of both is on the disk
    pending: list[Operation] = field(default_factory=list)
    count: int = 0  # operations
    cut_at: int = 0  # the operation in which the power fails; 0 for none
    is_lying: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether the power has failed."""
        return 0 < self.cut_at <= self.count

    def change(self, operation: Operation) -> bool:
        """Note a change; False when there is no power any more."""
        if not self.is_dead:
            self.pending.append(operation)
        self.count += 1
        return not self.is_dead

    def sync(self, name: str) -> bool:
        """Make the changes of a file durable; False when there is no power any more."""
        self.count += 1
        if not self.is_dead and not self.is_lying:
            mine = [item for item in self.pending if item.name == name]
            self.durable = _applied(self.durable, mine)
            self.pending = [item for item in self.pending if item.name != name]
        return not self.is_dead

    def image(self, left: str, rng: np.random.Generator) -> dict[str, bytes]:
        """The files that are found after the cut."""
        whole = {"nothing": 0, "sectors": 0, "torn": -1}.get(left, len(self.pending))
        kept = self.pending[:whole]
        if left in ("torn", "sectors"):
            kept += [part for item in self.pending[whole:] for part in _sectors(item, rng)]
        return _applied(self.durable, kept)


def _applied(files: dict[str, bytes], operations: Sequence[Operation]) -> dict[str, bytes]:
    found = {name: bytearray(content) for name, content in files.items()}
    for name, offset, data in operations:
        if offset < 0:
            found.pop(name, None)
            continue
        content = found.setdefault(name, bytearray())
        content.extend(bytes(max(0, offset - len(content))))
        if data is None:
            del content[offset:]
        else:
            content[offset : offset + len(data)] = data
    return {name: bytes(content) for name, content in found.items()}


def _sectors(item: Operation, rng: np.random.Generator) -> Iterator[Operation]:
    """The parts of an operation that reach the disk, each with probability 1/2."""
    if not item.data:
        yield from [item] * int(rng.integers(2))
        return
    edges = range(-(item.offset % SECTOR), len(item.data), SECTOR)
    for first in edges:
        if rng.integers(2):
            begin = max(first, 0)
            yield item._replace(offset=item.offset + begin, data=item.data[begin : first + SECTOR])


_WRITE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
_OPEN = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_int, c_void_p)
_DELETE = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods: those that change a file, and those around them."""

    _fields_ = [
        ("before", c_void_p * 3),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        ("after", c_void_p * 13),
    ]


class _Vfs(ctypes.Structure):
    """sqlite3_vfs."""

    _fields_ = [
        ("version", c_int),
        ("file_size", c_int),
        ("path_max", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        ("after", c_void_p * 14),
    ]


def library() -> ctypes.CDLL | None:
    """The SQLite that Python's sqlite3 uses; None where it is a part of Python."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split(maxsplit=5)[5] for line in lines if "libsqlite3" in line]
    return ctypes.CDLL(paths[0]) if sqlite3.sqlite_version and paths else None


@contextmanager
def watching(disks: dict[Path, Disk]) -> Iterator[None]:
    """Let the disk of a folder note all operations on its state file; it may refuse them."""
    sqlite = library()
    if sqlite is None:
        raise RuntimeError("this Python has a SQLite of its own: use one with libsqlite3 (Debian)")
    sqlite.sqlite3_vfs_find.restype = POINTER(_Vfs)
    usual = sqlite.sqlite3_vfs_find(None)
    vfs = _Vfs.from_buffer_copy(usual.contents)
    files: dict[int, tuple[Path, _Methods]] = {}  # open ones by address, with their usual methods
    copies: dict[int, _Methods] = {}  # our methods, by the address of the usual ones

    def open_file(this: int, name: bytes, file: int, flags: int, out: int) -> int:
        code = int(usual.contents.open(this, name, file, flags, out))
        path = Path((name or b"").decode())
        if code == OK and path.parent in disks:
            slot = c_void_p.from_address(file)  # where SQLite finds the methods of the file
            address = slot.value or 0
            files[file] = path, _Methods.from_address(address)
            mine = copies.setdefault(address, _Methods.from_buffer_copy(files[file][1]))
            mine.write, mine.truncate, mine.sync = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
            slot.value = ctypes.addressof(mine)
        return code

    def write(file: int, data: int, size: int, offset: int) -> int:
        path, methods = files[file]
        change = Operation(path.name, offset, ctypes.string_at(data, size))
        is_done = disks[path.parent].change(change)
        return int(methods.write(file, data, size, offset)) if is_done else IO_ERROR

    def truncate(file: int, size: int) -> int:
        path, methods = files[file]
        is_done = disks[path.parent].change(Operation(path.name, size))
        return int(methods.truncate(file, size)) if is_done else IO_ERROR

    def sync(file: int, _flags: int) -> int:  # nothing waits for a real disk
        path, _ = files[file]
        return OK if disks[path.parent].sync(path.name) else IO_ERROR

    def delete(this: int, name: bytes, is_durable: int) -> int:
        path = Path(name.decode())
        disk = disks.get(path.parent)
        is_done = disk is None or disk.change(Operation(path.name, -1))
        if disk is not None and is_durable:
            is_done = disk.sync(path.name)
        return int(usual.contents.delete(this, name, is_durable)) if is_done else IO_ERROR

    vfs.name, vfs.open, vfs.delete = b"watched", _OPEN(open_file), _DELETE(delete)
    sqlite.sqlite3_vfs_register(ctypes.byref(vfs), 1)
    try:
        yield
    finally:
        sqlite.sqlite3_vfs_unregister(ctypes.byref(vfs))
        sqlite.sqlite3_vfs_register(usual, 1)
