"""The little of Protocol Buffers' wire format that Meshtastic's messages need."""

from ternmesh.errors import WireError

Value = int | bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10


def varint(number: int) -> bytes:
    """An unsigned number in groups of seven bits, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def number_field(field: int, number: int) -> bytes:
    """An unsigned integer, enumeration or boolean."""
    return varint(field << 3 | _VARINT) + varint(number)


def fixed32_field(field: int, number: int) -> bytes:
    """A number in four bytes, or the bits of a float."""
    return varint(field << 3 | _FIXED32) + number.to_bytes(4, "little")


def bytes_field(field: int, data: bytes) -> bytes:
    """Bytes, text or a message."""
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def fields(message: bytes) -> dict[int, Value]:
    """Field numbers with their values, the last one where several have a number; or WireError."""
    found: dict[int, Value] = {}
    at = 0
    while at < len(message):
        key, at = _varint_at(message, at)
        value: Value
        match key & 7:
            case 0:
                value, at = _varint_at(message, at)
            case 2:
                size, at = _varint_at(message, at)
                value, at = _bytes_at(message, at, size)
            case 5:
                raw, at = _bytes_at(message, at, 4)
                value = int.from_bytes(raw, "little")
            case 1:
                value, at = _bytes_at(message, at, 8)
            case _:
                raise WireError("protobuf", "a protobuf field of a kind that is not in use")
        found[key >> 3] = value
    return found


def number(found: dict[int, Value], field: int) -> int:
    """An unsigned number, 0 where there is none; WireError for a field of another kind."""
    value = found.get(field, 0)
    if not isinstance(value, int):
        raise WireError("protobuf", f"field {field} is no number")
    return value


def data(found: dict[int, Value], field: int) -> bytes | None:
    """Bytes, None where there are none; WireError for a field of another kind."""
    value = found.get(field)
    if isinstance(value, int):
        raise WireError("protobuf", f"field {field} is a number")
    return value


def _varint_at(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + index + 1
    raise WireError("protobuf", "a number that does not end")


def _bytes_at(message: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(message):
        raise WireError("protobuf", "a field that is longer than its message")
    return message[at : at + size], at + size
