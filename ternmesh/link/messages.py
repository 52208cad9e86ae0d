"""The bodies of the reliable link: offer, symbol, status and question. SPEC.md section 8.2.

They travel under the seal like every other body (`ternmesh.wire.frame`).
"""

import hashlib
import struct
from dataclasses import dataclass

from ternmesh.errors import WireError
from ternmesh.link.erasure_code import GENERATION_MAX, SOURCES_MAX

OFFER, STATUS, QUESTION = 0x06, 0x07, 0x08
SYMBOL, LAST_SYMBOL = 0x50, 0x60  # the low four bits are the slot
SLOTS = 16
NAME_SIZE = 4
SIZE_MAX = (1 << 24) - 1
_OFFER = struct.Struct("<BBH4s3sH")
_SYMBOL = struct.Struct("<BH")
SYMBOL_HEAD = _SYMBOL.size
GENERATIONS_MAX = SOURCES_MAX // GENERATION_MAX
_ZEROS_MAX = 0xFF - GENERATION_MAX  # of one byte


@dataclass(frozen=True, slots=True)
class Offer:
    """The sender begins a transfer, or asks for a `Status`.

    `number` (16 bits) tells equal objects apart; `name` is the head of sha256(number, object).
    """

    slot: int
    number: int
    name: bytes
    size: int
    symbol_bytes: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol of the transfer in a slot; `is_last` asks for a `Status`."""

    slot: int
    index: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Status:
    """The number of missing symbols by generation; empty if the receiver holds the object."""

    name: bytes
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A request for the offer of a slot in which symbols arrived without an offer."""

    slot: int


Message = Offer | Symbol | Status | Question


def object_name(number: int, payload: bytes) -> bytes:
    """Return the name of an object on the air: the head of sha256(u16 number, payload)."""
    low = (number & 0xFFFF).to_bytes(2, "little")
    return hashlib.sha256(low + payload).digest()[:NAME_SIZE]


def is_link(body: bytes) -> bool:
    return body[0] in (OFFER, STATUS, QUESTION) or body[0] & 0xF0 in (SYMBOL, LAST_SYMBOL)


def write_message(message: Message, room: int = 1 << 16) -> bytes:
    """Return a message as a body. A status names the needs that fit in `room` (>= 9) bytes."""
    match message:
        case Offer():
            size = message.size.to_bytes(3, "little")
            head = (OFFER, message.slot, message.number, message.name)
            return _OFFER.pack(*head, size, message.symbol_bytes)
        case Symbol():
            kind = LAST_SYMBOL if message.is_last else SYMBOL
            return _SYMBOL.pack(kind | message.slot, message.index) + message.data
        case Status():
            return _write_status(message, room)
        case Question():
            return bytes((QUESTION, message.slot))


def read_message(body: bytes) -> Message:
    """Return the message in a body of the link. Raises WireError "link" if it is not valid."""
    match body[0]:
        case 0x06:
            return _read_offer(body)
        case 0x07:
            return _read_status(body)
        case 0x08:
            _check(len(body) == 2, "a question has two bytes")
            return Question(_slot(body[1]))
    _check(len(body) > SYMBOL_HEAD, "a symbol is shorter than its head")
    kind, index = _SYMBOL.unpack_from(body)
    is_last = kind & 0xF0 == LAST_SYMBOL
    return Symbol(kind & 0x0F, index, body[SYMBOL_HEAD:], is_last)


def _read_offer(body: bytes) -> Offer:
    _check(len(body) == _OFFER.size, f"an offer has {_OFFER.size} bytes")
    _, slot, number, name, size, symbol_bytes = _OFFER.unpack(body)
    size = int.from_bytes(size, "little")
    _check(size > 0 and symbol_bytes > 0, "an offer of nothing")
    return Offer(_slot(slot), number, name, size, symbol_bytes)


def _write_status(status: Status, room: int) -> bytes:
    """A byte for each need, 1 to 128; a byte above that is so many needs of zero."""
    body, zeros = bytes((STATUS,)) + status.name, 0
    for need in status.needs:
        if need == 0:
            zeros += 1
            continue
        runs, rest = divmod(zeros, _ZEROS_MAX)
        part = bytes([0xFF] * runs + [GENERATION_MAX + rest] * (rest > 0) + [need])
        if len(body) + len(part) > room:
            break
        body, zeros = body + part, 0
    return body


def _read_status(body: bytes) -> Status:
    _check(len(body) > NAME_SIZE, "a status is shorter than a name")
    needs: list[int] = []
    for byte in body[1 + NAME_SIZE :]:
        needs += [byte] if byte <= GENERATION_MAX else [0] * (byte - GENERATION_MAX)
        _check(len(needs) <= GENERATIONS_MAX, f"a status of more than {GENERATIONS_MAX} needs")
    status = Status(body[1 : 1 + NAME_SIZE], tuple(needs))
    _check(_write_status(status, len(body)) == body, "a status takes more bytes than it needs")
    return status


def _slot(value: int) -> int:
    _check(value < SLOTS, f"slot {value}: there are {SLOTS}")
    return value


def _check(is_right: bool, sentence: str) -> None:
    if not is_right:
        raise WireError("link", sentence)
