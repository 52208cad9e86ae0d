from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.link.events import (
    Delivered,
    FrameArrived,
    GaveUp,
    IncomingDropped,
    InRecord,
    LinkCountersReserved,
    LinkRefused,
    LinkState,
    ObjectArrived,
    OutRecord,
    Queued,
    RepairsReserved,
    SymbolHeld,
    TransferBegun,
)
from ternmesh.link.link import Link
from ternmesh.link.messages import Offer, Symbol, is_link, read_message
from ternmesh.link.settings import LinkSettings
from ternmesh.wire.frame import open_seal
from ternmesh_store.link_store import LinkStore
from ternmesh_store.state_file import StateFile

ARRIVED_MAX = 64

EMPTY = LinkState()
FIRST = Queued(0, "host", ("host",), b"payload", 1)
SECOND = Queued(1, "all", ("n1", "n ü"), b"\0" * 5000, -2)
OFFER = Offer(3, 70, b"name", 1000, 4)
OTHER = Offer(4, 71, b"eman", 90, 3)
NEXT = Offer(3, 86, b"next", 500, 5)
HELD = SymbolHeld("n1", OFFER, 500, b"late")
ARRIVED = ObjectArrived("n1", b"name", b"whole")
QUEUED_FIRST = replace(EMPTY, number=1, outgoing=(OutRecord(FIRST),))
QUEUED_BOTH = replace(EMPTY, number=2, outgoing=(OutRecord(FIRST), OutRecord(SECOND)))

# What was before, the event, and the state that must be found after it.
CASES: dict[str, Any] = {
    "counters": ([], LinkCountersReserved(4096), replace(EMPTY, counter=4096)),
    "queued": ([], FIRST, QUEUED_FIRST),
    "queued for several": ([FIRST], SECOND, QUEUED_BOTH),
    "begun": (
        [FIRST, SECOND],
        TransferBegun(1, 15),
        replace(QUEUED_BOTH, outgoing=(OutRecord(FIRST), OutRecord(SECOND, 0, 15))),
    ),
    "repairs": (
        [FIRST, SECOND, TransferBegun(1, 8)],
        RepairsReserved(1, 64),
        replace(QUEUED_BOTH, outgoing=(OutRecord(FIRST), OutRecord(SECOND, 64, 8))),
    ),
    "delivered": (
        [FIRST, SECOND],
        Delivered(0, ("host",)),
        replace(QUEUED_BOTH, outgoing=(OutRecord(SECOND),)),
    ),
    "given up": ([FIRST, SECOND], GaveUp(1, ("n1",), "no answer"), replace(QUEUED_FIRST, number=2)),
    "held": ([], HELD, replace(EMPTY, incoming=(InRecord("n1", OFFER, ((500, b"late"),)),))),
    "held in the order of their indexes": (
        [HELD],
        SymbolHeld("n1", OFFER, 7, b"soon"),
        replace(EMPTY, incoming=(InRecord("n1", OFFER, ((7, b"soon"), (500, b"late"))),)),
    ),
    "held in another slot": (
        [HELD],
        SymbolHeld("n1", OTHER, 0, b"two"),
        replace(
            EMPTY,
            incoming=(
                InRecord("n1", OFFER, ((500, b"late"),)),
                InRecord("n1", OTHER, ((0, b"two"),)),
            ),
        ),
    ),
    "held from another peer": (
        [HELD],
        SymbolHeld("host", OFFER, 500, b"mine"),
        replace(
            EMPTY,
            incoming=(
                InRecord("host", OFFER, ((500, b"mine"),)),
                InRecord("n1", OFFER, ((500, b"late"),)),
            ),
        ),
    ),
    "dropped": (
        [HELD, SymbolHeld("n1", OTHER, 0, b"two"), SymbolHeld("host", OFFER, 500, b"mine")],
        IncomingDropped("n1", OFFER),
        replace(
            EMPTY,
            incoming=(
                InRecord("host", OFFER, ((500, b"mine"),)),
                InRecord("n1", OTHER, ((0, b"two"),)),
            ),
        ),
    ),
    "the next object of a slot": (
        [HELD, IncomingDropped("n1", OFFER)],
        SymbolHeld("n1", NEXT, 500, b"other"),
        replace(EMPTY, incoming=(InRecord("n1", NEXT, ((500, b"other"),)),)),
    ),
    "arrived": ([], ARRIVED, replace(EMPTY, arrived={"n1": (b"name",)})),
    "arrived from another peer": (
        [ARRIVED, ObjectArrived("n1", b"aaaa", b"second")],
        ObjectArrived("host", b"name", b"third"),
        replace(EMPTY, arrived={"n1": (b"name", b"aaaa"), "host": (b"name",)}),
    ),
}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "state"


def opened(path: Path) -> LinkStore:
    file = StateFile(path)
    file.open()
    return LinkStore(file)


def load(path: Path) -> LinkState:
    store = opened(path)
    state = store.load()
    store._database.close()
    return state


@pytest.mark.parametrize("name", CASES)
def test_each_event_survives_a_kill_after_its_commit_only(name, path, in_killed_process):
    before, event, after = CASES[name]

    def work(commit: bool) -> None:
        store = opened(path)
        store.load()
        if not commit:
            for earlier in before:
                store.record(earlier)
            store.commit()
        store.record(event)
        if commit:
            store.commit()

    in_killed_process(lambda: work(commit=False))
    assert load(path) != after
    in_killed_process(lambda: work(commit=True))
    assert load(path) == after


def test_events_of_one_commit_are_one_transaction(path, in_killed_process):
    def work() -> None:
        store = opened(path)
        for event in (FIRST, LinkCountersReserved(4096), HELD, ARRIVED):
            store.record(event)

    in_killed_process(work)
    store = opened(path)
    assert store.load() == EMPTY
    assert store.inbox() == []
    store._database.close()


def test_what_needs_no_disk_is_not_written(path):
    store = opened(path)
    for event in (FrameArrived("n1", b"frame"), LinkRefused("n1", "seal")):
        store.record(event)
        assert not store._database.changed
    store._database.close()


def test_the_inbox_keeps_objects_in_order_until_they_are_taken(path, in_killed_process):
    def arrive() -> None:
        store = opened(path)
        for number in range(12):
            store.record(ObjectArrived(f"n{number % 2}", b"%04d" % number, b"object %d" % number))
        store.commit()

    def take(commit: bool) -> None:
        store = opened(path)
        for place, _, _ in store.inbox()[3:5]:
            store.take(place)
        if commit:
            store.commit()

    def inbox() -> list[tuple[str, bytes]]:
        store = opened(path)
        found = [(peer, payload) for _, peer, payload in store.inbox()]
        store._database.close()
        return found

    wanted = [(f"n{number % 2}", b"object %d" % number) for number in range(12)]
    in_killed_process(arrive)
    assert inbox() == wanted
    in_killed_process(lambda: take(commit=False))
    assert inbox() == wanted
    in_killed_process(lambda: take(commit=True))
    assert inbox() == wanted[:3] + wanted[5:]


def test_the_last_names_of_each_peer_are_remembered(path):
    store = opened(path)
    store.record(ObjectArrived("quiet", b"once", b"payload"))
    names = [b"%04d" % number for number in range(3 * ARRIVED_MAX)]
    for name in names:
        store.record(ObjectArrived("busy", name, b"payload"))
        store.record(ObjectArrived("other", name[::-1], b"payload"))
    store.commit()
    store._database.close()
    arrived = load(path).arrived
    assert arrived["quiet"] == (b"once",)
    assert arrived["busy"] == tuple(names[-ARRIVED_MAX:])
    assert arrived["other"] == tuple(name[::-1] for name in names[-ARRIVED_MAX:])


SETTINGS = LinkSettings(mtu=51, idle_s=2.0)
PEERS = {"host": "node", "node": "host"}
PAYLOAD = np.random.default_rng(0).bytes(1500)


class Ends:
    """Two links over their files; frames arrive at once, or are lost."""

    def __init__(self, folder: Path, now: float) -> None:
        self.now = now
        self.stores = {name: opened(folder / name) for name in PEERS}
        self.links = {name: self._link(name) for name in PEERS}

    def _link(self, name: str) -> Link:
        link = Link(SETTINGS, self.stores[name].load(), np.random.default_rng(0))
        link.start(self.now)
        return link

    def frames(self, lost: int) -> Iterator[bytes]:
        """What is sent until there is nothing to do; every frame with a multiple of `lost` is."""
        count = 0
        while True:
            self._settle()
            name = next((name for name in PEERS if self.links[name].has_frames), None)
            if name is None:
                times = [t for link in self.links.values() if (t := link.next_timeout())]
                if not times:
                    return
                self.now = min(times)
                for link in self.links.values():
                    link.handle_timeout(self.now)
                continue
            [(peer, frame)] = self.links[name].frames_to_send(self.now, 1)
            self.now += 0.1
            count += 1
            if count % lost:
                self.links[peer].receive_frame(name, frame, self.now)
            yield frame

    def _settle(self) -> None:
        for name, link in self.links.items():
            while (event := link.next_event()) is not None:
                self.stores[name].record(event)
            self.stores[name].commit()

    def close(self) -> None:
        for store in self.stores.values():
            store._database.close()


def symbols(frames: list[bytes]) -> list[int]:
    messages = [read_message(body) for frame in frames if is_link(body := open_seal(frame)[1])]
    return [message.index for message in messages if isinstance(message, Symbol)]


@pytest.mark.parametrize("killed_after", [1, 2, 20, 45, 46, 47, 50, 52, 55, 60])
def test_a_transfer_goes_on_where_it_stopped(killed_after, tmp_path):
    first = Ends(tmp_path, 0.0)
    first.links["host"].send("node", PAYLOAD)
    sent = first.frames(lost=4)
    before = symbols([next(sent) for _ in range(killed_after)])
    first.close()
    held = [index for r in load(tmp_path / "node").incoming for index, _ in r.symbols]
    second = Ends(tmp_path, first.now + 5.0)
    after = symbols(list(second.frames(lost=5)))
    assert [payload for _, _, payload in second.stores["node"].inbox()] == [PAYLOAD]
    assert second.stores["host"].load().outgoing == ()
    assert second.stores["node"].load().incoming == ()
    second.close()
    count = -(-len(PAYLOAD) // 34)
    assert not set(held) & set(after)
    assert not {index for index in before if index >= count} & set(after)
    if held:
        assert min(after, default=count) >= count, "repair symbols only"
        assert len(after) <= 1.5 * (count - len(held)) + 2


def test_after_the_end_nothing_is_said(tmp_path):
    first = Ends(tmp_path, 0.0)
    first.links["host"].send("node", PAYLOAD)
    assert len(list(first.frames(lost=3))) > 45
    first.close()
    second = Ends(tmp_path, 100.0)
    assert list(second.frames(lost=3)) == []
    state = second.stores["node"].load()
    assert [len(names) for names in state.arrived.values()] == [1]
    second.close()
