"""What a link keeps on disk: objects on their way out and in, and those nobody has taken yet."""

import json
from itertools import groupby
from pathlib import Path

from ternmesh.link.frames import Offer
from ternmesh.link.records import (
    ARRIVED_MAX,
    Delivered,
    GaveUp,
    IncomingDropped,
    InRecord,
    LinkCountersReserved,
    LinkEvent,
    LinkState,
    ObjectArrived,
    OutRecord,
    Queued,
    RepairsReserved,
    SymbolHeld,
    TransferBegun,
)
from ternmesh_store.database import Database, Schema, checked
from ternmesh_store.state_checks import check_link

SCHEMA = Schema(
    application=0x544D4C4B,  # "TMLK"
    version=1,
    statements=(
        "CREATE TABLE counter (seal INTEGER NOT NULL, number INTEGER NOT NULL)",
        "INSERT INTO counter VALUES (0, 0)",
        """CREATE TABLE outgoing (
            number INTEGER PRIMARY KEY,
            peer TEXT NOT NULL,
            receivers TEXT NOT NULL,
            payload BLOB NOT NULL,
            priority INTEGER NOT NULL,
            key TEXT,
            repairs INTEGER NOT NULL,
            slot INTEGER
        )""",
        """CREATE TABLE symbol (
            peer TEXT NOT NULL,
            slot INTEGER NOT NULL,
            number INTEGER NOT NULL,
            name BLOB NOT NULL,
            size INTEGER NOT NULL,
            position INTEGER NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (peer, slot, position)
        )""",
        "CREATE TABLE arrived (place INTEGER PRIMARY KEY, peer TEXT NOT NULL, name BLOB NOT NULL)",
        "CREATE TABLE inbox (place INTEGER PRIMARY KEY, peer TEXT NOT NULL, payload BLOB NOT NULL)",
    ),
)


class LinkStore:
    """The file of one link; see `Database` for errors. `load` comes before `record`."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA)

    def open(self) -> None:
        """Take the file, or make it."""
        self._database.open()

    def close(self) -> None:
        """Forget what was not committed, and give the file back."""
        self._database.close()

    def commit(self) -> None:
        """Make all that was recorded durable."""
        self._database.commit()

    @checked
    def load(self) -> LinkState:
        """The state of the last commit."""
        rows = self._database.rows
        [(counter, number)] = rows("SELECT seal, number FROM counter")
        arrived: dict[str, tuple[bytes, ...]] = {}
        for peer, name in rows("SELECT peer, name FROM arrived ORDER BY place"):
            arrived[peer] = (*arrived.get(peer, ()), name)
        state = LinkState(counter, number, self._outgoing(), self._incoming(), arrived)
        check_link(state)
        return state

    def record(self, event: LinkEvent) -> None:
        """Write what of an event must survive; `commit` makes it durable."""
        write = self._database.write
        match event:
            case LinkCountersReserved():
                write("UPDATE counter SET seal = ?", event.limit)
            case Queued():
                self._queue(event)
            case TransferBegun():
                write("UPDATE outgoing SET slot = ? WHERE number = ?", event.slot, event.number)
            case RepairsReserved():
                write("UPDATE outgoing SET repairs = ? WHERE number = ?", event.limit, event.number)
            case Delivered() | GaveUp():
                write("DELETE FROM outgoing WHERE number = ?", event.number)
            case SymbolHeld():
                self._hold(event)
            case IncomingDropped():
                write(
                    "DELETE FROM symbol WHERE peer = ? AND slot = ?", event.peer, event.offer.slot
                )
            case ObjectArrived():
                self._arrive(event)
            case _:
                pass  # Nothing of the other events must survive.

    def inbox(self, after: int = 0) -> list[tuple[int, str, bytes]]:
        """Objects of places beyond `after`: place, peer, payload; the oldest first."""
        return self._database.rows(
            "SELECT place, peer, payload FROM inbox WHERE place > ? ORDER BY place", after
        )

    def take(self, place: int) -> None:
        """Forget an object of the inbox: what it led to is on disk elsewhere."""
        self._database.write("DELETE FROM inbox WHERE place = ?", place)

    def _queue(self, event: Queued) -> None:
        self._database.write("UPDATE counter SET number = ?", event.number + 1)
        self._database.write(
            "INSERT INTO outgoing VALUES (?, ?, ?, ?, ?, ?, 0, NULL)",
            event.number,
            event.peer,
            json.dumps(event.receivers),
            event.payload,
            event.priority,
            event.key,
        )

    def _hold(self, event: SymbolHeld) -> None:
        offer = event.offer
        self._database.write(
            "INSERT OR REPLACE INTO symbol VALUES (?, ?, ?, ?, ?, ?, ?)",
            event.peer,
            offer.slot,
            offer.number,
            offer.name,
            offer.size,
            event.index,
            event.data,
        )

    def _arrive(self, event: ObjectArrived) -> None:
        write, peer = self._database.write, event.peer
        write("INSERT INTO inbox (peer, payload) VALUES (?, ?)", peer, event.payload)
        write("INSERT INTO arrived (peer, name) VALUES (?, ?)", peer, event.name)
        write(
            "DELETE FROM arrived WHERE peer = ? AND place NOT IN "
            "(SELECT place FROM arrived WHERE peer = ? ORDER BY place DESC LIMIT ?)",
            peer,
            peer,
            ARRIVED_MAX,
        )

    def _outgoing(self) -> tuple[OutRecord, ...]:
        found = self._database.rows(
            "SELECT number, peer, receivers, payload, priority, key, repairs, slot "
            "FROM outgoing ORDER BY number"
        )
        return tuple(
            OutRecord(Queued(number, peer, tuple(json.loads(names)), *rest), repairs, slot)
            for number, peer, names, *rest, repairs, slot in found
        )

    def _incoming(self) -> tuple[InRecord, ...]:
        found = self._database.rows("SELECT * FROM symbol ORDER BY peer, slot, position")
        records = []
        for (peer, slot), rows in groupby(found, key=lambda row: row[:2]):
            held = list(rows)
            _, _, number, name, size, _, data = held[0]
            offer = Offer(slot, number, name, size, len(data))
            records.append(InRecord(peer, offer, tuple((row[5], row[6]) for row in held)))
        return tuple(records)
