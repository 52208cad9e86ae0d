"""The fields of protobuf messages, one pass over the bytes, strict where readers disagree.

What one reader merges, truncates or skips and another does not is refused: a field that its message
does not have, a second value of a field that has one, a number that does not fit, a group. Nothing
is allocated by a claimed length: values are views of the bytes. The encoding is that of
protobuf.dev/programming-guides/encoding.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edge.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
TAG_SIZE_MAX, VARINT_SIZE_MAX = 5, 10

Value = int | memoryview


class Field(NamedTuple):
    """One field of a message: its name, its wire type, whether it may come again."""

    name: str
    wire: int
    repeated: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A kind of message: its name for sentences, its fields, and what has no place in it."""

    name: str
    fields: Mapping[int, Field]
    refused: Mapping[int, str] = dataclasses.field(default_factory=dict)


def one(name: str, wire: int = BYTES) -> Field:
    """A field that a message has at most once."""
    return Field(name, wire, repeated=False)


def many(name: str, wire: int = BYTES) -> Field:
    """A field that may come again; numbers may also come packed."""
    return Field(name, wire, repeated=True)


class Walk:
    """Walks the messages of one file, `fields_max` fields and packed numbers in all."""

    def __init__(self, fields_max: int) -> None:
        self._left = fields_max

    def spend(self, count: int) -> None:
        """Count fields or packed numbers; ModelError where the file has too many."""
        self._left -= count
        if self._left < 0:
            raise ModelError("it has more fields than any model that a board can run")

    def fields(self, data: memoryview, kind: Message) -> Iterator[tuple[str, Value]]:
        """Name and value of each field in `data`: numbers unsigned, everything else as views.

        A repeated number may also come packed, as a view of many. ModelError where `data` is not a
        message of this kind.
        """
        at, end, seen = 0, len(data), 0
        while at < end:
            self.spend(1)
            tag, at = varint(data, at, TAG_SIZE_MAX)
            number, wire = tag >> 3, tag & 7
            field = kind.fields.get(number)
            if field is None:
                what = kind.refused.get(number, f"a field {number}")
                raise ModelError(f"{kind.name} has {what}, which a board does not take")
            if not field.repeated:
                if seen >> number & 1:
                    raise ModelError(f"{kind.name} has two of {field.name}")
                seen |= 1 << number
            if wire != field.wire and not (wire == BYTES and field.repeated):
                raise ModelError(f"{field.name} of {kind.name} has the wrong wire type")
            if wire == VARINT:
                value, at = varint(data, at)
                yield field.name, value
                continue
            if wire == BYTES:
                size, at = varint(data, at)
            else:
                size = FIXED_SIZES[wire]
            if size > end - at:
                raise ModelError(f"it ends inside {field.name} of {kind.name}")
            at += size
            yield field.name, data[at - size : at]


def varint(data: memoryview, at: int, size_max: int = VARINT_SIZE_MAX) -> tuple[int, int]:
    """The number at `at` of `data`, 0 to 2**64 - 1, and where it ends; ModelError."""
    if at < len(data) and data[at] < 0x80:  # nearly all of them
        return data[at], at + 1
    value = 0
    for index, byte in enumerate(data[at : at + size_max]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + index + 1
    raise ModelError("it has a number that ends nowhere or is too long")


def varints(value: Value) -> Iterator[int]:
    """The signed numbers of a field that came alone or packed."""
    if isinstance(value, int):
        yield signed(value)
        return
    at = 0
    while at < len(value):
        number, at = varint(value, at)
        yield signed(number)


def signed(value: int) -> int:
    """An int64 as protobuf writes it."""
    return value - (1 << 64) if value >> 63 else value
