import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh import protobuf
from ternmesh.errors import WireError


def test_protobuf_as_published() -> None:
    assert protobuf.number_field(1, 150) == b"\x08\x96\x01"
    assert protobuf.bytes_field(2, b"testing") == b"\x12\x07testing"
    assert protobuf.fixed32_field(2, 0xFFFFFFFF) == b"\x15\xff\xff\xff\xff"
    message = b"\x08\x96\x01\x12\x07testing\x1d\x01\0\0\0\x21\0\0\0\0\0\0\0\x01"
    assert protobuf.fields(message) == {1: 150, 2: b"testing", 3: 1, 4: b"\0" * 7 + b"\x01"}


@given(st.binary(max_size=80))
def test_any_bytes_are_protobuf_or_a_wire_error(message: bytes) -> None:
    try:
        found = protobuf.fields(message)
    except WireError:
        return
    for field in found:
        for read in (protobuf.number, protobuf.data):
            try:
                read(found, field)
            except WireError:
                continue


@pytest.mark.parametrize("message", [b"\x08", b"\x08\xff", b"\x12\x05abc", b"\x0d\0\0", b"\x0b"])
def test_protobuf_that_ends_early_is_refused(message: bytes) -> None:
    with pytest.raises(WireError):
        protobuf.fields(message)
