"""The airtime ledger as a radio's transport asks it: may this frame leave now, or when?"""

from collections.abc import Callable
from dataclasses import replace

from ternmesh.link.ledger import HOLD_MAX_S, Moment
from ternmesh.link.regions import SubBand
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import StoreError
from ternmesh_store.moment import read_moment


class AirtimeBudget:
    """The air of one device in one sub-band, kept in `store`, which is opened by its first use.

    All questions come from one thread, that of the radio. `hold_s`: for how long a modem may keep
    a frame. `speed` is that of an emulated radio, whose hours are shorter.
    """

    def __init__(
        self,
        store: AirtimeStore,
        band: SubBand,
        *,
        hold_s: float = 5.0,
        speed: float = 1.0,
        clock: Callable[[], Moment] = read_moment,
    ) -> None:
        self._store, self._band, self._clock = store, band, clock
        self._hold_s, self._speed = hold_s, speed
        self._is_open = False

    def may_send(self, airtime_us: int) -> float:
        """0.0 where the frame's air is reserved on disk now, else the seconds to wait, or inf."""
        if self._band.budget_us is None:
            return 0.0
        now = self._now()
        if not self._is_open:
            self._store.open(now)
            self._is_open = True
        try:
            return self._reserve(now, airtime_us)
        except StoreError:
            self._is_open = False  # a store that fails has closed: the next question opens it anew
            raise

    def close(self) -> None:
        """Give back what was granted and not used; from the thread that asked."""
        if self._is_open:
            self._store.settle(self._now())
            self._store.close()
            self._is_open = False

    def _reserve(self, now: Moment, airtime_us: int) -> float:
        hold_s = min(self._hold_s, HOLD_MAX_S - airtime_us / 1e6)
        if self._store.reserve(self._band, now, airtime_us, hold_s):
            return 0.0
        at_s = self._store.ledger(self._band, now).next_free_s(now.now_s, airtime_us)
        return max(at_s - now.now_s, 1e-3) / self._speed

    def _now(self) -> Moment:
        moment = self._clock()
        wall_s = None if moment.wall_s is None else moment.wall_s * self._speed
        return replace(moment, now_s=moment.now_s * self._speed, wall_s=wall_s)
