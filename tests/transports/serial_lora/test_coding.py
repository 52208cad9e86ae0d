import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from transports.serial_lora.coding import PrefixCoding, RadioMessage, ReyaxCoding

HOST, ADA, BOB, ALL = 0, 1, 2, 255
FRAME = b"\0a frame\r\n\xff"


def host(is_binary: bool = False) -> ReyaxCoding:
    return ReyaxCoding(HOST, is_binary=is_binary)


def test_a_prefix_of_receiver_and_sender() -> None:
    coding = PrefixCoding(ADA)
    assert coding.encode(HOST, FRAME) == b"\x00\x01" + FRAME
    assert coding.decode(b"\xff\x02" + FRAME) == RadioMessage(ALL, BOB, FRAME)
    assert (coding.frame_max(255), coding.size(10)) == (253, 12)
    for short in (b"", b"\0", b"\0\1"):
        with pytest.raises(WireError):
            coding.decode(short)


def test_text_unless_the_modems_carry_any_byte() -> None:
    payload = host().encode(ADA, FRAME)
    assert payload.isascii()
    assert not set(payload) & set(b",\r\n\0")
    assert host().frame_max(240) == 190
    assert len(host().encode(ADA, b"x" * 190)) == 240
    assert host(True).encode(ADA, FRAME) == b"\x01\x01\x00" + FRAME
    assert host(True).frame_max(240) == 237
    assert len(host(True).encode(ALL, b"x" * 237)) == 240


@given(st.binary(min_size=1, max_size=237), st.booleans())
def test_both_forms_are_taken_and_sizes_are_told(frame: bytes, binary: bool) -> None:  # R7.3-8
    coding = host(binary)
    payload = coding.encode(ADA, frame)
    assert len(payload) == coding.size(len(frame))
    for each in (host(False), host(True)):
        assert each.decode(payload) == RadioMessage(ADA, HOST, frame)


@given(st.binary(max_size=240))
def test_any_payload_is_a_frame_or_a_wire_error(payload: bytes) -> None:
    for coding in (host(), PrefixCoding(HOST)):
        try:
            assert coding.decode(payload).frame
        except WireError:
            continue
