from dataclasses import replace

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.wire.global_update import (
    COUNTED_MAX,
    Certificate,
    Counted,
    GlobalSnapshot,
    GlobalUpdate,
    certify,
    object_max,
    read_object,
    split_certificate,
    write_global_snapshot,
    write_global_update,
)

u32 = st.integers(0, 0xFFFFFFFF)
counted = st.builds(Counted, u32, u32, st.binary(min_size=4, max_size=4), st.binary(max_size=128))
head = {
    "version": u32,
    "model": st.binary(min_size=8, max_size=8),
    "finished": st.booleans(),
    "deadline_ms": u32,
    "counted": st.lists(counted, max_size=4).map(tuple),
}
hashes = st.binary(min_size=16, max_size=16)
chunks = st.lists(st.binary(max_size=40), max_size=5).map(tuple)
references = st.builds(GlobalUpdate, adapter_hash=hashes, chunks=chunks, probe=chunks, **head)


@given(references, st.integers(0, 9))
def test_a_reference_that_returns_reads_as_written(step: GlobalUpdate, older: int) -> None:
    if step.version > older + 1:
        step = replace(step, returns_to=older)
        assert read_object(write_global_update(step), 10) == step


@given(references)
def test_a_reference_reads_as_written(step: GlobalUpdate) -> None:
    assert read_object(write_global_update(step), 10) == step


@given(st.fixed_dictionaries({**head, "global_hash": hashes}), st.lists(st.integers(-9, 9)))
def test_a_snapshot_reads_as_written(fields: dict[str, object], numbers: list[int]) -> None:
    state = np.array(numbers, np.int32)
    content = write_global_snapshot(GlobalSnapshot(**fields, state=state))  # type: ignore[arg-type]
    again = read_object(content, len(numbers))
    assert isinstance(again, GlobalSnapshot)
    assert {name: getattr(again, name) for name in fields} == fields
    assert np.array_equal(again.state, state)
    with pytest.raises(WireError, match=r"has \d+ numbers"):
        read_object(content, len(numbers) + 1)


def readable(data: bytes, dimension: int) -> None:
    try:
        step = read_object(data, dimension)
    except WireError:
        return
    if isinstance(step, GlobalSnapshot):
        assert write_global_snapshot(step) == data
    else:
        assert write_global_update(step) == data


@given(st.binary(max_size=120), st.integers(1, 2), st.integers(0, 60), st.integers(0, 4))
def test_any_bytes_are_an_object_or_a_wire_error(
    data: bytes, kind: int, length: int, dimension: int
) -> None:
    readable(data, dimension)
    readable(bytes([kind]) + length.to_bytes(4, "little") + data, dimension)


@given(references, st.data())
def test_a_damaged_reference_is_an_object_or_a_wire_error(
    step: GlobalUpdate, data: st.DataObject
) -> None:
    content = bytearray(write_global_update(step))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)))
    readable(bytes(content), 3)
    readable(bytes(content[:end]), 3)


signers = st.lists(
    st.tuples(st.integers(0, 255), st.binary(min_size=64, max_size=64)), min_size=1, max_size=16
).map(tuple)


@given(st.binary(min_size=1, max_size=50), signers)
def test_a_certificate_comes_off_as_it_was_put_on(content: bytes, certificate: Certificate) -> None:
    data = certify(content, certificate)
    assert split_certificate(data) == (content, certificate)


@given(st.binary(max_size=300))
def test_any_bytes_are_certified_or_a_wire_error(data: bytes) -> None:
    try:
        content, certificate = split_certificate(data)
    except WireError:
        return
    assert certify(content, certificate) == data


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"x\x00", bytes(65) + b"\x01", b"x" * 65 + b"\x02", b"x" * 1200 + b"\x11"],
)
def test_what_is_no_certificate(data: bytes) -> None:  # R4.5-6
    with pytest.raises(WireError):
        split_certificate(data)


def with_head(content: object, tail: bytes = b"\x00\x00") -> bytes:
    encoded = cbor2.dumps(content, canonical=True)
    return b"\x01" + len(encoded).to_bytes(4, "little") + encoded + tail


GOOD = [1, bytes(16), bytes(8), 0, 0, []]
ROW = [1, 0, bytes(4), b"\x01"]
HOSTILE = {
    "a head of 2**32 bytes": b"\x01\xff\xff\xff\xff" + bytes(50),
    "a head above its limit": b"\x01\x01\x00\x40\x00" + bytes((1 << 22) + 50),
    "another kind": b"\x03" + with_head(GOOD)[1:],
    "kind 0": b"\x00" + with_head(GOOD)[1:],
    "a head that is no array": with_head(5),
    "a field too few": with_head(GOOD[:5]),
    "a field too many": with_head([*GOOD, 1]),
    "a short hash": with_head([1, bytes(15), bytes(8), 0, 0, []]),
    "a long model": with_head([1, bytes(16), bytes(9), 0, 0, []]),
    "finished is 2": with_head([1, bytes(16), bytes(8), 2, 0, []]),
    "finished is true": with_head([1, bytes(16), bytes(8), True, 0, []]),
    "rows that are no array": with_head([*GOOD[:5], 7]),
    "rows that are bytes": with_head([*GOOD[:5], b"abc"]),
    "a row that is no array": with_head([*GOOD[:5], [7]]),
    "a row too short": with_head([*GOOD[:5], [ROW[:3]]]),
    "a row with a long digest": with_head([*GOOD[:5], [[1, 0, bytes(5), b""]]]),
    "a row within a row": with_head([*GOOD[:5], [[ROW, 0, bytes(4), b""]]]),
    "16,385 rows": with_head([*GOOD[:5], [ROW] * 16_385]),
    "a return to the version before": with_head([*GOOD, 0]),
    "a return to itself": with_head([*GOOD, 1]),
    "a return to no number": with_head([7, *GOOD[1:], b"1"]),
    "a return below zero": with_head([7, *GOOD[1:], -1]),
    "a return to a truth": with_head([7, *GOOD[1:], True]),
    "a return to nothing": with_head([7, *GOOD[1:], None]),
    "two returns": with_head([7, *GOOD[1:], 1, 2]),
    "a head that ends early": with_head(GOOD)[:10],
    "a head whose CBOR ends early": b"\x01\x05\x00\x00\x00" + with_head(GOOD)[5:10] + bytes(2),
    "a head with a byte more": b"\x01\x20\x00\x00\x00" + cbor2.dumps(GOOD) + bytes(3),
    "no count of shares": with_head(GOOD, b""),
    "1,025 shares": with_head(GOOD, b"\x01\x04" + bytes(2 * 1025)),
    "a share that is not there": with_head(GOOD, b"\x01\x00"),
    "a share cut short": with_head(GOOD, b"\x01\x00\x05\x00abc"),
    "a share of 65,535 bytes": with_head(GOOD, b"\x01\x00\xff\xffabc"),
    "a trailing byte": with_head(GOOD, b"\x00\x00\x00"),
    "a probe without chunks": with_head(GOOD, b"\x00\x00\x00\x00"),
    "a byte after the probe": with_head(GOOD, b"\x00\x00\x01\x00\x01\x00a\x00"),
    "a probe cut short": with_head(GOOD, b"\x00\x00\x01\x00\x05\x00abc"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_objects_are_refused(data: bytes) -> None:  # R4.5-6
    with pytest.raises(WireError) as caught:
        read_object(data, 10)
    assert caught.value.reason == "reference"


def test_the_hostile_objects_are_otherwise_good() -> None:
    good = read_object(with_head([*GOOD[:5], [ROW] * 16_384], b"\x01\x00\x03\x00abc"), 10)
    assert isinstance(good, GlobalUpdate)
    assert good.chunks == (b"abc",)


def test_a_snapshot_does_not_return() -> None:
    with pytest.raises(WireError, match="not a known kind"):
        read_object(b"\x02" + with_head([7, *GOOD[1:], 1], bytes(40))[1:], 10)


def test_the_longest_objects_of_a_run_are_within_the_limit() -> None:
    rows = tuple(Counted(0x7FFE, 2**32 - 1, b"abcd", bytes(128)) for _ in range(COUNTED_MAX))
    step = GlobalUpdate(2**32 - 1, bytes(16), bytes(8), True, 2**32 - 1, rows, (bytes(170),) * 9)
    step = replace(step, returns_to=2**32 - 3)
    limit = object_max(dimension=100, chunks=9, frame_mtu=184)
    assert read_object(write_global_update(step), 100) == step
    assert len(certify(write_global_update(step), ((0, bytes(64)),) * 16)) <= limit
    state = np.zeros(1 << 18, np.int32)
    whole = GlobalSnapshot(2**32 - 1, bytes(16), bytes(8), True, 2**32 - 1, rows[:1], state)
    limit = object_max(dimension=1 << 18, chunks=9, frame_mtu=184)
    assert len(certify(write_global_snapshot(whole))) <= limit
