import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SealError, WireError
from ternmesh.wire.frame import BODY_MAX, FRAME_MAX, Header, open_seal, seal_open

headers = st.builds(
    Header,
    address=st.integers(0, 0xFFFF),
    counter=st.integers(0, 0xFFFFFF),
    key_phase=st.integers(0, 1),
)


@given(headers, st.binary(min_size=1, max_size=200))
def test_a_frame_opens_to_what_was_sealed(header: Header, body: bytes) -> None:
    frame = seal_open(header, body)
    assert len(frame) == len(body) + 14
    assert open_seal(frame) == (header, body)


@given(headers, st.binary(min_size=1, max_size=60), st.data())
def test_a_flipped_bit_is_found(header: Header, body: bytes, data: st.DataObject) -> None:
    frame = bytearray(seal_open(header, body))
    at = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[at // 8] ^= 1 << at % 8
    with pytest.raises(WireError):
        open_seal(bytes(frame))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_frame_or_a_wire_error(data: bytes) -> None:
    try:
        header, body = open_seal(data)
    except WireError:
        return
    assert seal_open(header, body) == data


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "length"),
        (bytes(14), "length"),
        (bytes(4097), "length"),
        (b"\x00" + bytes(20), "version"),
        (b"\x40" + bytes(20), "version"),
        (b"\x21" + bytes(20), "version"),  # the reserved bit
        (b"\x24" + bytes(20), "suite"),
        (b"\x20" + bytes(20), "seal"),
    ],
)
def test_why_a_frame_does_not_open(frame: bytes, reason: str) -> None:  # R3-1, R3-2
    with pytest.raises(WireError) as caught:
        open_seal(frame)
    assert caught.value.reason == reason
    assert isinstance(caught.value, SealError) == (reason == "seal")


def test_the_longest_frame() -> None:
    frame = seal_open(Header(1, 2), bytes(BODY_MAX))
    assert len(frame) == FRAME_MAX
    assert open_seal(frame)[1] == bytes(BODY_MAX)


def test_the_counter_travels_with_its_low_24_bits() -> None:
    assert open_seal(seal_open(Header(1, (1 << 40) + 5), b"x"))[0].counter == 5
