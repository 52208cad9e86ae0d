"""A source that reads rows as they are added to a CSV file."""

import os
import time
from collections import deque
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

from edge.data.live.options import CsvOptions
from edge.data.live.rows import LINE_MAX, READ_MAX, LineSplitter, RowSource
from ternmesh.model_package import ModelPackage
from ternmesh_service.status import LiveStatus
from ternmesh_store.files import open_regular

NULS_S, NULS = 0.5, bytes(1 << 20)  # in one poll; at once
# Bytes before our place, by which we see that the file was written anew: more than are not taken.
KNOWN = 2 * READ_MAX
# Which file this process left, where, and what it knew of it: a new release or an import opens its
# sources anew, and a share may be away for a moment.
_left: dict[Path, tuple[int, int, bytes]] = {}


class CsvSource(RowSource):
    """The rows that are added from now on, also after the file was replaced or written anew.

    With `from_start`, those that are there, and no more.
    """

    def __init__(
        self, options: CsvOptions, package: ModelPackage, *, from_start: bool = False
    ) -> None:
        super().__init__(options, package)
        self._from_start = from_start
        self._is_at_end = False
        self._path = Path(options.path)
        self._file: BufferedReader | None = None
        self._passes_over = not from_start  # what is there already
        self._waiting: deque[bytes] = deque()  # lines for which `rate_max` has no room yet

    @property
    def has_more(self) -> bool:
        """Whether there are rows that were not taken yet."""
        return not self._is_at_end or bool(self._waiting)

    def close(self) -> None:
        if self._is_open and self._file is not None:
            unread = b"".join([*(line + b"\n" for line in self._waiting), self._splitter.partial])
            known = self._known[: len(self._known) - len(unread)]
            inode = os.fstat(self._file.fileno()).st_ino
            _left[self._path] = inode, self._file.tell() - len(unread), known
        super().close()
        if self._file is not None:
            self._file.close()
        self._file = None
        self._waiting.clear()

    def status(self) -> LiveStatus:
        unread = os.fstat(file.fileno()).st_size - file.tell() if (file := self._file) else 0
        return replace(super().status(), behind=unread if unread > READ_MAX else 0)

    def _open(self, _now: float) -> None:
        self._passes_over &= self._path.exists()  # all rows of a file that comes later are new
        self._file = open_regular(self._path)
        about = os.fstat(self._file.fileno())
        end = about.st_size if self._passes_over else 0
        inode, at, known = _left.get(self._path, (0, 0, b""))
        is_known = known and os.pread(self._file.fileno(), len(known), at - len(known)) == known
        if is_known and inode == about.st_ino and not self._from_start:
            end = at
        head = self._file.readline(LINE_MAX)
        self.mapper.reader.begin(head, str(self._path))
        if b"sep=" in head[:8].lower():  # the names are in the next line
            self.mapper.reader.begin(self._file.readline(LINE_MAX), str(self._path))
        self._has_begun = bool(head.strip())  # an empty file has no header yet
        # The byte before the end: where it ends a line, no half line follows.
        at = self._file.seek(max(0, end - 1))
        self._known = os.pread(self._file.fileno(), min(at, KNOWN), max(0, at - KNOWN))
        self._splitter = LineSplitter(self.left_out, skips=end > 0)
        self._passes_over = False

    def _lines(self, now: float) -> list[bytes]:
        if not self._waiting:
            self._waiting.extend(self._next_lines())
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._free(now)))]

    def _skip_nuls(self, file: BufferedReader) -> None:
        """Go on behind the NUL bytes that a power cut leaves, as far as `NULS_S` allows."""
        number, at, rest, stop_at = file.fileno(), file.tell(), b"", time.monotonic() + NULS_S
        while not rest and (data := os.pread(number, len(NULS), at)) and time.monotonic() < stop_at:
            rest = b"" if data == NULS else data.lstrip(b"\0")
            at += len(data) - len(rest)
        self._known = os.pread(number, min(at, KNOWN), max(0, at - KNOWN))
        file.seek(at)
        if rest or not data:
            self.left_out.add("run of NUL bytes, as a power cut leaves them")

    def _next_lines(self) -> list[bytes]:
        assert self._file is not None
        number, at = self._file.fileno(), self._file.tell() - len(self._known)
        is_same = os.pread(number, len(self._known), at) == self._known
        data = self._file.read(READ_MAX) if is_same else b""
        self._known = (self._known + data)[-KNOWN:]
        if data.endswith(b"\0"):
            self._skip_nuls(self._file)
        if not data and self._from_start:
            self._is_at_end = True
            data = b"\n"  # that the last line may lack
        elif not data and not (is_same and self._path.stat().st_ino == os.fstat(number).st_ino):
            self.close()  # The next poll opens it.
        lines = self._splitter.take(data)
        if not self._has_begun and any(map(bytes.strip, lines)):
            self._has_begun = True
            self.mapper.reader.begin(next(filter(bytes.strip, lines)), str(self._path))
        return lines
