from hypothesis import given
from hypothesis import strategies as st

from ternmesh.security.session import SIZE, Verdict, Window

NEW, REPLAY, CLONE = Verdict.NEW, Verdict.REPLAY, Verdict.CLONE


def mark(counter: int) -> bytes:
    return (counter + 1).to_bytes(4, "little")


@given(st.lists(st.integers(0, 5000), max_size=200))
def test_no_counter_is_taken_twice_and_none_in_the_window_is_lost(counters: list[int]) -> None:
    # R9.4-2
    window, taken, highest = Window(0), set(), 0
    for counter in counters:
        expected = counter not in taken and counter > highest - SIZE
        assert (window.take(counter, mark(counter)) is NEW) == expected
        if expected:
            taken.add(counter)
            highest = max(highest, counter)


@given(st.integers(0, (1 << 64) - 1), st.integers(-(1 << 22), 1 << 22))
def test_the_whole_counter_comes_back_from_its_low_bits(highest: int, away: int) -> None:  # R9.4-1
    counter = min(max(highest + away, 0), (1 << 64) - 1)
    assert Window(highest).whole(counter & 0xFFFFFF) == counter


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 0xFFFFFF))
def test_a_whole_counter_is_always_one(highest: int, low: int) -> None:
    whole = Window(highest).whole(low)
    assert 0 <= whole < 1 << 64
    assert whole & 0xFFFFFF == low


def test_another_frame_under_a_used_counter_is_a_clone() -> None:  # R9.4-2
    window = Window(10)
    assert window.take(11, b"aaaa") is NEW
    assert window.take(11, b"aaaa") is REPLAY
    assert window.take(11, b"bbbb") is CLONE
    assert window.take(11 + SIZE, b"cccc") is NEW
    assert window.take(11 + SIZE, b"aaaa") is CLONE
    assert window.take(11, b"bbbb") is REPLAY  # too long ago to know
