"""The airtime that a radio may use: may a frame leave now, or when?"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ternmesh.link.ledger import HOLD_MAX_S, HOUR_S, Ledger, Moment
from ternmesh.link.regions import SubBand

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIMEX_BYTES = 256  # more than struct timex on any Linux; all zeros: read, change nothing
_TIME_ERROR = 5  # the result of adjtimex while the clock is not synchronised


class AirtimeLog(Protocol):
    """The ledgers of a radio on disk: `ternmesh_store.airtime_store.AirtimeStore`."""

    @property
    def is_open(self) -> bool:
        """Whether it is open. An error closes it."""

    def open(self, now: Moment) -> None:
        """Open the file, or create it."""

    def close(self) -> None:
        """Close the file."""

    def reserve(self, band: SubBand, now: Moment, airtime_us: int, hold_s: float) -> bool:
        """Whether the hour has room for a frame; if so its airtime is reserved on disk."""

    def ledger(self, band: SubBand, now: Moment) -> Ledger:
        """The ledger of a sub-band."""

    def settle(self, now: Moment) -> None:
        """Give back airtime that was reserved ahead and not used."""


class AirtimeBudget:
    """The airtime of one radio in one sub-band. `log` is opened at the first use.

    All calls come from the radio's thread. A modem keeps a frame for at most `hold_s`. `speed` is
    that of an emulated radio, whose hours are shorter.
    """

    def __init__(
        self,
        log: AirtimeLog,
        band: SubBand,
        *,
        hold_s: float = 5.0,
        speed: float = 1.0,
        clock: Callable[[], Moment] | None = None,
    ) -> None:
        self._log = log
        self._band = band
        self._hold_s = hold_s
        self._speed = speed
        self._clock = clock or read_moment
        self.left_us: int | None = None  # of the hour, at the last frame; None without a limit

    def may_send(self, airtime_us: int) -> float:
        """0.0 if the frame's airtime is now reserved on disk, else the seconds to wait."""
        if self._band.budget_us is None:
            return 0.0
        now = self._now()
        if not self._log.is_open:
            self._log.open(now)
        hold_s = min(self._hold_s, HOLD_MAX_S - airtime_us / 1e6)
        is_free = self._log.reserve(self._band, now, airtime_us, hold_s)
        ledger = self._log.ledger(self._band, now)
        self.left_us = ledger.budget_us - ledger.spent_us(now.now_s)
        if is_free:
            return 0.0
        free_s = ledger.next_free_s(now.now_s, airtime_us)
        return max(free_s - now.now_s, 1e-3) / self._speed

    @property
    def duty(self) -> float:
        """The part of the time for which the law lets this radio send."""
        budget_us = self._band.budget_us
        return 1.0 if budget_us is None else budget_us / (HOUR_S * 1e6)

    def close(self) -> None:
        """Give back airtime that was reserved ahead and not used. From the radio's thread."""
        if self._log.is_open:
            self._log.settle(self._now())
            self._log.close()

    def _now(self) -> Moment:
        moment = self._clock()
        wall_s = None if moment.wall_s is None else moment.wall_s * self._speed
        return replace(moment, now_s=moment.now_s * self._speed, wall_s=wall_s)


def read_moment() -> Moment:
    """The time now. Without Linux neither boot nor wall clock is trusted."""
    wall_s = time.time() if _is_synchronised() else None
    return Moment(_boot(), time.monotonic(), wall_s)


def _boot() -> str:
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""  # not Linux: no boot counts as the same as another


def _is_synchronised() -> bool:
    """Whether NTP (any daemon) or a GPS disciplines the clock, according to the kernel."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None:
        return False
    state: int = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return 0 <= state < _TIME_ERROR
