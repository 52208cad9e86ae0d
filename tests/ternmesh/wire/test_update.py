import hashlib

from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.wire.update import read_bitmap, update_digest, update_hash, whole_round, write_bitmap


def test_the_digest_depends_on_every_chunk_and_their_order() -> None:
    chunks = [b"a", b"bc", b""]
    rows = b"".join(hashlib.sha256(body).digest() for body in chunks)
    assert update_hash(chunks) == hashlib.sha256(rows).digest()
    others = [[b"ab", b"c", b""], [b"bc", b"a", b""], [b"a", b"bc"], [b"a", b"bd", b""]]
    assert len({update_digest(each) for each in [chunks, *others]}) == 5


@given(st.integers(0, 2**32 - 1), st.integers(-(2**15), 2**15 - 1))
def test_the_whole_round_follows_from_its_low_bits(near: int, offset: int) -> None:  # R4.1-4
    assert whole_round((near + offset) & 0xFFFF, near) == near + offset


@given(st.integers(1, 300), st.data())
def test_a_bitmap_reads_as_written(count: int, data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, count - 1)))
    bitmap = write_bitmap(indices, count)
    assert len(bitmap) == -(-count // 8)
    assert set(read_bitmap(bitmap, count).search(1)) == indices


def test_chunk_0_is_the_lowest_bit() -> None:
    assert write_bitmap([0, 9], 12) == b"\x01\x02"


@given(st.binary(max_size=6), st.integers(1, 40))
def test_any_bytes_are_a_bitmap_or_a_wire_error(data: bytes, count: int) -> None:
    try:
        mask = read_bitmap(data, count)
    except WireError:
        return
    assert write_bitmap(mask.search(1), count) == data
