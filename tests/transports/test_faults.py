import contextlib
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transports.faulty import Bursts, FaultCounts, FaultModel, Faults, parse_faults

BURST = Bursts(0.05, 0.25, 0.02, 0.9)


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


def test_without_faults_every_frame_arrives_at_once() -> None:
    quiet = model()
    assert [quiet.apply(frame, 7.0) for frame in numbered(3)] == [
        [(7.0, frame)] for frame in numbered(3)
    ]
    assert quiet.counts == FaultCounts(offered=3)


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
    counts = bad.counts
    assert counts.offered == count
    assert [counts.dropped, counts.duplicated, counts.late, counts.flipped] == [
        sum(not copies for _, copies in outcomes),
        sum(len(copies) == 2 for _, copies in outcomes),
        sum(at > 5.0 for _, copies in outcomes for at, _ in copies),
        sum(copy != frame for frame, copies in outcomes for _, copy in copies),
    ]


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


def test_every_bit_is_flipped_as_often_as_any_other() -> None:
    bad, zero = model(flip=1.0), bytes(2)
    places = Counter(bad.apply(zero, 0.0)[0][1] for _ in range(16_000))
    assert len(places) == 16
    assert all(within(hits, 16_000, 1 / 16) for hits in places.values())
    assert bad.apply(b"", 0.0) == [(0.0, b"")]


def test_late_frames_are_overtaken() -> None:
    bad = model(reorder=0.5, reorder_s=1.0)
    arrivals = [copy for number, frame in enumerate(numbered(1000))
                for copy in bad.apply(frame, 0.01 * number)]  # fmt: skip
    order = [frame for _, frame in sorted(arrivals)]
    assert sorted(order) == numbered(1000)
    assert sum(one > other for one, other in pairwise(order)) > 200


def test_bursts_lose_as_the_closed_form_says() -> None:
    """Mean loss, losses that follow a loss, and the same in fresh models, which start anywhere."""
    count = 200_000
    bad = model(burst=BURST)
    lost = np.array([not bad.apply(b"x", 0.0) for _ in range(count)])
    share = BURST.bad_share
    assert [share, BURST.mean_loss] == pytest.approx([1 / 6, 1 / 6])
    assert lost.mean() == pytest.approx(BURST.mean_loss, rel=0.03)
    stay_bad = (1 - BURST.bad_to_good) * BURST.loss_bad + BURST.bad_to_good * BURST.loss_good
    turn_bad = BURST.good_to_bad * BURST.loss_bad + (1 - BURST.good_to_bad) * BURST.loss_good
    both = share * BURST.loss_bad * stay_bad + (1 - share) * BURST.loss_good * turn_bad
    assert (lost[1:] & lost[:-1]).mean() == pytest.approx(both, rel=0.03)
    firsts = sum(not model(seed, burst=BURST).apply(b"x", 0.0) for seed in range(4000))
    assert within(firsts, 4000, BURST.mean_loss)


def test_a_burst_and_drops_add_up() -> None:
    count = 40_000
    bad = model(drop=0.2, burst=BURST)
    lost = sum(not bad.apply(b"x", 0.0) for _ in range(count))
    assert lost / count == pytest.approx(1 - 0.8 * (1 - BURST.mean_loss), rel=0.03)


def test_a_rate_sends_one_frame_after_the_other_and_lost_ones_too() -> None:
    slow = model(rate_bytes_s=100.0, delay_s=0.5)
    times = [slow.apply(bytes(50), now)[0][0] for now in (0.0, 0.0, 0.2, 9.0)]
    assert times == pytest.approx([1.0, 1.5, 2.0, 10.0])
    lossy = model(rate_bytes_s=100.0, drop=0.5)
    arrivals = [copy for _ in range(1000) for copy in lossy.apply(bytes(50), 0.0)]
    assert arrivals[-1][0] > 490
    assert within(len(arrivals), 1000, 0.5)


def test_an_mtu_swallows_longer_frames_which_take_no_time() -> None:
    narrow = model(mtu=10, rate_bytes_s=10.0)
    assert narrow.apply(bytes(11), 0.0) == []
    assert narrow.apply(bytes(10), 0.0) == [(1.0, bytes(10))]
    assert narrow.counts == FaultCounts(offered=2, too_long=1)


def test_one_seed_is_one_history() -> None:
    faults = {"drop": 0.2, "duplicate": 0.1, "reorder": 0.3, "flip": 0.1, "burst": BURST}

    def history(seed: int) -> list[list[tuple[float, bytes]]]:
        bad = model(seed, **faults)
        return [bad.apply(frame, 0.0) for frame in numbered(500)]

    assert history(3) == history(3)
    assert history(3) != history(4)


def test_faults_are_read_from_a_text() -> None:
    assert parse_faults(" drop=0.2, burst=0.05/0.25/0.02/0.9 ,delay_s=0.5,") == Faults(
        drop=0.2, burst=BURST, delay_s=0.5
    )
    assert parse_faults("rate_bytes_s=1e3,mtu=184,direction=send") == Faults(
        rate_bytes_s=1000.0, mtu=184, direction="send"
    )
    assert parse_faults("") == Faults()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("loss=0.2", "'loss=0.2' is no fault: write faults as .* known are drop, duplicate"),
        ("drop", "'drop' is no fault"),
        ("drop=much", "fault drop=much cannot be read"),
        ("drop=1.5", "fault drop=1.5 must be 0 to 1"),
        ("drop=nan", "fault drop=nan must be 0 to 1"),
        ("drop=0.1,drop=0.1", "fault drop is given twice"),
        ("delay_s=-1", "fault delay_s=-1.0 must be 0 to 3600"),
        ("delay_s=inf", "fault delay_s=inf must be"),
        ("mtu=0", "fault mtu=0 must be 1 to 65535"),
        ("mtu=9.5", "fault mtu=9.5 cannot be read"),
        ("rate_bytes_s=0", "fault rate_bytes_s=0.0 must be 1 to"),
        ("burst=0.1/0.2", "fault burst=0.1/0.2 cannot be read"),
        ("burst=0.1/0.2/0.3/4", r"fault burst.loss_bad=4.0 must be 0 to 1"),
        ("direction=up", "fault direction=up must be both, send, receive"),
    ],
)
def test_a_wrong_text_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_faults(text)


@given(st.text(alphabet="abdelorpsut_=,./0123456789 -", max_size=40))
@example("mtu=" + 400 * "9")
def test_any_text_gives_faults_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_faults(text), Faults)
