import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.faulty import Bursts, FaultModel, Faults

BURST = Bursts(0.05, 0.25, 0.02, 0.9)
MEAN_LOSS = 1 / 6  # of BURST, in the long run


def model(seed: int = 1, **faults) -> FaultModel:
    return FaultModel(Faults(**faults), np.random.default_rng(seed))


def numbered(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") for number in range(count)]


def within(hits: float, count: int, share: float) -> bool:
    """Whether `hits` of `count` lie within four standard deviations of `share`."""
    return abs(hits - count * share) <= 4 * math.sqrt(count * share * (1 - share))


def flipped_bits(one: bytes, other: bytes) -> int:
    assert len(one) == len(other)
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


@pytest.mark.parametrize("name", ["drop", "duplicate", "reorder", "flip"])
def test_each_fault_comes_as_often_as_it_should_and_alone(name: str) -> None:
    count, share = 20_000, 0.3
    one: dict[str, Any] = {name: share}
    bad = model(**one)
    outcomes = [(frame, bad.apply(frame, 5.0)) for frame in numbered(count)]
    seen = {
        "drop": sum(not copies for _, copies in outcomes),
        "duplicate": sum(len(copies) == 2 for _, copies in outcomes),
        "reorder": sum(at > 5.0 for _, copies in outcomes for at, _ in copies),
        "flip": sum(copy != frame for frame, copies in outcomes for _, copy in copies),
    }
    assert within(seen.pop(name), count, share)
    assert not any(seen.values())


def test_nothing_is_invented() -> None:
    """What arrives was sent, at most twice, at most one bit different, and never before."""
    bad = model(drop=0.2, duplicate=0.3, reorder=0.3, reorder_s=2.0, flip=0.2, delay_s=0.5)
    copies_of: Counter[bytes] = Counter()
    for number, frame in enumerate(numbered(5000)):
        now = 0.1 * number
        for at, copy in bad.apply(frame, now):
            copies_of[frame] += 1
            assert flipped_bits(frame, copy) <= 1
            assert now + 0.5 <= at <= now + 2.5
    assert max(copies_of.values()) == 2
    assert 3500 < len(copies_of) < 4500


def test_bursts_lose_as_the_closed_form_says() -> None:
    """Mean loss, losses that follow a loss, and the same in fresh models, which start anywhere."""
    count = 200_000
    bad = model(burst=BURST)
    lost = np.array([not bad.apply(b"x", 0.0) for _ in range(count)])
    share = BURST.bad_share
    assert BURST.loss_good + share * (BURST.loss_bad - BURST.loss_good) == pytest.approx(MEAN_LOSS)
    assert lost.mean() == pytest.approx(MEAN_LOSS, rel=0.03)
    stay_bad = (1 - BURST.bad_to_good) * BURST.loss_bad + BURST.bad_to_good * BURST.loss_good
    turn_bad = BURST.good_to_bad * BURST.loss_bad + (1 - BURST.good_to_bad) * BURST.loss_good
    both = share * BURST.loss_bad * stay_bad + (1 - share) * BURST.loss_good * turn_bad
    assert (lost[1:] & lost[:-1]).mean() == pytest.approx(both, rel=0.03)
    firsts = sum(not model(seed, burst=BURST).apply(b"x", 0.0) for seed in range(4000))
    assert within(firsts, 4000, MEAN_LOSS)
