"""Lines of text to samples: CSV or JSON rows, of which the last ones are the input of a model."""

import csv
import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from edge.data.live.base import LiveSource, sole_input
from edge.data.live.options import RowOptions
from edge.data.sources import Label, Sample, label_arrays
from edge.errors import DataError
from ternmesh.model_package import ModelPackage

LINE_MAX = 8192  # bytes
READ_MAX = 1 << 14  # bytes in one poll: 0.1 s of work for a PC, 1 s for a small board
FLOAT32_MAX = float(np.finfo(np.float32).max)
_MALFORMED = (ValueError, TypeError, OverflowError, RecursionError, csv.Error)


class LineSplitter:
    """Bytes to lines of at most LINE_MAX bytes; longer ones are counted in `left_out`.

    With `skips`, it begins after the first end of a line: what comes before may be half a line.
    """

    def __init__(self, left_out: Counter[str], *, skips: bool) -> None:
        self._left_out = left_out
        self._skips = skips
        self._partial = b""

    def take(self, data: bytes) -> list[bytes]:
        """The lines that `data` ends, without their ends."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if self._skips and lines:
            del lines[0]
            self._skips = False
        if len(self._partial) > LINE_MAX:
            self._left_out["line too long"] += not self._skips
            self._skips = True
        if self._skips:
            self._partial = b""
        return lines


def parse_row(line: bytes, header: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a JSON object or of CSV, by the names in `header`, or by place from "1" on.

    DataError.
    """
    try:
        if len(line) > LINE_MAX:
            raise ValueError("too long")
        text = line.decode().strip()
        if text.startswith("{"):
            row: dict[str, Any] = json.loads(text)
            return row
        fields = next(csv.reader([text], skipinitialspace=True))
        return dict(zip(header or map(str, count(1)), fields, strict=bool(header)))
    except _MALFORMED as error:
        raise DataError("line is no CSV of as many fields as the header, and no JSON") from error


class RowMapper:
    """Rows to samples: the columns of the last rows, in the shape of the model's input.

    How many rows follows from that shape. With a target, row t gives the label of the sample that
    ended with row t - horizon. A CSV line with the names of all columns is a header.
    """

    def __init__(
        self,
        options: RowOptions,
        package: ModelPackage,
        left_out: Counter[str],
        new_key: Callable[[], str],
    ) -> None:
        self._spec = sole_input(package)
        size = int(np.prod(self._spec.shape[1:]))
        if not options.columns or size % len(options.columns):
            raise DataError(
                f"{self._spec.name} of {package.name} has {size} numbers, which rows of "
                f"{len(options.columns)} columns cannot fill: change data.options.columns"
            )
        self._options = options
        self._package = package
        self._left_out = left_out
        self._new_key = new_key
        self._header: Sequence[str] = ()
        self._rows: deque[list[float]] = deque(maxlen=size // len(options.columns))
        self._keys: deque[str] = deque(maxlen=options.horizon + 1)  # "": no sample

    def take(self, line: bytes) -> list[Sample | Label]:
        """What a line adds; one that is no row is counted."""
        try:
            return [] if not line.strip() or self.is_header(line) else self._items(line)
        except DataError as error:
            self._left_out[str(error)] += 1
            return []

    def is_header(self, line: bytes) -> bool:
        """Whether `line` has the names of all columns, which are then those of later lines."""
        text = line.decode("utf-8-sig", errors="replace")
        fields = [part.strip().strip('"') for part in text.split(",")]
        columns = set(self._options.columns)
        if not columns <= set(fields) or any(map(str.isdigit, columns)):
            return False
        self._header = fields
        return True

    def _items(self, line: bytes) -> list[Sample | Label]:
        options = self._options
        row = parse_row(line, self._header)
        self._rows.append([self._number(row, column) for column in options.columns])
        is_full = len(self._rows) == self._rows.maxlen
        key = str(row["key"]) if row.get("key") is not None else ""
        self._keys.append((key or self._new_key()) if is_full else "")
        items: list[Sample | Label] = []
        if is_full:
            values = np.array(self._rows, np.float32).reshape(self._spec.shape[1:])
            items.append(Sample(self._keys[-1], {self._spec.name: values}))
        if options.target and len(self._keys) > options.horizon and self._keys[0]:
            try:
                is_scaled = options.target in options.scale
                value = self._number(row, options.target) if is_scaled else row[options.target]
                items.append(Label(self._keys[0], label_arrays(self._package, value)))
            except (DataError, LookupError):
                self._left_out[f"no label in column {options.target}"] += 1
        return items

    def _number(self, row: dict[str, Any], column: str) -> float:
        mean, std = self._options.scale.get(column, (0.0, 1.0))
        try:
            number: float = (float(row[column]) - mean) / std
            if abs(number) <= FLOAT32_MAX:  # also not for NaN
                return number
        except (LookupError, *_MALFORMED):
            pass  # the same as NaN
        raise DataError(f"no number in column {column}")


class RowSource(LiveSource):
    """A source of lines; a subclass has `_lines`."""

    def __init__(self, options: RowOptions, package: ModelPackage) -> None:
        super().__init__(options.rate_max)
        self._mapper = RowMapper(options, package, self.left_out, self._key)

    def _lines(self) -> list[bytes]:
        """The lines that have come since the last call, at most about READ_MAX bytes."""
        raise NotImplementedError

    def _read(self, _now: float) -> list[Sample | Label]:
        return [item for line in self._lines() for item in self._mapper.take(line)]
