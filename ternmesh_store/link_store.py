"""What a link stores: outgoing and incoming objects, and those that wait in the inbox."""

import json
from itertools import groupby

from ternmesh.link import events
from ternmesh.link.messages import Offer
from ternmesh.security.sealing import CountersReserved
from ternmesh_store.store import HOP, Store


class LinkStore(Store):
    """The tables of one link. `load` comes before `record`."""

    def load(self) -> events.LinkState:
        """The state of the last commit."""
        numbers = self._database.rows("SELECT next FROM link_number")
        arrived: dict[str, tuple[bytes, ...]] = {}
        for peer, name in self._database.rows("SELECT peer, name FROM link_arrived ORDER BY place"):
            arrived[peer] = (*arrived.get(peer, ()), name)
        return events.LinkState(
            counter=self._read_counter(HOP),
            number=numbers[0][0] if numbers else 0,
            outgoing=self._outgoing(),
            incoming=self._incoming(),
            arrived=arrived,
        )

    def record(self, event: events.LinkEvent) -> None:
        """Write what must survive of an event: of others nothing. `commit` makes it durable."""
        update, write = self._database.update, self._database.write
        match event:
            case CountersReserved():
                self._reserve_counters(HOP, event.limit)
            case events.Queued():
                self._queue(event)
            case events.TransferBegun():
                update("link_outgoing", {"slot": event.slot}, "number = ?", event.number)
            case events.RepairsReserved():
                update("link_outgoing", {"repairs": event.limit}, "number = ?", event.number)
            case events.Delivered() | events.GaveUp():
                write("DELETE FROM link_outgoing WHERE number = ?", event.number)
            case events.SymbolHeld():
                self._hold(event)
            case events.IncomingDropped():
                symbols = "DELETE FROM link_symbol WHERE peer = ? AND slot = ?"
                write(symbols, event.peer, event.offer.slot)
            case events.ObjectArrived():
                self._arrive(event)

    def inbox(self, after: int = 0) -> list[tuple[int, str, bytes]]:
        """(place, peer, payload) of the objects at places after `after`, oldest first."""
        return self._database.rows(
            "SELECT place, peer, payload FROM link_inbox WHERE place > ? ORDER BY place", after
        )

    def take(self, place: int) -> None:
        self._database.write("DELETE FROM link_inbox WHERE place = ?", place)

    def _queue(self, event: events.Queued) -> None:
        self._database.clear("link_number")
        self._database.insert("link_number", event.number + 1)
        ends = (event.peer, json.dumps(event.receivers))
        self._database.insert("link_outgoing", event.number, *ends, event.payload, 0, None)

    def _hold(self, event: events.SymbolHeld) -> None:
        offer = event.offer
        row = (event.peer, offer.slot, offer.number, offer.name, offer.size)
        self._database.insert("link_symbol", *row, event.index, event.data, replace=True)

    def _arrive(self, event: events.ObjectArrived) -> None:
        write = self._database.write
        peer = event.peer
        write("INSERT INTO link_inbox (peer, payload) VALUES (?, ?)", peer, event.payload)
        write("INSERT INTO link_arrived (peer, name) VALUES (?, ?)", peer, event.name)
        write(
            "DELETE FROM link_arrived WHERE peer = ? AND place NOT IN "
            "(SELECT place FROM link_arrived WHERE peer = ? ORDER BY place DESC LIMIT ?)",
            peer,
            peer,
            events.ARRIVED_MAX,
        )

    def _outgoing(self) -> tuple[events.OutRecord, ...]:
        rows = self._database.rows(
            "SELECT number, peer, receivers, payload, repairs, slot "
            "FROM link_outgoing ORDER BY number"
        )
        return tuple(
            events.OutRecord(
                events.Queued(number, peer, tuple(json.loads(names)), payload), repairs, slot
            )
            for number, peer, names, payload, repairs, slot in rows
        )

    def _incoming(self) -> tuple[events.InRecord, ...]:
        rows = self._database.rows(
            "SELECT peer, slot, number, name, size, position, data FROM link_symbol "
            "ORDER BY peer, slot, position"
        )
        records = []
        for (peer, slot), held_rows in groupby(rows, key=lambda row: row[:2]):
            held = list(held_rows)
            _, _, number, name, size, _, data = held[0]
            offer = Offer(slot, number, name, size, len(data))
            symbols = tuple((position, data) for *_, position, data in held)
            records.append(events.InRecord(peer, offer, symbols))
        return tuple(records)
