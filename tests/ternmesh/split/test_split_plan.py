"""The plan of a split training."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.split.plan import from_numbers, to_numbers
from tests.ternmesh.split.split_wire import PLAN


@given(st.lists(st.integers(0, 2**32 - 1), min_size=9, max_size=13))
def test_any_numbers_are_a_plan_or_a_wire_error(numbers: list[int]) -> None:  # R10.2-1
    for candidate in (tuple(numbers), (*to_numbers(PLAN)[:7], *numbers[:4])):
        try:
            plan = from_numbers(candidate)
        except WireError:
            continue
        assert to_numbers(plan) == candidate
        assert plan.body_max < 2**26


def test_the_rate_falls_in_a_straight_line() -> None:
    rates = [PLAN.learning_rate(number) for number in range(5)]
    assert rates == pytest.approx([0.005, 0.0042, 0.0034, 0.0026, 0.0018])


def test_a_plan_whose_bodies_have_too_many_pieces_is_refused() -> None:  # R10.2-1
    wide = {"width": 65_535, "bits_up": 32, "frame_mtu": 64}
    replace(PLAN, **wide, batch=9)
    with pytest.raises(WireError, match="do not carry such batches"):
        replace(PLAN, **wide, batch=41)
