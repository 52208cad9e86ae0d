"""The bodies of the link: any bytes are a message or a WireError, each written in one way."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.link.messages import (
    GENERATIONS_MAX,
    SIZE_MAX,
    Message,
    Offer,
    Question,
    Status,
    Symbol,
    is_link,
    read_message,
    write_message,
)

NAME = b"name"
KINDS = (0x06, 0x07, 0x08, *range(0x50, 0x70))
slots, names, u16 = st.integers(0, 15), st.binary(min_size=4, max_size=4), st.integers(0, 65_535)
needs = st.lists(st.integers(0, 128) | st.just(0), max_size=GENERATIONS_MAX).map(
    lambda row: tuple(row[: len(row) - next((i for i, n in enumerate(row[::-1]) if n), len(row))])
)
statuses = st.builds(Status, names, needs)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Offer, slots, u16, names, st.integers(1, SIZE_MAX), st.integers(1, 65_535)),
    st.builds(Symbol, slots, u16, st.binary(min_size=1, max_size=60), st.booleans()),
    st.builds(Question, slots),
    statuses,
)


def refused(body: bytes) -> str:
    with pytest.raises(WireError) as caught:
        read_message(body)
    assert caught.value.reason == "link"
    return str(caught.value)


@given(messages)
def test_a_message_reads_as_written(message: Message) -> None:
    body = write_message(message)
    assert is_link(body)
    assert read_message(body) == message


@given(st.sampled_from(KINDS), st.binary(max_size=40))
@example(0x07, NAME + b"\xff\xff\x01")
def test_any_bytes_are_a_message_or_a_wire_error(kind: int, rest: bytes) -> None:
    body = bytes((kind,)) + rest
    try:
        message = read_message(body)
    except WireError:
        return
    assert write_message(message) == body


def test_what_belongs_to_the_link() -> None:
    assert [kind for kind in range(256) if is_link(bytes((kind,)))] == list(KINDS)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Offer(15, 0x0102, NAME, 0x030405, 0x0607), "060f02016e616d650504030706"),
        (Symbol(3, 0x0102, b"xy", is_last=False), "5302017879"),
        (Symbol(3, 0x0102, b"xy", is_last=True), "6302017879"),
        (Question(9), "0809"),
        (Status(NAME, ()), "076e616d65"),
        (Status(NAME, (1, 128)), "076e616d650180"),
        (Status(NAME, (0, 5)), "076e616d658105"),
        (Status(NAME, (7, *[0] * 127, 5)), "076e616d6507ff05"),
        (Status(NAME, (*[0] * 255, 5)), "076e616d65ffff8105"),
    ],
)
def test_bytes(message: Message, body: str) -> None:
    assert write_message(message).hex() == body
    assert read_message(bytes.fromhex(body)) == message


@given(statuses, st.integers(9, 60))
@example(Status(NAME, (*[0] * 255, 1)), 9)
def test_a_status_is_cut_to_its_room(status: Status, room: int) -> None:
    assume(status.needs)
    body = write_message(status, room)
    assert len(body) <= room
    cut = read_message(body)
    assert isinstance(cut, Status)
    assert cut.needs  # it is never taken for a receipt
    assert cut == Status(status.name, status.needs[: len(cut.needs)])
    if cut != status:
        assert len(write_message(Status(status.name, status.needs))) > room


def test_zeros_at_the_end_are_not_written() -> None:
    assert write_message(Status(NAME, (3, 0, 0))) == write_message(Status(NAME, (3,)))
    assert write_message(Status(NAME, (0, 0))) == write_message(Status(NAME, ()))


def test_refuses_offers() -> None:
    good = write_message(Offer(1, 2, NAME, 300, 30))
    assert "13 bytes" in refused(good[:-1])
    assert "13 bytes" in refused(good + b"\0")
    assert "slot 16" in refused(good[:1] + b"\x10" + good[2:])
    assert "nothing" in refused(write_message(Offer(1, 2, NAME, 0, 30)))
    assert "nothing" in refused(write_message(Offer(1, 2, NAME, 300, 0)))


def test_refuses_symbols() -> None:
    assert "shorter" in refused(b"\x50\x00\x00")
    assert "shorter" in refused(b"\x6f")


def test_refuses_questions() -> None:
    assert "two bytes" in refused(b"\x08")
    assert "two bytes" in refused(b"\x08\x01\x00")
    assert "slot 255" in refused(b"\x08\xff")


@pytest.mark.parametrize(
    "needs",
    [b"\x00", b"\x00\x01", b"\x81", b"\x01\x81", b"\x81\x81\x01", b"\x81\xff\x01"],
    ids=["zero", "zero first", "a zero at the end", "zeros at the end", "two for one", "full last"],
)
def test_refuses_needs_that_are_written_otherwise(needs: bytes) -> None:
    assert "more bytes" in refused(b"\x07" + NAME + needs)


def test_refuses_more_generations_than_an_object_has() -> None:  # R8.2-3
    whole = b"\x07" + NAME + bytes([1] * 256)
    assert read_message(whole) == Status(NAME, (1,) * 256)
    assert "256 needs" in refused(whole + b"\x01")
    assert "256 needs" in refused(b"\x07" + NAME + b"\xff" * 4000 + b"\x01")
    assert "shorter" in refused(b"\x07nam")
