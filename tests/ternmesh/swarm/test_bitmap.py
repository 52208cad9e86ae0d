import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.swarm.bitmap import read_bitmap, read_counted, write_bitmap


@given(st.integers(1, 300), st.data())
def test_a_bitmap_reads_as_written(count: int, data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, count - 1)))
    bitmap = write_bitmap(indices, count)
    assert len(bitmap) == -(-count // 8)
    assert set(np.flatnonzero(read_bitmap(bitmap, count))) == indices
    shares = [bytes([i % 256]) for i in range(count)]
    assert read_counted(shares, bitmap) == [shares[i] for i in sorted(indices)]


def test_share_0_is_the_lowest_bit() -> None:
    assert write_bitmap([0, 9], 12) == b"\x01\x02"


@given(st.binary(max_size=6), st.integers(1, 40))
def test_any_bytes_are_a_bitmap_or_a_wire_error(data: bytes, count: int) -> None:
    try:
        mask = read_bitmap(data, count)
    except WireError:
        return
    assert write_bitmap(np.flatnonzero(mask).tolist(), count) == data


@pytest.mark.parametrize(("data", "count"), [(b"", 1), (b"\x01\x00", 8), (b"\x10", 4)])
def test_what_is_no_bitmap(data: bytes, count: int) -> None:
    with pytest.raises(WireError):
        read_bitmap(data, count)
