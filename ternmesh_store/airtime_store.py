"""The airtime ledgers of one radio, in a file of their own.

A reservation is durable when `reserve` returns. Only then may the frame be handed to the radio.
A store is used from the thread that opened it.
"""

import struct
from pathlib import Path

from ternmesh.link.ledger import Entry, Ledger, Moment, Record, fully_spent, resume
from ternmesh.link.regions import HOUR_US, SubBand
from ternmesh_store.database import Database, Schema, StoreError
from ternmesh_store.store import Store

SCHEMA = Schema(
    application=0x544D4154,  # "TMAT"
    version=3,
    statements=(
        """CREATE TABLE airtime_ledger (
            band TEXT PRIMARY KEY,
            boot TEXT NOT NULL,
            now_s REAL NOT NULL,
            wall_s REAL,
            ahead_us INTEGER NOT NULL,
            entries BLOB NOT NULL
        )""",
        "CREATE TABLE airtime_begun (begun INTEGER NOT NULL)",  # has a row once the file is in use
    ),
    advice="rename it, after which the present hour counts as spent",
)
HOLD_S = 5.0  # for a slow disk, a busy channel, and a clock that NTP makes 500 ppm too fast
UNKNOWN = "*"  # every sub-band without a row, after a damaged file was replaced
_ENTRY = struct.Struct("<dQ")  # end_s, airtime_us


class AirtimeStore(Store):
    """The file of one radio. One row for each sub-band in use."""

    def __init__(self, path: Path) -> None:
        super().__init__(Database(path, SCHEMA))
        self._ledgers: dict[str, Ledger] = {}

    @property
    def is_open(self) -> bool:
        """Whether the file is open. An error closes it."""
        return self._database.is_open

    def open(self, now: Moment) -> None:
        """Open the file, or create it. Where a damaged one was replaced, the hour is spent."""
        # A damaged file that was set aside counts, too: the power may have failed after that.
        existed = any(self.path.parent.glob(f"{self.path.name}*"))
        self._ledgers.clear()
        self._database.open(keep=())
        went_back = self._database.went_back
        if went_back:
            self._database.clear("airtime_ledger")
        if went_back or not self._database.rows("SELECT begun FROM airtime_begun"):
            if existed:
                self._keep(UNKNOWN, fully_spent(HOUR_US, now.now_s).settle(), now)
            self._database.insert("airtime_begun", 1)
            self.commit()

    def close(self) -> None:
        """Close the file. Airtime that was reserved ahead counts as spent, unless `settle` ran."""
        self._ledgers.clear()
        self._database.close()

    def reserve(self, band: SubBand, now: Moment, airtime_us: int, hold_s: float = HOLD_S) -> bool:
        """Whether the hour has room for a frame; if so its airtime is reserved on disk.

        The frame must be sent within `hold_s` of `now`, after this commit, the radio's queue and
        its listening before talking. Raises ValueError as `Ledger.reserve` does.
        """
        if band.budget_us is None:
            return True
        ledger = self.ledger(band, now)
        if not ledger.reserve(now.now_s, airtime_us, hold_s):
            return False
        record = ledger.record()
        if record is not None:
            self._keep(band.name, record, now)
        return True

    def ledger(self, band: SubBand, now: Moment) -> Ledger:
        """The ledger of a sub-band, to read. Reservations go through `reserve`.

        Raises ValueError where the sub-band has no budget.
        """
        if band.budget_us is None:
            raise ValueError(f"{band.name} has no budget, and so no ledger")
        if band.name not in self._ledgers:
            ledger = self._load(band.name, band.budget_us, now)
            # What this restart counts as spent must be on disk before the next one.
            self._keep(band.name, ledger.settle(), now)
            self._ledgers[band.name] = ledger
        return self._ledgers[band.name]

    def settle(self, now: Moment) -> None:
        """Give back airtime that was reserved ahead and not used, before `close`."""
        for name, ledger in tuple(self._ledgers.items()):
            self._keep(name, ledger.settle(), now)

    def _load(self, name: str, budget_us: int, now: Moment) -> Ledger:
        sql = "SELECT boot, now_s, wall_s, ahead_us, entries FROM airtime_ledger WHERE band = ?"
        rows = self._database.rows(sql, name) or self._database.rows(sql, UNKNOWN)
        if not rows:
            return Ledger(budget_us)
        boot, now_s, wall_s, ahead_us, blob = rows[0]
        entries = tuple(Entry(*fields) for fields in _ENTRY.iter_unpack(blob))
        return resume(budget_us, Record(entries, ahead_us), Moment(boot, now_s, wall_s), now)

    def _keep(self, name: str, record: Record, now: Moment) -> None:
        blob = b"".join(_ENTRY.pack(entry.end_s, entry.airtime_us) for entry in record.entries)
        row = (name, now.boot, now.now_s, now.wall_s, record.ahead_us, blob)
        try:
            self._database.insert("airtime_ledger", *row, replace=True)
            self.commit()
        except StoreError:
            # The ledgers would go on with airtime that is not reserved on disk.
            self._ledgers.clear()
            raise
