import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh import protobuf
from transports.serial_lora import meshtastic
from transports.serial_lora.framing import (
    CobsUnframer,
    KissUnframer,
    cobs_decode,
    cobs_encode,
    cobs_frame,
    kiss_frame,
)
from transports.serial_lora.reyax import Heard, ReyaxParser, TextLine

DATA = st.binary(max_size=600)
PAYLOADS = st.lists(st.binary(min_size=1, max_size=240), max_size=5)
EVERY_BYTE = bytes(range(256))
# Bytes that the parsers take for beginnings more often than random ones would be.
TEASING = st.lists(
    st.sampled_from([b"+RCV=", b"+OK\r\n", b"+", b"1,", b"240,", b"\r\n", b"\0", b"\xc0", b"\xdb"])
    | st.sampled_from([b"\x94\xc3", b"\x94\xc3\x00\x05", b"\x94\xc3\x01\xff"])
    | st.binary(max_size=30),
    max_size=60,
)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize(
    ("data", "encoded"),
    [
        (b"", b"\x01"),
        (b"\0", b"\x01\x01"),
        (b"\x11\x22\x00\x33", b"\x03\x11\x22\x02\x33"),
        (b"\x11\0\0\0", b"\x02\x11\x01\x01\x01"),
        (bytes(range(1, 255)) + b"\xff", b"\xff" + bytes(range(1, 255)) + b"\x02\xff"),
    ],
)
def test_cobs_as_published(data: bytes, encoded: bytes) -> None:
    assert cobs_encode(data) == encoded
    assert cobs_decode(encoded) == data


def test_a_cobs_frame_as_specified() -> None:
    payload = b"\x00\x01hi"
    crc = zlib.crc32(payload).to_bytes(4, "little")
    assert cobs_frame(payload) == b"\0" + cobs_encode(payload + crc) + b"\0"
    assert cobs_frame(payload).hex() == "000108016869788dccb900"


@given(DATA)
def test_cobs_has_no_zero_and_one_byte_in_254_more(data: bytes) -> None:
    encoded = cobs_encode(data)
    assert 0 not in encoded
    assert len(encoded) <= len(data) + 1 + len(data) // 254
    assert cobs_decode(encoded) == data


@given(PAYLOADS, st.lists(st.integers(0, 2000)), st.binary(max_size=20).map(lambda b: b + b"\0"))
def test_cobs_frames_survive_any_cut_and_noise_before(payloads, cuts, noise) -> None:
    stream = noise + b"".join(map(cobs_frame, payloads))
    unframer = CobsUnframer()
    found = [payload for piece in pieces(stream, cuts) for payload in unframer.feed(piece)]
    assert found == payloads


def test_a_damaged_cobs_frame_is_counted_and_the_next_one_found() -> None:
    unframer = CobsUnframer()
    damaged = bytearray(cobs_frame(EVERY_BYTE[:200]))
    damaged[70] ^= 1
    half = cobs_frame(b"half")[:-3]  # The next frame begins with a zero, which ends it.
    long = b"x" * 5000 + b"\0"
    found = unframer.feed(bytes(damaged) + half + cobs_frame(b"good") + long + cobs_frame(b"two"))
    assert found == [b"good", b"two"]
    assert unframer.malformed == 3


def test_rssi_bytes_between_cobs_frames_are_no_damage() -> None:  # R7.3-5
    unframer = CobsUnframer()
    assert unframer.feed(cobs_frame(b"a") + b"\xb2" + cobs_frame(b"b") + b"\xb0") == [b"a", b"b"]
    assert unframer.malformed == 0


@given(st.integers(0, 255), st.binary(max_size=260), st.lists(st.integers(0, 600)))
def test_kiss_round_trip(command: int, data: bytes, cuts: list[int]) -> None:
    frame = kiss_frame(command, data)
    assert frame.count(b"\xc0") == 2
    unframer = KissUnframer()
    found = [item for piece in pieces(frame, cuts) for item in unframer.feed(piece)]
    assert found == [(command, data)]


def test_kiss_escapes() -> None:
    assert kiss_frame(0, b"\xc0\xdb\xdc\xdd") == b"\xc0\x00\xdb\xdc\xdb\xdd\xdc\xdd\xc0"
    unframer = KissUnframer()
    for bad in (b"\xc0\x00\xdb\xc0", b"\xc0\x00\xdb\x41\xc0", b"\xc0" + b"x" * 5000 + b"\xc0"):
        assert unframer.feed(bad) == []
    assert unframer.malformed == 3
    assert unframer.feed(kiss_frame(5, b"ok")) == [(5, b"ok")]


def rcv(data: bytes) -> bytes:
    return b"+RCV=7,%d,%b,-40,11\r\n" % (len(data), data)


def test_reyax_messages() -> None:
    parser = ReyaxParser()
    stream = b"+READY\r\n+OK\r\n" + rcv(b"a,b,-1,2\r\n+OK\r\n") + b"+ERR=17\r\n+BAND=868500000\r\n"
    assert parser.feed(stream) == [
        TextLine("READY"),
        TextLine("OK"),
        Heard(b"a,b,-1,2\r\n+OK\r\n", -40.0, 11.0),
        TextLine("ERR", "17"),
        TextLine("BAND", "868500000"),
    ]
    assert parser.malformed == 0


@given(
    st.lists(st.binary(max_size=240), max_size=4),
    st.lists(st.integers(0, 2000)),
    st.binary(max_size=30).filter(lambda noise: b"+" not in noise),
)
def test_reyax_messages_survive_any_cut_and_noise_between(payloads, cuts, noise) -> None:
    stream = b"".join(noise + rcv(payload) + noise + b"+OK\r\n" for payload in payloads)
    parser = ReyaxParser()
    found = [message for piece in pieces(stream, cuts) for message in parser.feed(piece)]
    wanted = [m for payload in payloads for m in (Heard(payload, -40.0, 11.0), TextLine("OK"))]
    assert found == wanted


@pytest.mark.parametrize(
    "broken",
    [
        b"+RCV=7,5,abc,-40,11\r\n",  # longer than it says
        b"+RCV=7,2,abc,-40,11\r\n",
        b"+RCV=7,241," + b"x" * 241 + b",-40,11\r\n",
        b"+RCV=7,x,abc,-40,11\r\n",
        b"+RCV=,3,abc,-40,11\r\n",
        b"+RCV=7,3,abc,-40\r\n",
        b"+RCV=7,3,abc,-40,eleven\r\n",
        b"+R",
        b"+ERR=",
        b"+RCV=7,",
        b"\xff\xfe+\0",
    ],
)
def test_a_broken_reyax_line_costs_no_other(broken: bytes) -> None:
    parser = ReyaxParser()
    found = parser.feed(broken + rcv(b"next")) + parser.feed(b"+OK\r\n")
    assert found == [Heard(b"next", -40.0, 11.0), TextLine("OK")]
    assert parser.malformed > 0


def test_a_false_length_holds_messages_back_until_it_is_given_up() -> None:
    parser = ReyaxParser()
    assert parser.feed(b"+RCV=7,240,ab+OK\r\n" + rcv(b"kept")) == []
    assert parser.flush() == [TextLine("OK"), Heard(b"kept", -40.0, 11.0)]
    assert parser.flush() == []
    assert parser.feed(b"+RCV=7,240,+RCV=7,239,+OK\r\n") == []
    assert parser.flush() == [TextLine("OK")]


def from_radio(number: int) -> bytes:
    return meshtastic.frame(protobuf.number_field(7, number))


def test_meshtastic_messages_between_log_text() -> None:
    unframer = meshtastic.MeshtasticUnframer()
    stream = b"INFO | boot\r\n" + from_radio(1) + b"\x94log\x94\xc3\xff\xffmore" + from_radio(2)
    found = [message for byte in stream for message in unframer.feed(bytes([byte]))]
    assert found == [{7: 1}, {7: 2}]
    assert unframer.malformed == 1  # the length that no message has


def test_a_false_meshtastic_length_holds_messages_back_until_it_is_given_up() -> None:
    unframer = meshtastic.MeshtasticUnframer()
    assert unframer.feed(b"\x94\xc3\x01\x00" + from_radio(3)) == []
    assert unframer.flush() == [{7: 3}]


def test_a_message_within_what_only_looked_like_one_is_found() -> None:
    unframer = meshtastic.MeshtasticUnframer()
    inner = from_radio(4)
    assert unframer.feed(b"\x94\xc3\x00" + bytes([len(inner) + 1]) + inner + b"\x0b") == [{7: 4}]
    assert unframer.malformed == 1


def test_a_stream_without_an_end_takes_no_memory() -> None:
    for parser in (CobsUnframer(), KissUnframer()):
        for _ in range(100):
            assert parser.feed(b"x" * 1000) == []
        assert len(parser._part) <= 1000


@given(TEASING)
def test_no_parser_raises_or_grows(chunks: list[bytes]) -> None:
    reyax, mesh = ReyaxParser(), meshtastic.MeshtasticUnframer()
    others: tuple[CobsUnframer | KissUnframer, ...] = (CobsUnframer(), KissUnframer())
    for chunk in chunks:
        reyax.feed(chunk)
        mesh.feed(chunk)
        for parser in others:
            parser.feed(chunk)
    assert len(reyax._buffer) < 300
    assert len(mesh._buffer) < 4 + meshtastic.MESSAGE_MAX
    assert all(len(parser._part) <= 600 for parser in others)
    reyax.flush()
    mesh.flush()
    assert not reyax._buffer
    assert not mesh._buffer
