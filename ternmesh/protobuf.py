"""Protocol Buffers messages: writers of single fields, and two strict, bounded readers.

`fields` reads a message of which only some fields matter. `Walk` reads messages against a schema
and refuses what one parser merges, truncates or skips and another does not: a field outside the
schema, a second value of a single field. Both refuse groups and numbers of more than 64 bits.
Values are views of the data, so a claimed length allocates nothing. Errors are WireError.

The encoding is that of protobuf.dev/programming-guides/encoding.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ternmesh.errors import WireError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
TAG_SIZE_MAX, VARINT_SIZE_MAX = 5, 10

Value = int | memoryview


def number_field(field: int, number: int) -> bytes:
    """An unsigned integer, enumeration or boolean."""
    return _varint_bytes(field << 3 | VARINT) + _varint_bytes(number)


def fixed32_field(field: int, number: int) -> bytes:
    """A number in four bytes, or the bits of a float."""
    return _varint_bytes(field << 3 | FIXED32) + number.to_bytes(4, "little")


def bytes_field(field: int, data: bytes) -> bytes:
    """Bytes, text or an embedded message."""
    return _varint_bytes(field << 3 | BYTES) + _varint_bytes(len(data)) + data


def _varint_bytes(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def fields(message: bytes | memoryview) -> dict[int, Value]:
    """The values by field number, the last value where a number comes again.

    Varints and 32-bit fields are unsigned numbers, all others are views.
    """
    data = memoryview(message)
    values: dict[int, Value] = {}
    at = 0
    while at < len(data):
        tag, at = varint(data, at, TAG_SIZE_MAX)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            values[number], at = varint(data, at)
            continue
        if wire == BYTES:
            size, at = varint(data, at)
        elif wire in FIXED_SIZES:
            size = FIXED_SIZES[wire]
        else:
            raise WireError("protobuf", f"a field has the wire type {wire}, which is not in use")
        if size > len(data) - at:
            raise WireError("protobuf", f"the message ends inside field {number}")
        at += size
        view = data[at - size : at]
        values[number] = int.from_bytes(view, "little") if wire == FIXED32 else view
    return values


def number(values: dict[int, Value], field: int) -> int:
    """An unsigned number of `fields`, 0 where the field is absent."""
    value = values.get(field, 0)
    if not isinstance(value, int):
        raise WireError("protobuf", f"field {field} is not a number")
    return value


def data(values: dict[int, Value], field: int) -> bytes | None:
    """The bytes of a field of `fields`, None where it is absent."""
    value = values.get(field)
    if isinstance(value, int):
        raise WireError("protobuf", f"field {field} is a number")
    return None if value is None else bytes(value)


class Field(NamedTuple):
    """One field of a schema: its name, its wire type, whether it may come again."""

    name: str
    wire: int
    repeated: bool


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """The schema of a message: its name in errors, its fields, and names of refused fields."""

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
    """Reads the messages of one file: at most `fields_max` fields and packed numbers in all."""

    def __init__(self, fields_max: int) -> None:
        self._left = fields_max

    def spend(self, count: int) -> None:
        """Count fields or packed numbers; WireError where the file has too many."""
        self._left -= count
        if self._left < 0:
            raise WireError("protobuf", "it has more fields than are allowed")

    def fields(self, data: memoryview, kind: MessageSchema) -> Iterator[tuple[str, Value]]:
        """Name and value of each field in `data`: varints as unsigned numbers, others as views.

        A repeated number may also come packed, as a view of many.
        """
        at, end, seen = 0, len(data), 0
        while at < end:
            self.spend(1)
            tag, at = varint(data, at, TAG_SIZE_MAX)
            number, wire = tag >> 3, tag & 7
            field = kind.fields.get(number)
            if field is None:
                what = kind.refused.get(number, f"a field {number}")
                raise WireError("protobuf", f"{kind.name} has {what}, which is not accepted")
            if not field.repeated:
                if seen >> number & 1:
                    raise WireError("protobuf", f"{kind.name} has two of {field.name}")
                seen |= 1 << number
            if wire != field.wire and not (wire == BYTES and field.repeated):
                raise WireError("protobuf", f"{field.name} of {kind.name} has the wrong wire type")
            if wire == VARINT:
                value, at = varint(data, at)
                yield field.name, value
                continue
            if wire == BYTES:
                size, at = varint(data, at)
            else:
                size = FIXED_SIZES[wire]
            if size > end - at:
                raise WireError("protobuf", f"it ends inside {field.name} of {kind.name}")
            at += size
            yield field.name, data[at - size : at]


def varint(data: memoryview, at: int, size_max: int = VARINT_SIZE_MAX) -> tuple[int, int]:
    """The number at `at` of `data`, 0 to 2**64 - 1, and where it ends."""
    if at < len(data) and data[at] < 0x80:  # nearly all of them
        return data[at], at + 1
    value = 0
    for index, byte in enumerate(data[at : at + size_max]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + index + 1
    raise WireError("protobuf", "it has a number that ends nowhere or is too long")


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
