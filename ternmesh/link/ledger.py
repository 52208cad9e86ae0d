"""The airtime ledger: the airtime used in the last hour, safe across crashes. SPEC.md section 8.3.

In no window of one hour is more air used than the budget. An entry counts in full until its end
has left the window, so it does not matter where inside an entry a window begins, nor when between
reservation and end the radio really sent.

Reserve, put on disk, send: `reserve` enters the air of a frame; if `record` then gives a record,
it must be on disk before the frame leaves. A record grants some air ahead, so that most frames need
no write; after a crash all of that counts as spent, as late as it can have been sent.

Time is an argument. `now` is in seconds of a clock that does not jump, runs no faster than
time, and goes on across restarts of the process (CLOCK_MONOTONIC). Only a boot of the machine
begins it anew: `resume` bridges that by the wall clock where both sides trust it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

HOUR_S = 3600.0
BIN_S = 15.0  # entries that end in the same bin are merged: air comes back this much late at most
HOLD_MAX_S = 300.0  # a frame handed to a radio is off the air after this, whoever died meanwhile
ENTRIES_MAX = int((HOUR_S + HOLD_MAX_S) / BIN_S) + 2
AHEAD_PARTS = 32  # a record grants this part of the budget ahead
WALL_ERROR_S = 32.0  # two readings; Linux trusts its wall clock while the error is below 16 s


@dataclass(frozen=True, slots=True)
class Entry:
    """Spent airtime: `airtime_us`, which ends at `end_s` at the latest."""

    end_s: float
    airtime_us: int


@dataclass(frozen=True, slots=True)
class Record:
    """The ledger on disk: entries, and the airtime that may be used before the next record."""

    entries: tuple[Entry, ...]
    ahead_us: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time on one machine.

    `now_s` is comparable within one `boot` only (empty: unknown, and equal to nothing). `wall_s` is
    seconds since 1970, None where the wall clock is not trusted.
    """

    boot: str
    now_s: float
    wall_s: float | None = None


class Ledger:
    """The airtime of one device in one sub-band; at most `ENTRIES_MAX` entries."""

    def __init__(self, budget_us: int, entries: Iterable[Entry] = ()) -> None:
        self.budget_us = budget_us
        self._entries: deque[Entry] = deque()
        self._spent_us = 0
        self._ahead_us = 0
        self._now_s = -inf
        for entry in entries:
            self._enter(entry)

    def reserve(self, now: float, airtime_us: int, hold_s: float = 0.0) -> bool:
        """Enter a frame that is sent now, if the budget has room; else change nothing.

        `hold_s`: for how long the radio may keep the frame before it sends. ValueError where the
        frame would not be off the air within `HOLD_MAX_S`.
        """
        if airtime_us <= 0 or not 0 <= hold_s <= HOLD_MAX_S - airtime_us / 1e6:
            raise ValueError(
                f"a frame of {airtime_us} us, held for {hold_s} s: both together must be above 0 "
                f"and at most {HOLD_MAX_S:g} s"
            )
        if self.spent_us(now) + airtime_us > self.budget_us:
            return False
        self._enter(Entry(self._now_s + hold_s + airtime_us / 1e6, airtime_us))
        self._ahead_us -= airtime_us
        return True

    def record(self) -> Record | None:
        """Return the record to save before a reserved frame is sent; None if none is needed."""
        if self._ahead_us >= 0:
            return None
        self._ahead_us = self.budget_us // AHEAD_PARTS
        return Record(tuple(self._entries), self._ahead_us)

    def settle(self) -> Record:
        """Return the record to save before an orderly stop: it grants no airtime ahead."""
        self._ahead_us = 0
        return Record(tuple(self._entries), 0)

    def spent_us(self, now: float) -> int:
        """Return the airtime in the hour that ends now, in microseconds."""
        # A clock that falls back must not make later entries look old when it recovers.
        self._now_s = max(self._now_s, now)
        while self._entries and self._entries[0].end_s + HOUR_S <= self._now_s:
            self._spent_us -= self._entries.popleft().airtime_us
        return self._spent_us

    def next_free_s(self, now: float, airtime_us: int) -> float:
        """Return when `reserve` has room for this airtime, on the clock of `now`; inf if never."""
        excess = self.spent_us(now) + airtime_us - self.budget_us
        if airtime_us > self.budget_us:
            return inf
        free_s = self._now_s
        for entry in self._entries:
            if excess <= 0:
                break
            excess -= entry.airtime_us
            free_s = entry.end_s + HOUR_S
        return free_s

    def _enter(self, entry: Entry) -> None:
        end_s = entry.end_s
        airtime_us = entry.airtime_us
        if self._entries:
            last = self._entries[-1]
            end_s = max(end_s, last.end_s)
            if end_s // BIN_S == last.end_s // BIN_S:
                airtime_us += self._entries.pop().airtime_us
        self._entries.append(Entry(end_s, airtime_us))
        self._spent_us += entry.airtime_us


def elapsed_s(then: Moment, now: Moment) -> float | None:
    """Return the least time that has passed, in seconds; None if that is unknown."""
    if now.boot and now.boot == then.boot and now.now_s >= then.now_s:
        return now.now_s - then.now_s
    if then.wall_s is not None and now.wall_s is not None and now.wall_s >= then.wall_s:
        return max(0.0, now.wall_s - then.wall_s - WALL_ERROR_S)
    return None


def resume(budget_us: int, record: Record, then: Moment, now: Moment) -> Ledger:
    """Return the ledger after a restart, from the record that was written `then`."""
    elapsed = elapsed_s(then, now)
    if elapsed is None:
        return fully_spent(budget_us, now.now_s)
    shift = now.now_s - elapsed - then.now_s
    latest = now.now_s + HOLD_MAX_S
    entries = [
        Entry(min(entry.end_s + shift, latest), min(entry.airtime_us, budget_us))
        for entry in record.entries
    ]
    if record.ahead_us:
        entries.append(Entry(latest, record.ahead_us))
    return Ledger(budget_us, entries)


def fully_spent(budget_us: int, now: float) -> Ledger:
    """Return the ledger of a device that has lost its record: the whole budget is spent."""
    return Ledger(budget_us, [Entry(now + HOLD_MAX_S, budget_us)])
