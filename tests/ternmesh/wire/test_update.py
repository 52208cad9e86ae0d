import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.codec.encoder import Slice
from ternmesh.codec.entropy_coder import Coded
from ternmesh.errors import WireError
from ternmesh.wire.frame import BODY_MAX
from ternmesh.wire.update import (
    SAMPLES_MAX,
    Chunk,
    Contribution,
    Manifest,
    contributors_max,
    has_contributors,
    read_bitmap,
    read_chunk,
    read_contributions,
    read_manifest,
    update_digest,
    update_hash,
    whole_round,
    write_bitmap,
    write_chunk,
    write_contributions,
    write_manifest,
)

manifests = st.builds(
    Manifest,
    round_low=st.integers(0, 0xFFFF),
    model=st.binary(min_size=8, max_size=8),
    samples=st.integers(1, SAMPLES_MAX),
    digest=st.binary(min_size=4, max_size=4),
    chunks=st.integers(0, 0xFFFF),
    contributors=st.sets(st.integers(0, 0xFFFF), max_size=32).map(lambda s: tuple(sorted(s))),
    signature=st.binary(min_size=64, max_size=64),
)
values = st.dictionaries(st.integers(0, 255), st.integers(0, 0xFFFF), min_size=1, max_size=5)
evaluated = st.builds(
    lambda item, given: replace(item, contributors=(), evaluation=tuple(sorted(given.items()))),
    manifests,
    values,
)


@given(manifests)
def test_a_manifest_reads_as_written(item: Manifest) -> None:
    body = write_manifest(item)
    assert len(body) == 22 + 2 * len(item.contributors) + 64
    assert read_manifest(body) == item


@given(evaluated)
def test_a_manifest_with_an_evaluation_reads_as_written(item: Manifest) -> None:
    body = write_manifest(item)
    assert len(body) == 22 + 1 + 3 * len(item.evaluation) + 64
    assert read_manifest(body) == item
    assert not has_contributors(body)


@given(st.binary(max_size=200) | st.binary(max_size=160).map(lambda data: b"\x03" + data))
def test_any_bytes_are_a_manifest_or_a_wire_error(data: bytes) -> None:
    try:
        item = read_manifest(data)
    except WireError:
        return
    assert write_manifest(item) == data


PLAIN = write_manifest(Manifest(1, b"modelmod", 10, b"abcd", 3))
EVALUATED = write_manifest(
    Manifest(1, b"modelmod", 10, b"abcd", 3, evaluation=((1, 325), (2, 9417)))
)


def damaged(at: int, data: bytes) -> bytes:
    item = Manifest(1, b"modelmod", 10, b"abcd", 3, (4, 5, 6))
    body = write_manifest(item)
    return body[:at] + data + body[at + len(data) :]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "length"),
        (damaged(0, b"\x02"), "length"),
        (damaged(0, b"")[:-1], "length"),
        (damaged(0, b"") + b"\x00", "length"),
        (damaged(21, b"\x04"), "length"),  # another count of contributors
        (damaged(11, bytes(4)), "manifest"),  # no samples
        (damaged(11, b"\x01\x00\x10\x00"), "manifest"),  # 2**20 + 1 samples
        (damaged(22, b"\x05"), "manifest"),  # a contributor twice
        (damaged(22, b"\x09"), "manifest"),  # out of order
        (b"\x03" + bytes(20) + b"\x21" + bytes(66 + 64), "manifest"),  # 33 of them
        (EVALUATED[:21] + b"\x00" + EVALUATED[22:], "length"),  # an evaluation without its flag
        (PLAIN[:21] + b"\x80" + PLAIN[22:], "length"),  # a flag without an evaluation
        (EVALUATED[:22] + b"\x05" + EVALUATED[23:], "length"),
        (EVALUATED[:22] + b"\x00" + bytes(64), "length"),  # no value
        (EVALUATED[:22] + b"\x04" + bytes(4 + 64), "length"),  # no whole values
        (EVALUATED[:22] + b"\x12" + bytes(18 + 64), "length"),  # six values
        (EVALUATED[:26] + b"\x01" + EVALUATED[27:], "manifest"),  # a key twice
        (EVALUATED[:21] + b"\x81\x05\x00" + EVALUATED[22:], "manifest"),  # of a gateway
    ],
)
def test_why_a_manifest_is_refused(body: bytes, reason: str) -> None:  # R4.2-1, R4.2-5
    with pytest.raises(WireError) as caught:
        read_manifest(body)
    assert caught.value.reason == reason


def test_the_digest_depends_on_every_chunk_and_their_order() -> None:
    chunks = [b"a", b"bc", b""]
    rows = b"".join(hashlib.sha256(body).digest() for body in chunks)
    assert update_hash(chunks) == hashlib.sha256(rows).digest()
    others = [[b"ab", b"c", b""], [b"bc", b"a", b""], [b"a", b"bc"], [b"a", b"bd", b""]]
    assert len({update_digest(each) for each in [chunks, *others]}) == 5


@given(st.integers(0, 2**32 - 1), st.integers(0, 0xFFFF), st.binary(max_size=50))
def test_a_chunk_reads_as_written(round_number: int, index: int, data: bytes) -> None:
    item = Slice(index, 29696, Coded(7, 3, data))
    body = write_chunk(round_number, item)
    assert len(body) == 10 + len(data)
    assert read_chunk(body) == Chunk(round_number & 0xFFFF, item)


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda data: b"\x02" + data))
def test_any_bytes_are_a_chunk_or_a_wire_error(data: bytes) -> None:
    try:
        item = read_chunk(data)
    except WireError:
        return
    assert write_chunk(item.round_low, item.slice) == data


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "length"),
        (b"\x02" + bytes(8), "length"),
        (b"\x03" + bytes(9), "length"),
        (b"\x02" + bytes(BODY_MAX), "length"),
        (bytes.fromhex("02 0000 0000 ffff 0100 00"), "scale"),  # an exponent of 31
        (bytes.fromhex("02 0000 0000 0108 0100 00"), "scale"),  # a mantissa that is not normal
        (bytes.fromhex("02 0000 0000 0000 0100 00"), "scale"),  # nonzeros, and a scale of zero
        (bytes.fromhex("02 0000 0000 0100 0000 00"), "scale"),  # a scale, and no nonzero
    ],
)
def test_why_a_chunk_is_refused(body: bytes, reason: str) -> None:  # R4.1-1, R4.1-2
    with pytest.raises(WireError) as caught:
        read_chunk(body)
    assert caught.value.reason == reason


@given(st.integers(0, 2**32 - 1), st.integers(-(2**15), 2**15 - 1))
def test_the_whole_round_follows_from_its_low_bits(near: int, offset: int) -> None:  # R4.1-4
    assert whole_round((near + offset) & 0xFFFF, near) == near + offset


rows = st.lists(
    st.builds(Contribution, st.binary(min_size=4, max_size=4), st.integers(1, 1 << 20)),
    min_size=2,
    max_size=32,
)


@given(st.integers(0, 1 << 32), rows)
def test_contributions_read_as_written(round_number: int, given_rows: list[Contribution]) -> None:
    body = write_contributions(round_number, given_rows)
    assert read_contributions(body) == tuple(given_rows)
    assert int.from_bytes(body[1:3], "little") == round_number & 0xFFFF


@given(st.binary(max_size=300))
def test_any_bytes_are_contributions_or_a_wire_error(data: bytes) -> None:
    body = b"\x05" + data
    try:
        found = read_contributions(body)
    except WireError:
        return
    assert write_contributions(int.from_bytes(body[1:3], "little"), found) == body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "length"),
        (b"\x05\x00\x00", "length"),
        (write_contributions(1, [Contribution(b"aaaa", 1)]), "length"),
        (write_contributions(1, [Contribution(b"aaaa", 1)] * 33), "length"),
        (write_contributions(1, [Contribution(b"aaaa", 1)] * 2)[:-1], "length"),
        (b"\x06" + write_contributions(1, [Contribution(b"aaaa", 1)] * 2)[1:], "length"),
        (write_contributions(1, [Contribution(b"aaaa", 1), Contribution(b"b" * 4, 0)]), "manifest"),
        (
            write_contributions(1, [Contribution(b"aaaa", 1), Contribution(b"b" * 4, 1 << 21)]),
            "manifest",
        ),
    ],
)
def test_why_contributions_are_refused(body: bytes, reason: str) -> None:  # R4.6-1
    with pytest.raises(WireError) as refused:
        read_contributions(body)
    assert refused.value.reason == reason


def test_a_list_of_contributions_fits_its_frame() -> None:
    assert [contributors_max(mtu) for mtu in (164, 184, 241, 4096)] == [21, 23, 32, 32]
    for mtu in (164, 184, 241):
        most = [Contribution(b"aaaa", 1)] * contributors_max(mtu)
        assert len(write_contributions(1, most)) + 14 <= mtu


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


@pytest.mark.parametrize(("data", "count"), [(b"", 1), (b"\x01\x00", 8), (b"\x10", 4)])
def test_other_bytes_are_not_a_bitmap(data: bytes, count: int) -> None:
    with pytest.raises(WireError):
        read_bitmap(data, count)
