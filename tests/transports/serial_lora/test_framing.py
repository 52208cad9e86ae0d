"""What finds the messages of a modem in a stream, however that is cut and damaged."""

import zlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh import protobuf
from transports.serial_lora import meshtastic
from transports.serial_lora.framing import (
    CobsUnframer,
    KissUnframer,
    LengthUnframer,
    cobs_decode,
    cobs_encode,
    cobs_frame,
    kiss_frame,
)
from transports.serial_lora.meshtastic import MeshtasticUnframer

EVERY_BYTE = bytes(range(256))
PAYLOADS = st.lists(st.binary(min_size=1, max_size=230), max_size=5)
CUTS = st.lists(st.integers(0, 2000))


def from_radio(data: bytes) -> bytes:
    return meshtastic.frame(protobuf.bytes_field(2, data))


CompanionUnframer = partial(LengthUnframer, b">", "little", 255, bytes)


def companion(data: bytes) -> bytes:
    return b">" + len(data).to_bytes(2, "little") + data


# By reader: how a payload is written, and as what it is found.
READERS: dict[Any, tuple[Callable[[bytes], bytes], Callable[[bytes], object]]] = {
    CobsUnframer: (cobs_frame, lambda data: data),
    KissUnframer: (lambda data: kiss_frame(7, data), lambda data: (7, data)),
    MeshtasticUnframer: (from_radio, lambda data: {2: data}),
    CompanionUnframer: (companion, lambda data: data),
}


@pytest.mark.parametrize("reader", READERS)
@given(PAYLOADS, CUTS, st.binary(max_size=20).filter(lambda noise: not set(noise) & set(b"\x94>")))
def test_messages_survive_any_cut_and_noise_between(reader, payloads, cuts, noise) -> None:
    write, as_found = READERS[reader]
    stream = b"".join(noise + b"\0\xc0" + write(payload) for payload in payloads)
    ends = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    parser = reader()
    found = [message for a, b in pairwise(ends) for message in parser.feed(stream[a:b])]
    wanted = [as_found(payload) for payload in payloads]
    assert [message for message in found if message in wanted] == wanted


FLIPPED = bytearray(cobs_frame(EVERY_BYTE[:200]))
FLIPPED[70] ^= 1
INNER = from_radio(b"in")
TOO_LONG = b"x" * 5000
COBS_TOO_LONG = (len(TOO_LONG) - 1) // CobsUnframer.bytes_max  # each so many bytes count once
KISS_TOO_LONG = (len(TOO_LONG) - 1) // KissUnframer.bytes_max


@pytest.mark.parametrize(
    ("reader", "stream", "payloads", "malformed"),
    [
        (CobsUnframer, bytes(FLIPPED) + cobs_frame(b"good"), [b"good"], 1),
        (CobsUnframer, cobs_frame(b"half")[:-3] + cobs_frame(b"good"), [b"good"], 1),
        (CobsUnframer, TOO_LONG, [], COBS_TOO_LONG),  # as a port that pours without end
        (CobsUnframer, TOO_LONG + b"\0" + cobs_frame(b"good"), [b"good"], COBS_TOO_LONG),
        # R7.3-5: bytes of RSSI between two frames
        (CobsUnframer, cobs_frame(b"a") + b"\xb2" + cobs_frame(b"b") + b"\xb0", [b"a", b"b"], 0),
        (KissUnframer, b"\xc0\x00\xdb" + kiss_frame(7, b"good"), [b"good"], 1),
        (KissUnframer, b"\xc0\x00\xdb\x41\xc0" + kiss_frame(7, b"good"), [b"good"], 1),
        (KissUnframer, b"\xc0" + TOO_LONG + kiss_frame(7, b"good"), [b"good"], KISS_TOO_LONG),
        (MeshtasticUnframer, b"INFO\r\n" + INNER + b"\x94log" + INNER, [b"in", b"in"], 0),
        (MeshtasticUnframer, b"\x94\xc3\xff\xffmore" + INNER, [b"in"], 1),
        (CompanionUnframer, b"> 1.17\r\n>\0\0" + companion(b"\x0a"), [b"\x0a"], 2),
        # a message within what only looked like one
        (MeshtasticUnframer, b"\x94\xc3\0" + bytes([len(INNER) + 1]) + INNER + b"\x0b", [b"in"], 1),
    ],
)
def test_what_is_damaged_is_counted_and_costs_no_other(reader, stream, payloads, malformed) -> None:
    parser, as_found = reader(), READERS[reader][1]
    assert parser.feed(stream) == [as_found(payload) for payload in payloads]
    assert parser.malformed == malformed


def test_a_false_length_holds_messages_back_until_it_is_given_up() -> None:
    parser: Any = MeshtasticUnframer()
    assert parser.feed(b"\x94\xc3\x01\x00" + INNER) == []
    assert parser.flush() == [{2: b"in"}]
    assert parser.flush() == []


@pytest.mark.parametrize(
    ("data", "encoded"),
    [
        (b"", b"\x01"),
        (b"\0", b"\x01\x01"),
        (b"\x11\x22\x00\x33", b"\x03\x11\x22\x02\x33"),
        (b"\x11\0\0\0", b"\x02\x11\x01\x01\x01"),
        (EVERY_BYTE[1:], b"\xff" + EVERY_BYTE[1:-1] + b"\x02\xff"),
    ],
)
def test_cobs_as_published(data: bytes, encoded: bytes) -> None:
    assert cobs_encode(data) == encoded
    assert cobs_decode(encoded) == data


@given(st.binary(max_size=600))
def test_cobs_has_no_zero_and_one_byte_in_254_more(data: bytes) -> None:
    encoded = cobs_encode(data)
    assert 0 not in encoded
    assert len(encoded) <= len(data) + 1 + len(data) // 254
    assert cobs_decode(encoded) == data


def test_frames_as_specified() -> None:
    payload = b"\x00\x01hi"
    crc = zlib.crc32(payload).to_bytes(4, "little")
    assert cobs_frame(payload) == b"\0" + cobs_encode(payload + crc) + b"\0"
    assert cobs_frame(payload).hex() == "000108016869788dccb900"
    assert kiss_frame(0, b"\xc0\xdb\xdc\xdd") == b"\xc0\x00\xdb\xdc\xdb\xdd\xdc\xdd\xc0"
