import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.wire.contributions import (
    Contribution,
    contributors_max,
    read_contributions,
    write_contributions,
)

rows = st.lists(
    st.builds(Contribution, st.binary(min_size=4, max_size=4), st.integers(1, 1 << 20)),
    min_size=2,
    max_size=32,
)


@given(st.integers(0, 1 << 32), rows)
def test_what_is_written_is_read(round_number: int, given_rows: list[Contribution]) -> None:
    body = write_contributions(round_number, given_rows)
    assert read_contributions(body) == tuple(given_rows)
    assert int.from_bytes(body[1:3], "little") == round_number & 0xFFFF


@given(st.binary(max_size=300))
def test_any_bytes_are_rows_or_an_error(data: bytes) -> None:
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
def test_what_breaks_the_rules_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(WireError) as refused:
        read_contributions(body)
    assert refused.value.reason == reason


def test_a_list_fits_its_frame() -> None:
    assert [contributors_max(mtu) for mtu in (164, 184, 241, 4096)] == [21, 23, 32, 32]
    for mtu in (164, 184, 241):
        most = [Contribution(b"aaaa", 1)] * contributors_max(mtu)
        assert len(write_contributions(1, most)) + 14 <= mtu
