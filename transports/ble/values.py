"""The values of a BLE link: their writer and their reader (SPEC.md section 7.4).

Every value ends with a CRC-16. Its start value is a constant for a hello, and the session's number
for all others, so a value of an earlier connection is not accepted.
"""

import struct
from binascii import crc_hqx
from dataclasses import astuple, dataclass

from ternmesh.errors import WireError
from transports.ble.gatt import VALUE_MAX

VERSION = 1
FRAME_MAX = 4096  # bytes
WINDOW = 32  # values that may be unconfirmed; the bitmap of a status has as many bits
DATA_OVERHEAD = 4  # bytes of a data value beside its payload

_HELLO, _ANSWER, _DATA, _DATA_ASK, _ASK, _STATUS = range(1, 7)
_HELLO_FORM = struct.Struct("<BBHIIIB")  # kind, version, then the fields of Hello
_STATUS_FORM = struct.Struct("<BBBI")  # kind, next, window, later
_DATA_FORM = struct.Struct("<BB")  # kind, seq
_CRC = struct.Struct("<H")
_HELLO_START = 0xFFFF


@dataclass(frozen=True, slots=True)
class BleHello:
    """The begin of a session: the initiator sends it first, the peer answers with its own."""

    answer: bool
    session: int  # u16
    identity: int  # u32 of the sender, new at each start of its program
    peer_identity: int  # u32 of the peer that `frames_taken` is about; 0: none
    frames_taken: int  # u32, whole frames received from `peer_identity` in all its sessions
    window: int  # u8, how many values the sender takes at first


@dataclass(frozen=True, slots=True)
class Data:
    """A part of the stream of frames; `ask` requests a status."""

    seq: int  # u8
    ask: bool
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a status."""


@dataclass(frozen=True, slots=True)
class BleStatus:
    """What the sender has received, and its credits: for `window` values from `next` on."""

    next: int  # u8, the first value that is missing
    window: int  # u8
    later: int  # u32, bit i: value next + 1 + i was received


Value = BleHello | Data | Ask | BleStatus


def encode(value: Value, session: int) -> bytes:
    """The bytes of `value`; `session` (u16) is the start of the CRC, except for a hello."""
    match value:
        case BleHello():
            kind = _ANSWER if value.answer else _HELLO
            body = _HELLO_FORM.pack(kind, VERSION, *astuple(value)[1:])
            session = _HELLO_START
        case Data():
            body = _DATA_FORM.pack(_DATA_ASK if value.ask else _DATA, value.seq) + value.payload
        case Ask():
            body = bytes([_ASK])
        case BleStatus():
            body = _STATUS_FORM.pack(_STATUS, value.next, value.window, value.later)
    return body + _CRC.pack(crc_hqx(body, session))


def decode(value: bytes, session: int | None) -> Value:
    """The value in these bytes, or WireError; without a session (None), only a hello."""
    if not 1 + _CRC.size <= len(value) <= VALUE_MAX:
        raise WireError("length", f"a value of {len(value)} bytes is too short or too long")
    body, kind = value[: -_CRC.size], value[0]
    start = _HELLO_START if kind in (_HELLO, _ANSWER) else session
    if start is None:
        raise WireError("session", "a value came before the session began")
    if _CRC.unpack(value[-_CRC.size :])[0] != crc_hqx(body, start):
        raise WireError("crc", "a value is cut, damaged, or of an earlier session")
    if kind in (_DATA, _DATA_ASK) and len(body) > _DATA_FORM.size:
        return Data(body[1], kind == _DATA_ASK, body[_DATA_FORM.size :])
    if kind == _ASK and len(body) == 1:
        return Ask()
    if kind == _STATUS and len(body) == _STATUS_FORM.size:
        return BleStatus(*_STATUS_FORM.unpack(body)[1:])
    if kind in (_HELLO, _ANSWER) and len(body) == _HELLO_FORM.size:
        _, version, *fields = _HELLO_FORM.unpack(body)
        if version != VERSION:
            raise WireError("version", f"the peer speaks version {version}, not {VERSION}")
        return BleHello(kind == _ANSWER, *fields)
    raise WireError("kind", f"a value of kind {kind} and {len(value)} bytes is unknown")
