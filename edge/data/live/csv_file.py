"""A source that reads rows as they are added to a CSV file."""

import os
from collections import deque
from io import BufferedReader
from pathlib import Path

from edge.data.live.options import CsvOptions
from edge.data.live.rows import LINE_MAX, READ_MAX, LineSplitter, RowSource
from ternmesh.model_package import ModelPackage
from ternmesh_store.files import open_regular


class CsvSource(RowSource):
    """The rows that are added from now on, also after the file was replaced or emptied.

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
        self._is_first = True
        self._waiting: deque[bytes] = deque()  # lines for which `rate_max` has no room yet

    @property
    def has_more(self) -> bool:
        """Whether there are rows that were not taken yet."""
        return not self._is_at_end or bool(self._waiting)

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self, _now: float) -> None:
        self._file = open_regular(self._path)
        is_after = self._is_first and not self._from_start
        end = os.fstat(self._file.fileno()).st_size if is_after else 0
        self._mapper.reader.begin(self._file.readline(LINE_MAX), str(self._path))
        # The byte before the end: where it ends a line, no half line follows.
        self._file.seek(max(0, end - 1))
        self._splitter = LineSplitter(self.left_out, skips=end > 0)
        self._is_first = False

    def _lines(self, now: float) -> list[bytes]:
        if not self._waiting:
            self._waiting.extend(self._next_lines())
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._free(now)))]

    def _next_lines(self) -> list[bytes]:
        assert self._file is not None
        data = self._file.read(READ_MAX)
        if not data and self._from_start:
            self._is_at_end = True
            data = b"\n"  # that the last line may lack
        elif not data:
            present = self._path.stat()
            old = os.fstat(self._file.fileno())
            if present.st_ino != old.st_ino or present.st_size < self._file.tell():
                self.close()  # The next poll opens it.
        return self._splitter.take(data)
