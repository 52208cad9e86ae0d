from dataclasses import replace
from typing import Any

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
from ternmesh.link.messages import Offer
from ternmesh_store.link_store import LinkStore

ARRIVED_MAX = 64

EMPTY = LinkState()
FIRST = Queued(0, "host", ("host",), b"payload")
SECOND = Queued(1, "all", ("n1", "n ü"), b"\0" * 5000)
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


@pytest.mark.parametrize("name", CASES)
def test_each_event_is_kept_from_its_commit_on(name, check_kept):
    check_kept(LinkStore, LinkStore.load, LinkStore.load, CASES[name])


def test_what_needs_no_disk_is_not_written(reopen):
    store = LinkStore(reopen())
    for event in (FrameArrived("n1", b"frame"), LinkRefused("n1", "seal")):
        store.record(event)
        assert not store.changed


def test_the_inbox_keeps_objects_in_order_until_they_are_taken(reopen):
    def inbox() -> list[tuple[str, bytes]]:
        return [(peer, payload) for _, peer, payload in LinkStore(reopen()).inbox()]

    expected = [(f"n{number % 2}", b"object %d" % number) for number in range(12)]
    store = LinkStore(reopen())
    for number, (peer, payload) in enumerate(expected):
        store.record(ObjectArrived(peer, b"%04d" % number, payload))
    store.commit()
    for commit in (False, True):
        store = LinkStore(reopen())
        for place, _, _ in store.inbox()[3:5]:
            store.take(place)
        if commit:
            store.commit()
        assert inbox() == (expected[:3] + expected[5:] if commit else expected)


def test_the_last_names_of_each_peer_are_remembered(reopen):
    store = LinkStore(reopen())
    store.record(ObjectArrived("quiet", b"once", b"payload"))
    names = [b"%04d" % number for number in range(3 * ARRIVED_MAX)]
    for name in names:
        store.record(ObjectArrived("busy", name, b"payload"))
        store.record(ObjectArrived("other", name[::-1], b"payload"))
    arrived = store.load().arrived
    assert arrived["quiet"] == (b"once",)
    assert arrived["busy"] == tuple(names[-ARRIVED_MAX:])
    assert arrived["other"] == tuple(name[::-1] for name in names[-ARRIVED_MAX:])
