"""The rolling hour, against brute force over every window."""

import numpy as np
import pytest

from ternmesh.link.ledger import (
    AHEAD_PARTS,
    BIN_S,
    ENTRIES_MAX,
    HOLD_MAX_S,
    HOUR_S,
    WALL_ERROR_S,
    Entry,
    Ledger,
    Moment,
    Record,
    elapsed_s,
    fully_spent,
    resume,
)

HOUR_US = 3_600_000_000
BUDGET_US = 36_000_000
STEPS = 250
AIRTIMES_US = (51_456, 399_616, 1_250_304, 9_019_392)
UP, CRASH_AFTER_RESERVING, CRASH_AFTER_WRITING, CRASH_AFTER_SENDING = range(4)


def worst_hour_us(sent: list[tuple[int, int]]) -> int:
    """The most air in any window of one hour; integers, so exact.

    The air in a window is piecewise linear in its beginning, and bends only where the window begins
    or ends at an edge of a transmission: so the maximum is at one of these.
    """
    starts, lengths = np.array(sent or [(0, 0)], np.int64).T
    ends = starts + lengths
    edges = np.concatenate([starts, ends])
    windows = np.concatenate([edges, edges - HOUR_US])[:, None]
    air = np.minimum(ends, windows + HOUR_US) - np.maximum(starts, windows)
    return int(np.maximum(air, 0).sum(axis=1).max())


class Device:
    """A radio, its process and its disk, in true time (us). It sends as much as it is allowed."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.sent: list[tuple[int, int]] = []
        self.true_us = 10**9
        self.disk: tuple[Record, Moment] | None = None
        self.boots = 0
        self._boot(trusted=True)
        self._start()

    def now(self) -> Moment:
        since_boot = (self.true_us - self.boot_us) / 1e6
        wall = self.true_us / 1e6 + self.wall_error_s if self.trusted else None
        return Moment(f"boot {self.boots}", since_boot, wall)

    def step(self) -> None:
        rng = self.rng
        airtime = int(rng.choice(AIRTIMES_US, p=[0.3, 0.5, 0.15, 0.05]))
        hold_s = float(rng.choice([0.0, rng.uniform(0, HOLD_MAX_S - airtime / 1e6)], p=[0.8, 0.2]))
        fate = int(rng.choice(4, p=[0.97, 0.01, 0.01, 0.01]))
        now_s = self.now().now_s
        if not self.ledger.reserve(now_s, airtime, hold_s):
            free_s = self.ledger.next_free_s(now_s, airtime)
            self.true_us = self.boot_us + int(free_s * 1e6) + 1
            assert self.ledger.reserve(self.now().now_s, airtime, hold_s), "it was said to be free"
        if fate == CRASH_AFTER_RESERVING:
            return self._restart()
        record = self.ledger.record()
        if record is not None:
            self.disk = record, self.now()
        if fate == CRASH_AFTER_WRITING:
            return self._restart()
        held_us = int(hold_s * 1e6 * rng.choice([0, 1, rng.uniform()]))
        self.sent.append((self.true_us + held_us, airtime))
        if fate == CRASH_AFTER_SENDING:
            return self._restart()
        self.true_us += airtime
        if rng.random() < 0.02:
            self.true_us += int(rng.choice([rng.uniform(0, 60), rng.uniform(0, 4000)]) * 1e6)
        return None

    def _restart(self) -> None:
        rng = self.rng
        self.true_us += int(rng.choice([0, 2e6, 30e6, rng.uniform(0, HOUR_US)]))
        kind = rng.choice(3, p=[0.5, 0.3, 0.2])
        if kind > 0:
            self._boot(trusted=kind == 1)
        self._start()

    def _boot(self, *, trusted: bool) -> None:
        self.boots += 1
        self.boot_us = self.true_us - int(self.rng.uniform(0, 60e6))
        self.trusted = trusted
        self.wall_error_s = self.rng.uniform(-1, 1) * WALL_ERROR_S / 2

    def _start(self) -> None:
        now = self.now()
        if self.disk is None:
            self.ledger = Ledger(BUDGET_US)
        else:
            self.ledger = resume(BUDGET_US, *self.disk, now)
        self.disk = self.ledger.settle(), now


def check_lives(seeds: range) -> None:
    for seed in seeds:
        device = Device(np.random.default_rng(seed))
        for _ in range(STEPS):
            device.step()
        assert worst_hour_us(device.sent) <= BUDGET_US, seed


def test_no_hour_holds_more_than_the_budget_whatever_crashes():  # R8.3-5, R8.3-9
    check_lives(range(20))


@pytest.mark.nightly
def test_no_hour_of_many_lives_holds_more_than_the_budget():  # R8.3-5, R8.3-9
    check_lives(range(20, 120))


def test_a_busy_sender_gets_almost_all_of_its_budget():
    ledger, now, sent = Ledger(BUDGET_US), 0.0, []
    while now < 10 * HOUR_S:
        now = ledger.next_free_s(now, 399_616)
        assert ledger.reserve(now, 399_616)
        sent.append((round(now * 1e6), 399_616))
        now += 0.4
    assert worst_hour_us(sent) <= BUDGET_US
    assert sum(air for _, air in sent) > 0.98 * 10 * BUDGET_US


def test_what_does_not_fit_changes_nothing():
    ledger = Ledger(BUDGET_US)
    assert ledger.reserve(0.0, BUDGET_US)
    ledger.record()
    assert not ledger.reserve(100.0, 1)
    assert ledger.record() is None
    assert ledger.spent_us(100.0) == BUDGET_US
    assert ledger.next_free_s(100.0, 1) == HOUR_S + 36
    assert ledger.spent_us(HOUR_S + 36) == 0


@pytest.mark.parametrize(
    ("airtime", "hold_s"), [(0, 0), (-1, 0), (300_000_001, 0), (1, -1), (1, 300)]
)
def test_refuses_a_frame_that_is_not_over_within_five_minutes(airtime: int, hold_s: float):
    with pytest.raises(ValueError, match="both together must be above 0 and at most 300 s"):
        Ledger(HOUR_US).reserve(0.0, airtime, hold_s)


def test_the_ledger_is_bounded():  # R8.3-7
    ledger = Ledger(HOUR_US // 10)
    rng = np.random.default_rng(1)
    now = 0.0
    for step in range(40_000):
        now += rng.uniform(0, 0.5)
        ledger.reserve(now, 25_856, float(rng.uniform(0, 59)))
        if step % 100 == 0:
            assert len(ledger.settle().entries) <= ENTRIES_MAX
    assert len(ledger.settle().entries) > 0.9 * HOUR_S / BIN_S, "the test fills it"


def test_most_frames_need_no_write():  # R8.3-8
    ledger, now, records = Ledger(HOUR_US // 10), 0.0, 0
    for _ in range(500):
        assert ledger.reserve(now, 399_616)
        records += ledger.record() is not None
        now += 0.4
    assert records <= 1 + 500 // (HOUR_US // 10 // AHEAD_PARTS // 399_616)


def test_after_a_stop_in_peace_only_what_was_sent_is_spent():  # R8.3-10
    ledger = Ledger(BUDGET_US)
    ledger.reserve(0.0, 400_000)
    assert ledger.record() == Record((Entry(0.4, 400_000),), BUDGET_US // AHEAD_PARTS)
    ledger.reserve(1.0, 400_000)
    assert ledger.record() is None
    settled = ledger.settle()
    assert settled == Record((Entry(1.4, 800_000),), 0)
    then, now = Moment("a", 2.0), Moment("a", 3.0)
    assert resume(BUDGET_US, settled, then, now).spent_us(3.0) == 800_000
    ledger.reserve(4.0, 1)
    assert ledger.record() is not None, "nothing is granted any more"


SENT = Record((Entry(100.0, 400_000),), 0)


def test_a_reboot_is_bridged_by_the_wall_clock():  # R8.3-11
    then, now = Moment("a", 160.0, 1000.0), Moment("b", 20.0, 1000.0 + 600 + WALL_ERROR_S)
    ledger = resume(BUDGET_US, SENT, then, now)
    assert ledger.spent_us(20.0) == 400_000
    assert ledger.next_free_s(20.0, BUDGET_US) == 20 - 660 + HOUR_S


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (Moment("a", 160.0), Moment("b", 20.0, 2000.0)),
        (Moment("a", 160.0, 1000.0), Moment("b", 20.0)),
        (Moment("a", 160.0, 1000.0), Moment("b", 20.0, 999.0)),
        (Moment("", 160.0), Moment("", 170.0)),
        (Moment("a", 160.0), Moment("a", 20.0)),
    ],
    ids=["then untrusted", "now untrusted", "set back", "no boot known", "clock began anew"],
)
def test_without_trusted_time_the_hour_is_spent(then: Moment, now: Moment):  # R8.3-11
    assert elapsed_s(then, now) is None
    ledger = resume(BUDGET_US, SENT, then, now)
    assert ledger.spent_us(20.0) == BUDGET_US
    assert ledger.next_free_s(20.0, 1) >= 20 + HOUR_S


def test_in_one_boot_the_wall_clock_does_not_matter():  # R8.3-11
    then, now = Moment("a", 160.0, 1000.0), Moment("a", 170.0, 9e9)
    assert elapsed_s(then, now) == 10.0


def test_who_knows_nothing_has_spent_the_hour():
    ledger = fully_spent(BUDGET_US, 50.0)
    assert not ledger.reserve(50.0 + HOUR_S, 1)
    assert ledger.reserve(50.0 + HOUR_S + HOLD_MAX_S, BUDGET_US)
