import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.backoff import backoff_s


@given(st.integers(-1, 10_000), st.integers(0, 2**32))
def test_a_pause_doubles_to_the_maximum(attempt: int, seed: int) -> None:
    ceiling_s = min(30.0, 2.0 ** min(10, max(0, attempt)))
    assert ceiling_s / 2 <= backoff_s(attempt, 1.0, 30.0, random.Random(seed)) <= ceiling_s


@pytest.mark.parametrize(("attempt", "ceiling_s"), [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0)])
def test_pauses_differ_and_are_never_zero(attempt: int, ceiling_s: float) -> None:
    rng = random.Random(1)
    pauses = [backoff_s(attempt, 1.0, 30.0, rng) for _ in range(100)]
    assert ceiling_s / 2 <= min(pauses) < 0.6 * ceiling_s
    assert 0.9 * ceiling_s < max(pauses) <= ceiling_s
