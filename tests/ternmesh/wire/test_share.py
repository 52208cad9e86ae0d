import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.hypervector.coding import Coded
from ternmesh.hypervector.encoder import Slice
from ternmesh.wire import seal, share


@given(st.integers(0, 2**32 - 1), st.integers(0, 0xFFFF), st.binary(max_size=50))
def test_a_share_reads_as_written(round_number: int, index: int, data: bytes) -> None:
    item = Slice(index, 29696, Coded(7, 3, data))
    body = share.write_share(round_number, item)
    assert len(body) == 10 + len(data)
    assert share.read_share(body) == share.Share(round_number & 0xFFFF, item)


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda data: b"\x02" + data))
def test_any_bytes_are_a_share_or_a_wire_error(data: bytes) -> None:
    try:
        item = share.read_share(data)
    except WireError:
        return
    assert share.write_share(item.round_low, item.slice) == data


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "length"),
        (b"\x02" + bytes(8), "length"),
        (b"\x03" + bytes(9), "length"),
        (b"\x02" + bytes(seal.BODY_MAX), "length"),
        (bytes.fromhex("02 0000 0000 ffff 0100 00"), "scale"),  # an exponent of 31
        (bytes.fromhex("02 0000 0000 0108 0100 00"), "scale"),  # a mantissa that is not normal
        (bytes.fromhex("02 0000 0000 0000 0100 00"), "scale"),  # nonzeros, and a scale of zero
        (bytes.fromhex("02 0000 0000 0100 0000 00"), "scale"),  # a scale, and no nonzero
    ],
)
def test_why_a_share_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        share.read_share(body)
    assert caught.value.reason == reason


@given(st.integers(0, 2**32 - 1), st.integers(-(2**15), 2**15 - 1))
def test_the_whole_round_follows_from_its_low_bits(near: int, offset: int) -> None:
    assert share.whole_round((near + offset) & 0xFFFF, near) == near + offset
