import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from transports.serial_lora.coding import PREFIX, RadioMessage, read_payload, write_payload

FRAME = b"\0a frame\r\n\xff"


def test_a_prefix_of_receiver_and_sender() -> None:
    payload = write_payload(RadioMessage(0, 1, FRAME))
    assert payload == b"\x00\x01" + FRAME
    assert len(payload) == PREFIX + len(FRAME)
    assert read_payload(b"\xff\x02" + FRAME) == RadioMessage(255, 2, FRAME)
    for short in (b"", b"\0", b"\0\1"):  # R7.3-3
        with pytest.raises(WireError):
            read_payload(short)


@given(st.binary(max_size=240))
def test_any_payload_is_a_frame_or_a_wire_error(payload: bytes) -> None:
    try:
        message = read_payload(payload)
    except WireError:
        return
    assert message.frame
    assert write_payload(message) == payload
