from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.plan import (
    FRAME_MTU_MAX,
    FRAME_MTU_MIN,
    Plan,
    check_plan,
    from_numbers,
    global_snapshot_max,
    make_plan,
    of_rounds,
    run_length,
    to_numbers,
)
from ternmesh.wire import fragments
from ternmesh.wire.control import Receipt, write_control
from ternmesh.wire.frame import FRAME_OVERHEAD

PLAN = make_plan(16_934, rounds=20, local_steps=8, learning_rate=0.002)


LATER = {
    "learning_rate_drop_permille": 500,
    "silence_permille": 10,
    "silence_rounds": 4,
    "manifest_repeats": 1,
    "own_permille": 500,
    "staleness_rounds": 3,
}


def test_a_plan_travels_whole() -> None:
    assert from_numbers(to_numbers(PLAN)) == PLAN
    assert len(to_numbers(PLAN)) == 11
    for names in ([*LATER][:1], [*LATER][1:2], [*LATER]):
        plan = replace(PLAN, **{name: LATER[name] for name in names})
        assert from_numbers(to_numbers(plan)) == plan


def test_zeros_at_the_end_of_a_plan_are_refused() -> None:  # R5-2
    with pytest.raises(WireError, match="end in zeros") as caught:
        from_numbers((*to_numbers(PLAN), 0))
    assert caught.value.reason == "plan"
    with pytest.raises(WireError, match="11 to 18"):
        from_numbers(to_numbers(PLAN)[:10])


def test_the_learning_rate_falls_in_a_straight_line() -> None:
    assert PLAN.learning_rate(0) == PLAN.learning_rate(19) == pytest.approx(0.002)
    falling = replace(PLAN, learning_rate_drop_permille=500)
    assert falling.learning_rate(0) == pytest.approx(0.002)
    assert falling.learning_rate(10) == pytest.approx(0.0015)
    gone = replace(PLAN, learning_rate_drop_permille=1000)
    assert gone.learning_rate(20) == gone.learning_rate(21) == 0.0


def endless(**numbers: int) -> Plan:
    return replace(PLAN, **({"rounds": 0, "news_rounds": 10} | numbers))


def test_without_an_end_the_rate_falls_over_the_rounds_of_the_news() -> None:
    plan = endless(learning_rate_drop_permille=800)
    assert from_numbers(to_numbers(plan)) == plan
    rates = [plan.learning_rate(learned) for learned in (0, 5, 10, 99)]
    assert rates == pytest.approx([0.002, 0.0012, 0.0004, 0.0004])
    assert (plan.last_version, PLAN.last_version) == (0xFFFFFFFF, 20)
    assert (run_length(0), of_rounds(0)) == ("without end", "")
    assert (run_length(20), of_rounds(20)) == ("20 rounds", " of 20")


@pytest.mark.parametrize(
    "numbers",
    [
        {"news_rounds": 0},
        {"rounds": 1},
        {"silence_rounds": 1},
        {"silence_permille": 1},
        {"staleness_rounds": 1},
    ],
)
def test_what_does_not_go_with_a_run_without_an_end(numbers: dict[str, int]) -> None:  # R5-5
    with pytest.raises(WireError, match="end") as caught:
        from_numbers(to_numbers(endless(**numbers)))
    assert caught.value.reason == "plan"


@given(st.lists(st.integers(0, 0xFFFFFFFF), max_size=19).map(tuple))
def test_any_numbers_are_a_plan_or_a_wire_error(numbers: tuple[int, ...]) -> None:  # R5-4
    try:
        plan = from_numbers(numbers)
    except WireError:
        return
    assert to_numbers(plan) == numbers


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dimension", 0),
        ("dimension", (1 << 24) + 1),
        ("frame_mtu", FRAME_MTU_MIN - 1),
        ("frame_mtu", FRAME_MTU_MAX + 1),
        ("up_zeros_permille", 1000),
        ("down_zeros_permille", 1000),
        ("up_span", 16),  # more than 1,024 slices
        ("up_span", 16_935),
        ("down_span", 0),
        ("rounds", 0),
        ("local_steps", 0),
        ("learning_rate_e6", 0),
        ("scale_max", 0),
        ("scale_max", 1 << 31),
        ("announce_s", 0),
        ("announce_s", 86_401),
        ("learning_rate_drop_permille", 10_001),
        ("silence_permille", 1001),
        ("silence_rounds", 1001),
        ("manifest_repeats", 4),
    ],
)
def test_a_plan_has_limits(field: str, value: int) -> None:  # R5-4
    with pytest.raises(WireError, match=field) as caught:
        check_plan(replace(PLAN, **{field: value}))
    assert caught.value.reason == "plan"


@pytest.mark.parametrize("frame_mtu", [FRAME_MTU_MIN, 184, FRAME_MTU_MAX])
def test_the_longest_snapshot_fits_the_pieces_of_one_object(frame_mtu: int) -> None:  # R5-3
    size = 4 * global_snapshot_max(frame_mtu) + 2048
    assert -(-size // fragments.fragment_size(frame_mtu)) <= fragments.FRAGMENTS_MAX


@pytest.mark.parametrize(("frame_mtu", "chunks"), [(FRAME_MTU_MIN, 792), (156, 1016), (157, 1024)])
def test_a_receipt_of_all_chunks_fits_a_frame(frame_mtu: int, chunks: int) -> None:  # R5-3
    receipt = Receipt(0xFFFFFFFF, bytes(4), bytes(-(-chunks // 8)))
    assert len(write_control(receipt)) + FRAME_OVERHEAD <= frame_mtu
    plan = replace(PLAN, dimension=64 * chunks, frame_mtu=frame_mtu, up_span=64, down_span=4000)
    check_plan(plan)
    with pytest.raises(WireError, match="up_span"):
        check_plan(replace(plan, dimension=64 * chunks + 1))


def test_a_dimension_beyond_its_snapshot_is_refused() -> None:  # R5-3
    dimension = global_snapshot_max(184)
    spans = {"up_span": 0xFFFF, "down_span": 0xFFFF}
    check_plan(replace(PLAN, dimension=dimension, **spans))
    with pytest.raises(WireError, match="frames of this size"):
        check_plan(replace(PLAN, dimension=dimension + 1, **spans))


@pytest.mark.parametrize("aims", [{}, {"up_bytes": 6000, "down_bytes": 9000, "nodes": 3}])
def test_no_slice_has_more_numbers_than_a_share_can_count(aims: dict[str, int]) -> None:
    """In the codebook form no number is zero, and a share counts in two bytes."""
    big = make_plan(
        300_000,
        rounds=1,
        local_steps=1,
        learning_rate=0.1,
        frame_mtu=FRAME_MTU_MAX,
        up_zeros=0.99,
        down_zeros=0.99,
        **aims,
    )
    check_plan(big)
    assert max(big.up_span, big.down_span) <= 0xFFFF
    with pytest.raises(WireError, match="up_span"):
        check_plan(replace(big, up_span=0x10000))
