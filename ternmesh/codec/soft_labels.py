"""Soft labels in few bits: the probabilities of a row of classes in eighths, at most three nonzero.

A row is its shape, the eighths in falling order, and the class of each. Both are coded in one large
integer by an asymmetric numeral system without renormalisation (Duda 2013): shapes with counts that
adapt from row to row, classes uniformly among those that are left. SPEC.md section 12.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError

UNITS = 8  # a probability is a number of eighths
KEPT = 3  # classes with a probability, at most
CLASSES_MAX = 1024
ROWS_MAX = 4096  # in one code
ADAPTATION = 2  # added to the count of a shape for each row that has it

Units = NDArray[np.uint8]
"""Soft labels: uint8 [rows, classes], each row with sum UNITS and at most KEPT nonzeros."""

SHAPES: Final = tuple(
    (first, second, third)[: 1 + (second > 0) + (third > 0)]
    for first in range(UNITS, 0, -1)
    for second in range(min(first, UNITS - first), -1, -1)
    for third in [UNITS - first - second]
    if third <= second
)


def quantise(probabilities: NDArray[np.floating]) -> Units:
    """The nearest soft labels of probabilities [rows, classes]; CodecError for NaN or only zeros.

    The KEPT largest of a row are scaled to the sum 1, and rounded by largest remainders.
    """
    rows, classes = probabilities.shape
    if not 0 < classes <= CLASSES_MAX:
        raise CodecError(f"soft labels are for 1 to {CLASSES_MAX} classes")
    kept = np.argsort(-probabilities, axis=1, kind="stable")[:, :KEPT]
    largest = np.take_along_axis(probabilities, kept, axis=1).clip(0)
    total = largest.sum(axis=1, keepdims=True)
    if not (np.isfinite(total) & (total > 0)).all():
        raise CodecError("soft labels are made of finite probabilities, not all of them zero")
    exact = largest / total * UNITS
    parts = np.floor(exact)
    left = UNITS - parts.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(parts - exact, axis=1, kind="stable"), axis=1)
    units = np.zeros((rows, classes), dtype=np.uint8)
    np.put_along_axis(units, kept, (parts + (rank < left)).astype(np.uint8), axis=1)
    return units


def to_probabilities(units: Units) -> NDArray[np.float32]:
    """The probabilities that soft labels stand for, float32 [rows, classes]."""
    return units.astype(np.float32) / np.float32(UNITS)


def encode(units: Units) -> bytes:
    """The code of soft labels; CodecError where a row is none."""
    symbols: list[_Symbol] = []
    shapes = _Shapes(units.shape[1])
    for row in units:
        classes = sorted(np.flatnonzero(row).tolist(), key=lambda c: (-int(row[c]), c))
        shape = tuple(int(row[c]) for c in classes)
        if shape not in shapes.counts:
            raise CodecError(f"a soft label has {KEPT} nonzeros at most, with the sum {UNITS}")
        symbols.append(shapes.find(shape))
        left = list(range(units.shape[1]))
        for one in classes:
            symbols.append(_Symbol(left.index(one), 1, len(left)))
            left.remove(one)
    number = 1
    for symbol in reversed(symbols):
        whole, rest = divmod(number, symbol.count)
        number = whole * symbol.total + symbol.start + rest
    return number.to_bytes(-(-number.bit_length() // 8), "little")


def decode(data: bytes, rows: int, classes: int) -> Units:
    """The soft labels in a code; WireError unless the bytes are a complete, canonical code."""
    if not 0 < rows <= ROWS_MAX or not 0 < classes <= CLASSES_MAX:
        raise WireError("coding", f"a code is of 1 to {ROWS_MAX} rows")
    if not data or data[-1] == 0:
        raise WireError("coding", "soft labels end with a zero byte, or are empty")
    number = int.from_bytes(data, "little")
    units = np.zeros((rows, classes), dtype=np.uint8)
    shapes = _Shapes(classes)
    for row in units:
        if not number:
            break
        shape, number = shapes.take(number)
        left = list(range(classes))
        before = (UNITS, -1)
        for part in shape:
            number, place = divmod(number, len(left))
            one = left.pop(place)
            if part == before[0] and one < before[1]:
                raise WireError("coding", "classes of one probability are not in their order")
            row[one] = part
            before = (part, one)
    if number != 1:
        raise WireError("coding", "bits are missing or left over after the last soft label")
    return units


@dataclass(frozen=True, slots=True)
class _Symbol:
    """A symbol's interval among `total`."""

    start: int
    count: int
    total: int


@dataclass(slots=True)
class _Shapes:
    """How often each shape has occurred, for this number of classes."""

    classes: int
    counts: dict[tuple[int, ...], int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = {shape: 1 for shape in SHAPES if len(shape) <= self.classes}

    def find(self, shape: tuple[int, ...]) -> _Symbol:
        """The interval of a shape, which then counts more."""
        symbol = _Symbol(dict(self._starts())[shape], self.counts[shape], self._total)
        self.counts[shape] += ADAPTATION
        return symbol

    def take(self, number: int) -> tuple[tuple[int, ...], int]:
        """The shape at the end of a number, which then counts more, and the rest of the number."""
        whole, slot = divmod(number, self._total)
        for shape, start in self._starts():
            count = self.counts[shape]
            if slot < start + count:
                break
        self.counts[shape] += ADAPTATION
        return shape, count * whole + slot - start

    @property
    def _total(self) -> int:
        return sum(self.counts.values())

    def _starts(self) -> Iterator[tuple[tuple[int, ...], int]]:
        start = 0
        for shape, count in self.counts.items():
            yield shape, start
            start += count
