from binascii import crc_hqx
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from transports.ble.values import Ask, BleHello, BleStatus, Data, Value, decode, encode

U8, U16, U32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32))
HELLOS = st.builds(BleHello, st.booleans(), U16, U32, U32, U32, U8)
OTHERS = st.one_of(
    st.builds(Data, U8, st.booleans(), st.binary(min_size=1, max_size=508)),
    st.just(Ask()),
    st.builds(BleStatus, U8, U8, U32),
)


@given(st.one_of(HELLOS, OTHERS), U16)
def test_a_value_is_read_as_it_was_written(value: Value, session: int) -> None:
    assert decode(encode(value, session), session) == value


@given(st.binary(max_size=520), st.one_of(st.none(), U16))
def test_any_bytes_are_a_value_or_our_refusal(value: bytes, session: int | None) -> None:
    try:
        found = decode(value, session)
    except WireError:
        return
    assert encode(found, session or 0) == value


@given(OTHERS, U16, U16)
def test_a_value_of_another_session_is_refused_always(value: Value, mine: int, other: int) -> None:
    if mine != other:
        with pytest.raises(WireError, match="of an earlier session"):
            decode(encode(value, other), mine)


GOLDEN = [
    (BleHello(False, 0x1234, 0xA1A2A3A4, 0, 0, 32), "01013412a4a3a2a1000000000000000020b54e"),
    (BleHello(True, 0x1234, 1, 0xA1A2A3A4, 7, 32), "0201341201000000a4a3a2a1070000002099fb"),
    (Data(255, False, b"\x01\x00a"), "03ff0100610748"),
    (Data(0, True, b"\xff"), "0400ff6226"),
    (Ask(), "05d656"),
    (BleStatus(3, 32, 0x80000001), "06032001000080f8fe"),
]


@pytest.mark.parametrize(("value", "hexadecimal"), GOLDEN)
def test_the_bytes_are_those_of_the_specification(value: Value, hexadecimal: str) -> None:
    assert encode(value, 0x1234).hex() == hexadecimal
    assert decode(bytes.fromhex(hexadecimal), 0x1234) == value


def test_a_hello_of_another_version_and_a_value_before_the_session_are_told() -> None:
    hello = bytearray(encode(cast(Value, GOLDEN[0][0]), 0))[:-2]
    hello[1] = 2
    changed = bytes(hello) + crc_hqx(bytes(hello), 0xFFFF).to_bytes(2, "little")
    with pytest.raises(WireError, match="version 2, not 1"):
        decode(changed, None)
    with pytest.raises(WireError, match="before the session began"):
        decode(encode(Ask(), 5), None)
