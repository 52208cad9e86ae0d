import numpy as np
import pytest

from ternmesh.swarm.backoff import Backoff


@pytest.fixture
def backoff() -> Backoff:
    return Backoff(2.0, 60.0, np.random.default_rng(0))


def test_delays_double_up_to_the_longest_and_are_jittered(backoff: Backoff) -> None:
    delays = []
    for _ in range(40):
        backoff.again(100.0)
        assert backoff.at is not None
        delays.append(backoff.at - 100.0)
    wanted = [min(60.0, 2.0 * 2.0**attempt) for attempt in range(40)]
    assert all(0.5 * w <= d <= 1.5 * w for d, w in zip(delays, wanted, strict=True))
    assert len(set(delays)) == len(delays)


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
