import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.timers import ASKERS_MAX, Backoff, RateLimiter, backoff_s


@pytest.fixture
def backoff() -> Backoff:
    return Backoff(2.0, 60.0, np.random.default_rng(0))


@given(st.integers(-1, 10_000), st.integers(0, 2**32))
def test_a_pause_doubles_to_the_longest(attempt: int, seed: int) -> None:
    nominal_s = min(30.0, 2.0 ** min(10, max(0, attempt)))
    pause_s = backoff_s(attempt, 1.0, 30.0, random.Random(seed))
    assert 0.75 * nominal_s <= pause_s <= 1.25 * nominal_s


@pytest.mark.parametrize(("attempt", "nominal_s"), [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0)])
def test_pauses_are_spread(attempt: int, nominal_s: float) -> None:
    rng = random.Random(1)
    pauses = [backoff_s(attempt, 1.0, 30.0, rng) for _ in range(100)]
    assert min(pauses) < 0.8 * nominal_s < 1.2 * nominal_s < max(pauses)


def test_stop_starts_afresh(backoff: Backoff) -> None:
    for _ in range(10):
        backoff.again(0.0)
    backoff.stop()
    assert backoff.at is None
    assert not backoff.due(1e9)
    backoff.again(0.0)
    assert backoff.at is not None
    assert backoff.at <= 3.0


def test_soon_never_delays_what_was_due_earlier(backoff: Backoff) -> None:
    backoff.by(0.5)
    backoff.by(9.0)
    assert backoff.at == 0.5
    backoff.soon(10.0)
    assert backoff.at == 0.5
    assert backoff.due(0.5)
    assert not backoff.due(0.4)


def test_an_asker_is_answered_once_in_the_interval() -> None:
    limiter = RateLimiter(1.0)
    answered = [now for now in range(0, 50) if limiter.allow("theo", now / 10)]
    assert answered == [0, 10, 20, 30, 40]
    assert limiter.allow("yan", 4.9)


def test_a_limiter_remembers_so_many_askers_and_no_more() -> None:
    limiter = RateLimiter(1.0)
    for index in range(ASKERS_MAX + 10):
        assert limiter.allow(str(index), 0.0)
    assert not limiter.allow(str(ASKERS_MAX), 0.5)
    assert limiter.allow("9", 0.5)  # forgotten: it was among the first
