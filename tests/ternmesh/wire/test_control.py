import time
from dataclasses import replace

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.plan import FRAME_MTU_MIN
from ternmesh.wire import control
from ternmesh.wire.frame import FRAME_OVERHEAD, NODE_MAX

u32 = st.integers(0, 0xFFFFFFFF)
eight = st.binary(min_size=8, max_size=8)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", fullmatch=True)
hellos = st.builds(
    control.Hello, names, eight, eight, eight, u32, st.binary(min_size=16, max_size=16), u32
)
welcomes = st.builds(
    control.Welcome,
    eight,
    st.integers(1, NODE_MAX),
    eight,
    u32,
    st.integers(0, 2),
    u32,
    st.lists(u32, max_size=32).map(tuple),
)
receipts = st.builds(
    control.Receipt, u32, st.binary(min_size=4, max_size=4), st.binary(min_size=1, max_size=128)
)
refusals = st.builds(control.Refusal, u32, st.from_regex(r"[a-z -]{1,32}", fullmatch=True))
announces = st.builds(control.Announce, eight, u32, st.integers(0, 2), u32)
silences = st.builds(control.Silent, u32)
numbers = st.lists(u32, max_size=32).map(tuple)
versions = st.from_regex(r"[A-Za-z0-9.+!_-]{1,32}", fullmatch=True)
inquiries = st.builds(control.Inquiry)
reports = st.builds(control.Report, versions, u32, numbers, numbers)
settings = st.builds(control.Settings, u32, numbers)
short_messages = hellos | welcomes | receipts | refusals | announces | silences
messages = short_messages | inquiries | reports | settings

HELLO = control.Hello("theo", b"instance", b"modelmod", b"runrunru", 3, b"referencereferen", 120)


def refused(body: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        control.read_control(body)
    return caught.value


@given(messages)
def test_a_message_reads_as_written(message: control.Control) -> None:
    body = control.write_control(message)
    assert control.read_control(body) == message


@given(short_messages)
def test_every_message_fits_the_smallest_frame(message: control.Control) -> None:
    if isinstance(message, control.Welcome):
        message = replace(message, plan=message.plan[:11])
    assert len(control.write_control(message)) + FRAME_OVERHEAD <= FRAME_MTU_MIN


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda data: b"\x01" + data))
def test_any_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    try:
        message = control.read_control(data)
    except WireError:
        return
    assert control.write_control(message) == data


@given(messages, st.data())
def test_a_damaged_message_is_a_message_or_a_wire_error(
    message: control.Control, data: st.DataObject
) -> None:
    body = bytearray(control.write_control(message))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(1, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        again = control.read_control(bytes(body))
    except WireError:
        return
    assert control.write_control(again) == body


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=8)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.builds(cbor2.CBORTag, st.integers(0, 2000), inner)
    ),
    max_leaves=12,
)


@given(values, st.booleans())
def test_any_cbor_is_a_message_or_a_wire_error(value: object, canonical: bool) -> None:  # R4.3-3
    data = b"\x01" + cbor2.dumps(value, canonical=canonical)
    try:
        message = control.read_control(data)
    except WireError:
        return
    assert control.write_control(message) == data


def array(*items: bytes) -> bytes:
    """A refusal's array of three, with chosen encodings of its items."""
    return b"\x01" + bytes([0x80 + len(items)]) + b"".join(items)


ROUND, WORD = b"\x07", b"\x65other"

HOSTILE = {
    "nothing": b"",
    "another kind": b"\x02" + array(b"\x03", ROUND, WORD)[1:],
    "no item": b"\x01",
    "not an array": b"\x01\x03",
    "an empty array": b"\x01\x80",
    "an unknown type": array(b"\x06", ROUND, WORD),
    "a word more than silence": array(b"\x05", ROUND, WORD),
    "a silence of no round": array(b"\x05", WORD),
    "a huge type": array(b"\x1b" + b"\xff" * 8, ROUND, WORD),
    "a field too few": array(b"\x03", ROUND),
    "a field too many": array(b"\x03", ROUND, WORD, b"\x00"),
    "a trailing byte": array(b"\x03", ROUND, WORD) + b"\x00",
    "a trailing item": array(b"\x03", ROUND, WORD) * 2,
    "cut short": array(b"\x03", ROUND, WORD)[:-1],
    "integer in two bytes": array(b"\x03", b"\x18\x07", WORD),
    "integer in nine bytes": array(b"\x03", b"\x1b" + bytes(7) + b"\x07", WORD),
    "length in two bytes": array(b"\x03", ROUND, b"\x78\x05other"),
    "array length in two bytes": b"\x01\x98\x03\x03" + ROUND + WORD,
    "a negative number": array(b"\x03", b"\x26", WORD),
    "more than 32 bits": array(b"\x03", b"\x1b\x00\x00\x00\x01\x00\x00\x00\x00", WORD),
    "a bignum": array(b"\x03", b"\xc2\x41\x07", WORD),
    "a negative bignum": array(b"\x03", b"\xc3\x41\x07", WORD),
    "a bignum of 900 bytes": array(b"\x03", b"\xc2\x59\x03\x84" + b"\xff" * 900, WORD),
    "a float": array(b"\x03", b"\xf9\x47\x00", WORD),
    "nan": array(b"\x03", b"\xf9\x7e\x00", WORD),
    "a double": array(b"\x03", b"\xfb\x40\x1c" + bytes(6), WORD),
    "true": array(b"\x03", b"\xf5", WORD),
    "null": array(b"\x03", b"\xf6", WORD),
    "undefined": array(b"\x03", b"\xf7", WORD),
    "a simple value": array(b"\x03", b"\xe0", WORD),
    "a long simple value": array(b"\x03", b"\xf8\x20", WORD),
    "a reserved simple value": array(b"\x03", b"\xf8\x10", WORD),
    "a reserved head": array(b"\x03", b"\x1c", WORD),
    "break": array(b"\x03", b"\xff", WORD),
    "a map": b"\x01\xa1\x03\x07",
    "a map as a field": array(b"\x03", b"\xa0", WORD),
    "duplicate keys": array(b"\x03", b"\xa2\x01\x01\x01\x02", WORD),
    "an indefinite array": b"\x01\x9f\x03" + ROUND + WORD + b"\xff",
    "an indefinite text": array(b"\x03", ROUND, b"\x7f\x65other\xff"),
    "indefinite bytes": array(b"\x02", ROUND, b"\x5f\x44abcd\xff", b"\x41\x01"),
    "an indefinite map": b"\x01\xbf\x03\x07\xff",
    "nested arrays": b"\x01" + b"\x81" * 500 + b"\x03",
    "nested maps": b"\x01" + b"\xa1\x01" * 400 + b"\x03",
    "nested tags": b"\x01" + b"\xc1" * 500 + b"\x03",
    "an array bomb": b"\x01\x9b\x00\x00\x00\xff" + b"\xff" * 4,
    "an array of 2**32": b"\x01\x9a\xff\xff\xff\xff",
    "a bytes bomb": array(b"\x03", b"\x5b\x00\x00\x00\xff" + b"\xff" * 4),
    "a text bomb": array(b"\x03", ROUND, b"\x7a\xff\xff\xff\xff"),
    "a map bomb": b"\x01\xba\xff\xff\xff\xff",
    "a date": array(b"\x03", b"\xc0\x74" + b"2013-03-21T20:04:00Z", WORD),
    "a time": array(b"\x03", b"\xc1\x1a\x51\x4b\x67\xb0", WORD),
    "a fraction": array(b"\x03", b"\xd8\x1e\x82\x01\x03", WORD),
    "a decimal": array(b"\x03", b"\xc4\x82\x21\x19\x6a\xb3", WORD),
    "a decimal with a huge exponent": array(b"\x03", b"\xc4\x82\x1a\x7f\xff\xff\xff\x01", WORD),
    "a regular expression": array(b"\x03", ROUND, b"\xd8\x23\x66(a+)+$"),
    "a mime message": array(b"\x03", ROUND, b"\xd8\x24\x62a:"),
    "an address": array(b"\x03", ROUND, b"\xd9\x01\x04\x44\x7f\x00\x00\x01"),
    "a set": array(b"\x03", ROUND, b"\xd9\x01\x02\x81\x01"),
    "a string reference": array(b"\x03", ROUND, b"\xd9\x01\x00\x82\x65other\xd8\x19\x00"),
    "a shared value": array(b"\x03", ROUND, b"\xd8\x1c\x65other"),
    "a shared cycle": b"\x01\xd8\x1c\x83\x03\xd8\x1d\x00" + WORD,
    "a dangling reference": array(b"\x03", b"\xd8\x1d\x00", WORD),
    "the self-described tag": b"\x01\xd9\xd9\xf7" + array(b"\x03", ROUND, WORD)[1:],
    "an unknown tag": array(b"\x03", b"\xda\x00\x12\x34\x56\x07", WORD),
    "bad utf-8": array(b"\x03", ROUND, b"\x62\xc3\x28"),
    "a word in capitals": array(b"\x03", ROUND, b"\x65Other"),
    "an empty word": array(b"\x03", ROUND, b"\x60"),
    "a word of 33 letters": array(b"\x03", ROUND, b"\x78\x21" + b"a" * 33),
    "a word with a newline": array(b"\x03", ROUND, b"\x66other\n"),
    "bytes for a word": array(b"\x03", ROUND, b"\x45other"),
    "a digest of 5 bytes": array(b"\x02", ROUND, b"\x45abcde", b"\x41\x01"),
    "an empty bitmap": array(b"\x02", ROUND, b"\x44abcd", b"\x40"),
    "a bitmap of 129 bytes": array(b"\x02", ROUND, b"\x44abcd", b"\x58\x81" + bytes(129)),
    "a phase of 3": array(b"\x04", b"\x48runrunru", ROUND, b"\x03", b"\x00"),
    "an inquiry with a word": array(b"\x07", WORD),
    "a report of no version": array(b"\x08", b"\x60", ROUND, b"\x80", b"\x80"),
    "a version with a newline": array(b"\x08", b"\x641.0\n", ROUND, b"\x80", b"\x80"),
    "a version of 33 letters": array(b"\x08", b"\x78\x21" + b"1" * 33, ROUND, b"\x80", b"\x80"),
    "settings by name": array(b"\x09", ROUND, b"\xa1\x65pause\x01"),
    "settings in settings": array(b"\x09", ROUND, b"\x81\x81\x01"),
    "33 settings": array(b"\x09", ROUND, b"\x98\x21" + bytes(33)),
    "settings without a number": array(b"\x09", b"\x80"),
    "the type after the last": array(b"\x0a", ROUND, WORD),
    "1,025 bytes": array(b"\x03", ROUND, b"\x79\x03\xf8" + b"a" * 1016),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_cbor_is_refused_at_once(body: bytes) -> None:  # R4.3-2
    start = time.process_time()
    refused(body)
    assert time.process_time() - start < 0.05  # of the processor's time; it takes 0.1 ms


def test_the_hostile_bodies_are_otherwise_good() -> None:
    assert control.read_control(array(b"\x03", ROUND, WORD)) == control.Refusal(7, "other")


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a" * 33},
        {"name": "a/b"},
        {"name": "a\n"},
        {"name": "ä"},
        {"instance": bytes(7)},
        {"model": bytes(9)},
        {"run": b""},
        {"global_hash": bytes(15)},
        {"version": -1},
        {"version": 1 << 32},
        {"samples": 1.0},
        {"samples": True},
    ],
    ids=str,
)
def test_fields_out_of_range_are_refused(change: dict[str, object]) -> None:  # R4.3-3
    message = replace(HELLO, **change)  # type: ignore[arg-type]
    assert refused(control.write_control(message)).reason == "control"


@pytest.mark.parametrize("address", [0, 0x7FFF, 0x8001, 0xFFFF, 0x10000, 0xFFFFFFFF])
def test_a_welcome_gives_a_context_that_fits_a_header(address: int) -> None:
    message = control.Welcome(bytes(8), address, bytes(8), 0, 0, 0, ())
    assert refused(control.write_control(message)).reason == "control"


def test_a_plan_of_33_numbers_is_refused() -> None:  # R5-4
    message = control.Welcome(bytes(8), 1, bytes(8), 0, 0, 0, tuple(range(33)))
    assert refused(control.write_control(message)).reason == "control"
