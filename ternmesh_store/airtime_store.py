"""The airtime ledgers of one device on disk, in a file of their own.

A reservation is durable when `reserve` returns; only then may the frame be handed to the radio.
A store is used from the thread that opened it.
"""

import struct
from math import isfinite
from pathlib import Path

from ternmesh.link.ledger import Entry, Ledger, Moment, Record, fully_spent, resume
from ternmesh.link.regions import HOUR_US, SubBand
from ternmesh_store.database import Database, Schema, StoreError, checked

SCHEMA = Schema(
    application=0x544D4154,  # "TMAT"
    version=1,
    statements=(
        """CREATE TABLE airtime (
            band TEXT PRIMARY KEY,
            boot TEXT NOT NULL,
            now_s REAL NOT NULL,
            wall_s REAL,
            ahead_us INTEGER NOT NULL,
            entries BLOB NOT NULL
        )""",
    ),
)
HOLD_S = 5.0  # a slow disk and a busy channel, and a clock that NTP makes 500 ppm too fast
UNKNOWN = "*"  # stands for every sub-band without a row, where a damaged file was replaced
_ENTRY = struct.Struct("<dQ")  # end_s, airtime_us
_KEPT = "airtime.kept"


class AirtimeStore:
    """The file of one device; see `Database` for errors. One row for each sub-band in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = Database(path, SCHEMA)
        self._ledgers: dict[str, Ledger] = {}

    def open(self, now: Moment) -> None:
        """Take the file, or make it. Where a damaged one was replaced, the hour is spent."""
        # Also where a damaged one was set aside, and the power failed before the new one was there.
        existed = any(self._path.parent.glob(f"{self._path.name}*"))
        self._database.open()
        if self._database.get(_KEPT) is None:
            if existed:
                self._keep(UNKNOWN, fully_spent(HOUR_US, now.now_s).settle(), now)
            self._database.put(_KEPT, b"1")
            self._database.commit()

    def close(self) -> None:
        """Give the file back. Air that was granted ahead counts as spent, unless `settle` was."""
        self._ledgers.clear()
        self._database.close()

    def reserve(self, band: SubBand, now: Moment, airtime_us: int, hold_s: float = HOLD_S) -> bool:
        """Whether the hour has room for a frame; if so it is entered, and no crash takes it out.

        It must be handed to the radio so soon that it is sent within `hold_s` of `now`: this disk,
        the radio's queue and its listening before talking count. ValueError as `Ledger.reserve`.
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
        """The ledger of a sub-band with a budget, for questions; reservations go through `reserve`.

        ValueError where the sub-band has no budget.
        """
        if band.budget_us is None:
            raise ValueError(f"{band.name} has no budget, and so no ledger")
        if band.name not in self._ledgers:
            ledger = self._load(band.name, band.budget_us, now)
            # What this restart takes for spent must not be spent anew at the next one.
            self._keep(band.name, ledger.settle(), now)
            self._ledgers[band.name] = ledger
        return self._ledgers[band.name]

    def settle(self, now: Moment) -> None:
        """Before `close`, in peace: give back what was granted ahead and not used."""
        for name, ledger in tuple(self._ledgers.items()):
            self._keep(name, ledger.settle(), now)

    @checked
    def _load(self, name: str, budget_us: int, now: Moment) -> Ledger:
        sql = "SELECT boot, now_s, wall_s, ahead_us, entries FROM airtime WHERE band = ?"
        found = self._database.rows(sql, name) or self._database.rows(sql, UNKNOWN)
        if not found:
            return Ledger(budget_us)
        boot, now_s, wall_s, ahead_us, blob = found[0]
        entries = tuple(Entry(*fields) for fields in _ENTRY.iter_unpack(blob))
        times = (now_s, wall_s or 0.0, *(entry.end_s for entry in entries))
        if not all(map(isfinite, times)) or not 0 <= ahead_us <= budget_us:
            raise ValueError("airtime that nobody has reserved")
        return resume(budget_us, Record(entries, ahead_us), Moment(boot, now_s, wall_s), now)

    def _keep(self, name: str, record: Record, now: Moment) -> None:
        blob = b"".join(_ENTRY.pack(entry.end_s, entry.airtime_us) for entry in record.entries)
        row = (name, now.boot, now.now_s, now.wall_s, record.ahead_us, blob)
        try:
            self._database.write("INSERT OR REPLACE INTO airtime VALUES (?, ?, ?, ?, ?, ?)", *row)
            self._database.commit()
        except StoreError:
            # The ledgers would go on with air that the disk did not grant.
            self._ledgers.clear()
            raise
