"""Lines of text to samples: CSV or JSON rows, of which the last ones are the input of a model."""

import csv
import json
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from edge.data.live.base import LeftOut, LiveSource, sole_input
from edge.data.live.options import RowOptions
from edge.data.sources import Label, Sample, as_number, label_arrays
from edge.errors import DataError
from ternmesh.model_package import ModelPackage

LINE_MAX = 8192  # bytes
DEPTH_MAX = 64  # brackets of JSON that are open at once: how many json takes depends on Python
READ_MAX = 1 << 14  # bytes in one poll: 0.1 s of work for a PC, 1 s for a small board
FLOAT32_MAX = float(np.finfo(np.float32).max)
ROWS_MAX = 1000  # in one JSON value
LINE_SHOWN, BEFORE = 80, 20  # bytes; of these, before what is wrong
SEPARATORS = (",", ";", "\t", "|")
DECIMAL_COMMA = SEPARATORS[1:]
_DATA = re.compile(r"[+-]?([.,]?\d+([-+:/.,e]|$)|nan$)", re.I)  # a number or a time, no name
_SEPARATOR = re.compile(r'"?sep=([,;|\t]?)"?,*', re.I)  # with which Excel begins a file
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # or three decimals

Row = dict[str, Any]


class LineSplitter:
    """Bytes to lines of at most LINE_MAX bytes; longer ones are counted in `left_out`.

    With `skips`, it begins after the first end of a line: what comes before may be half a line.
    """

    def __init__(self, left_out: LeftOut, *, skips: bool) -> None:
        self._left_out = left_out
        self._skips = skips
        self.partial = b""  # the line that has not ended

    def take(self, data: bytes) -> list[bytes]:
        """The lines that `data` ends, without their ends."""
        *lines, self.partial = (self.partial + data).split(b"\n")
        if self._skips and lines:
            del lines[0]
            self._skips = False
        if len(self.partial) > LINE_MAX:
            if not self._skips:
                self._left_out.add(f"line over {LINE_MAX} bytes")
            self._skips = True
        if self._skips:
            self.partial = b""
        return lines


class RowReader:
    """Lines to rows: the fields of a JSON object by name, those of CSV by the header or by place.

    A CSV line with the names of all columns, and of the target, is a header. Without `separator` it
    is found: a comma, or a semicolon, tab or bar where the header has one, or where a first row
    without a header has. Numbers may have a decimal comma where the comma is no separator. JSON may
    be nested ("temp.value"), a list of rows or of numbers, and stretch over several lines.
    """

    def __init__(self, options: RowOptions, left_out: LeftOut) -> None:
        self._columns = options.columns
        self._named = dict.fromkeys([*options.columns, options.target or options.columns[0]])
        self._left_out = left_out
        self._given = self._separator = options.separator
        self._header: Sequence[str] = ()
        self._lacks = ""  # a column that the newest header does not have: its rows have other names
        self._fields = 0  # of each row
        self._odd = 0  # of a row that had not as many: a second one of these is no accident
        self._decimal_comma = ""  # the separator, which may allow it
        self._open_json = ""  # lines of JSON that have not ended
        self._fault: tuple[str, str] | None = None  # what is wrong there, and the place

    def take(self, line: bytes) -> list[Row]:
        """The rows that a line adds. DataError where it is none."""
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise DataError("line that is not UTF-8") from error
        if self._open_json or text[:1] in ("{", "["):
            return self._take_json(text)
        return self._take_csv(text) if line.strip() else []

    def is_header(self, line: bytes) -> bool:
        """Whether `line` names all columns, or the separator: those of later lines, then.

        DataError where a column stands there twice.
        """
        text = line.decode("utf-8-sig", errors="replace").strip()
        if found := _SEPARATOR.fullmatch(text):
            self._given = self._separator = found[1] or "\t"
            return True
        for separator in (self._given,) if self._given else SEPARATORS:
            fields = _fields(text, separator)
            if self._named.keys() <= set(fields) and not any(map(str.isdigit, self._columns)):
                if twice := [name for name in self._named if fields.count(name) > 1]:
                    raise DataError(f"header with {twice[0]} twice: rename one of the columns")
                self._header, self._separator, self._fields = fields, separator, len(fields)
                self._decimal_comma, self._lacks = separator, ""
                return True
        return False

    def begin(self, line: bytes, path: str) -> None:
        """Read the first line of a file. DataError where it is a header without all columns."""
        text = line.decode("utf-8-sig", errors="replace").strip()
        if "\0" in text or "\r" in text:
            raise DataError(f"{path} is no CSV file in UTF-8 with a line for each row: save it so")
        is_named = text[:1] not in "{[" and not any(map(str.isdigit, self._columns))
        if not is_named or self.is_header(line):
            return
        # A file that logrotate has emptied goes on with rows.
        if not self._header or not any(map(_DATA.match, _fields(text, self._separator))):
            found = re.split(r'[,;|\t"]+', text)
            lacks = ", ".join(name for name in self._named if name not in found)
            raise DataError(f"{path} has no column {lacks}: its first line is {text!r:.200}")

    def number(self, row: Row, column: str) -> float:
        """The number in a column. DataError, ValueError, TypeError, LookupError."""
        value = _look_up(row, column)
        if isinstance(value, str) and self._decimal_comma in DECIMAL_COMMA and "." not in value:
            if self._decimal_comma != ";" and _THOUSANDS.fullmatch(value.strip()):
                raise DataError(f"number as 1,000 in column {column}: write 1000, or 1.0")
            value = value.replace(",", ".")
        return as_number(value)

    def _take_csv(self, text: str) -> list[Row]:
        if self.is_header(text.encode()):
            return []
        # Without one: numbers with decimal commas, or commas between numbers
        separator = self._separator or next((s for s in DECIMAL_COMMA if s in text), ",")
        fields = _fields(text, separator)
        if not any(map(_DATA.match, fields)):
            names = {*map(str.casefold, fields)}
            if not names.isdisjoint(map(str.casefold, self._header or self._named)):
                self._lacks = next(name for name in self._named if name not in fields)
        if self._lacks:
            raise DataError(f"row of a header that has no column {self._lacks}")
        row = dict(zip(self._header or map(str, count(1)), fields, strict=False))
        # Without a header, a line of text between the rows does not say how many fields they have.
        is_row = not self._header and all(_DATA.match(row.get(name, "")) for name in self._columns)
        if len(fields) not in (self._fields, self._odd) and self._fields:
            self._odd = len(fields) if is_row else 0
            raise DataError(f"line without the {self._fields} fields of the others, and no JSON")
        if is_row:
            self._fields = len(fields)
        if not self._header:
            self._decimal_comma = separator
        return [row]

    def _take_json(self, text: str) -> list[Row]:
        begun = self._open_json
        if begun and text[:1] in ("{", "["):  # it is new, or a part of what has begun
            is_wrong = self._fault or _try_json(begun + text)[1]
            if is_wrong or (begun[0] + text[0] == "{{" and _try_json(text)[0]):
                self.end()
        content, fault = _try_json(self._open_json + text)
        if content:
            self._open_json, self._fault = "", None
            return _rows(content[0])
        is_first, self._open_json = not self._open_json, f"{self._open_json}{text}\n"
        self._fault = self._fault or fault
        if len(self._open_json) > LINE_MAX:
            self.end(f"JSON over {LINE_MAX} bytes: write an object a line")
        elif is_first and fault:  # it may be all: no row after it is a part of it
            self.end()
        return []

    def end(self, reason: str = "JSON that does not end") -> None:
        """No more lines belong to what has begun."""
        if self._open_json:
            self._left_out.add(*(self._fault or (reason, self._open_json[:LINE_SHOWN])))
        self._open_json, self._fault = "", None


def _fields(text: str, separator: str) -> list[str]:
    try:
        reader = csv.reader([text], delimiter=separator, skipinitialspace=True)
        return [field.strip() for field in next(reader, [])]
    except csv.Error as error:
        raise DataError("line that is no CSV, and no JSON") from error


def _try_json(text: str) -> tuple[list[Any], tuple[str, str] | None]:
    """The value in a list, or what is wrong and where; neither where more lines may complete it."""
    deep = "JSON that is nested too deep, or has numbers that are too long"
    if sum(map(text.count, "[{")) - sum(map(text.count, "]}")) > DEPTH_MAX:
        return [], (deep, text[:LINE_SHOWN])
    try:
        return [json.loads(text)], None
    except json.JSONDecodeError as error:
        if error.pos >= len(text) or error.msg.startswith("Unterminated"):
            return [], None
        place = f"character {error.pos + 1}: {text[max(0, error.pos - BEFORE) :][:LINE_SHOWN]}"
        return [], (f"JSON that is wrong ({error.msg})", place)
    except (ValueError, RecursionError):
        return [], (deep, text[:LINE_SHOWN])


def _rows(content: Any) -> list[Row]:
    if isinstance(content, dict):
        return [content]
    if not isinstance(content, list) or not 0 < len(content) <= ROWS_MAX:
        raise DataError(f"JSON that is no object, and no list of 1 to {ROWS_MAX}")
    if all(isinstance(item, dict) for item in content):
        return content
    return [dict(zip(map(str, count(1)), content, strict=False))]


def _look_up(row: Row, column: str) -> Any:
    """The value of a column; "temp.value" is that of "value" in the object "temp"."""
    if column in row:
        return row[column]
    first, _, others = column.partition(".")
    return _look_up(row[first], others) if others else row[column]


class RowMapper:
    """Rows to samples: the columns of the last rows, in the shape of the model's input.

    How many rows follows from that shape. With a target, row t gives the label of the sample that
    ended with row t - horizon.
    """

    def __init__(
        self,
        options: RowOptions,
        package: ModelPackage,
        left_out: LeftOut,
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
        self.reader = RowReader(options, left_out)
        self.rows = size // len(options.columns)  # of one sample
        self._rows: deque[list[float]] = deque(maxlen=self.rows)
        self._keys: deque[str] = deque(maxlen=options.horizon + 1)  # "": no sample

    def take(self, line: bytes) -> list[Sample | Label]:
        """What a line adds; one that is no row is counted."""
        items: list[Sample | Label] = []
        shown = line[:LINE_SHOWN].decode(errors="replace")
        try:
            rows = self.reader.take(line)
        except DataError as error:
            self._left_out.add(str(error), shown)
            return []
        for row in rows:
            try:
                items += self._items(row)
            except DataError as error:
                self._left_out.add(str(error), shown)
        return items

    def _items(self, row: Row) -> list[Sample | Label]:
        options = self._options
        self._rows.append([self._number(row, column) for column in options.columns])
        is_full = len(self._rows) == self._rows.maxlen
        key = str(row["key"]) if row.get("key") is not None else ""
        self._keys.append((key or self._new_key()) if is_full else "")
        items: list[Sample | Label] = []
        if is_full:
            values = np.array(self._rows, np.float32).reshape(self._spec.shape[1:])
            items.append(Sample(self._keys[-1], {self._spec.name: values}))
        if options.target and len(self._keys) > options.horizon and self._keys[0]:
            items += self._label(row, options.target, self._keys[0])
        return items

    def _label(self, row: Row, target: str, key: str) -> list[Label]:
        try:
            value = _look_up(row, target)
            if value in ("", None):
                return []  # the sample waits for one from elsewhere
            number = self._number(row, target) if target in self._options.scale else value
            return [Label(key, label_arrays(self._package, number))]
        except (DataError, LookupError, TypeError):
            self._left_out.add(f"no label in column {target}", row.get(target))
            return []

    def _number(self, row: Row, column: str) -> float:
        mean, std = self._options.scale.get(column, (0.0, 1.0))
        number = math.nan
        with suppress(LookupError, ValueError, TypeError):
            number = self.reader.number(row, column)
        scaled: float = (number - mean) / std
        if abs(scaled) <= FLOAT32_MAX:  # also not for NaN
            return scaled
        what = "no number" if math.isnan(number) else "number too large"
        raise DataError(f"{what} in column {column}")


class RowSource(LiveSource):
    """A source of lines; a subclass has `_lines`."""

    def __init__(self, options: RowOptions, package: ModelPackage) -> None:
        super().__init__(options.rate_max)
        self._new_mapper = partial(RowMapper, options, package, self.left_out, self._key)
        self.mapper = self._new_mapper()

    def _lines(self, now: float) -> list[bytes]:
        """The lines that have come since the last call, at most about READ_MAX bytes."""
        raise NotImplementedError

    def _read(self, now: float) -> list[Sample | Label]:
        return [item for line in self._lines(now) for item in self.mapper.take(line)]
