"""A link with keys: what is forged, repeated, changed or weaker is refused, and objects arrive."""

from dataclasses import replace
from typing import Any

import pytest

from ternmesh.link.events import Delivered, FrameArrived, IncomingDropped, ObjectArrived, SymbolHeld
from ternmesh.link.messages import Offer, Status, Symbol, object_name, write_message
from ternmesh.link.sender import LANE_SLOTS
from ternmesh.security.enrolment import REQUEST
from ternmesh.security.keyed_sealing import FRAME_MIN, NEIGHBOUR, OPENING_SIZE, SYNC_OVERHEAD
from ternmesh.security.sealing import SecurityChanged
from ternmesh.wire.frame import BROADCAST, UNASSIGNED, Header, seal_open
from tests.ternmesh.link.keyed_air import ALL, HOST, NODE, SETTINGS, Air
from tests.ternmesh.link.wired_air import content

OBJECT = content(1500)
MOVING = (SymbolHeld, ObjectArrived, Delivered, IncomingDropped, FrameArrived)


def begun(symbols: int = 4) -> Air:
    """The host sends `OBJECT`, and the node has its offer and some symbols."""
    air = Air()
    air.meet()
    air.ends[HOST].send(NODE, OBJECT)
    while len([e for e in air.events[NODE] if isinstance(e, SymbolHeld)]) < symbols:
        air.send(HOST)
    return air


def test_no_object_travels_in_the_context_that_is_open_to_every_role() -> None:  # R3-5
    air = Air()
    air.meet()
    offer = Offer(0, 7, object_name(7, OBJECT), len(OBJECT), 100)
    for address, reasons in ((UNASSIGNED, ["link"]), (NEIGHBOUR, ["link"])):
        air.hear(
            HOST, NODE, air.sealings[NODE].seal(HOST, address, 9000 + address, write_message(offer))
        )
        assert air.refused(HOST) == reasons


def finish(air: Air) -> None:
    """The object arrives once, whole, and its sender knows."""
    air.run()
    assert air.arrived(NODE) == [OBJECT]
    assert [e for e in air.events[HOST] if isinstance(e, Delivered)]


def moved(air: Air, name: str) -> list[Any]:
    return [event for event in air.events[name] if isinstance(event, MOVING)]


def forged(body: bytes, suite: int = 0, address: int = NEIGHBOUR, counter: int = 5) -> bytes:
    """A frame of somebody without keys."""
    return seal_open(Header(address, counter, suite), body)


def test_objects_travel_both_ways_and_to_all_and_nothing_of_them_shows() -> None:
    air = Air((HOST, "theo", "nora"))
    for sender, peer in ((HOST, "theo"), ("theo", HOST)):
        air.ends[sender].send(peer, OBJECT)
    air.ends[HOST].send(ALL, OBJECT[::-1], receivers=("theo", "nora"))
    air.run()
    assert air.arrived("theo") in ([OBJECT, OBJECT[::-1]], [OBJECT[::-1], OBJECT])
    assert (air.arrived("nora"), air.arrived(HOST)) == ([OBJECT[::-1]], [OBJECT])
    assert air.frames() == air.frames(suite=2)
    on_air = b"".join(air.frames())
    assert not any(OBJECT[at : at + 8] in on_air for at in range(0, len(OBJECT), 40))
    assert set(air.frames(address=BROADCAST)) < set(air.frames())


def test_what_seals_cost_at_a_first_contact_and_at_each_start() -> None:
    air = Air()
    air.run(60.0)
    # An opening, a question, an answer, the broadcast key.
    sizes = [len(frame) for frame in air.frames(address=UNASSIGNED)]
    assert sizes == [OPENING_SIZE, 73, 73, FRAME_MIN]
    assert air.frames(address=UNASSIGNED) == air.frames()
    for name, sizes in ((NODE, [73]), (HOST, [FRAME_MIN])):
        air.ends[NODE].send(HOST, OBJECT)
        air.run(air.now + 60.0)
        air.sent.clear()
        air.ends[name] = air.boot(name)
        air.run(air.now + 60.0)
        assert [len(frame) for frame in air.frames()] == sizes


def test_who_is_not_enrolled_is_refused_until_he_is() -> None:  # R8.2-35
    air = Air(unknown=(NODE,))
    air.ends[HOST].send(NODE, OBJECT)
    air.run(60.0)
    assert set(air.refused(HOST)) == {"unknown key"}
    assert {sender for sender, _, _ in air.sent} == {NODE}, "nothing is sent without a key"
    air.rosters[HOST].enrol(air.identities[NODE].public)
    finish(air)


def test_a_member_cannot_use_the_broadcast_key_on_what_is_between_two() -> None:  # R8.2-4
    """Any node holds that key: it must not reach the slots of another's transfers."""
    air = begun()
    held = moved(air, NODE)
    hub = air.sealings[HOST]
    for counter, body in enumerate(
        (
            write_message(Symbol(held[0].offer.slot, 3, content(held[0].offer.symbol_bytes), True)),
            write_message(Offer(LANE_SLOTS - 1, 9, b"evil", 99, 33)),
            write_message(Status(object_name(0, OBJECT), ())),
        ),
        1 << 20,
    ):
        air.hear(NODE, HOST, hub.seal(ALL, BROADCAST, counter, body))
    assert air.refused(NODE) == ["link"] * 3
    assert moved(air, NODE) == held
    finish(air)


PASSED = forged(b"\x02 a share", suite=1, address=7), forged(b"\x01 a hello", suite=1, address=0)
STATUS = write_message(Status(b"name", ()))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (forged(b"\x02 a share", address=7), "suite"),
        (forged(STATUS, address=UNASSIGNED), "suite"),
        (forged(b"\x02 a share", suite=3), "suite"),
        (forged(bytes((REQUEST,)) + bytes(100), address=UNASSIGNED), "suite"),
        (b"\x20" * 12, "length"),
    ],
)
def test_what_is_not_the_links_passes_and_what_is_weaker_does_not(  # R3-12, R8.2-5
    frame: bytes, reason: str
) -> None:
    air = Air()
    air.meet()
    air.hear(HOST, NODE, frame)
    air.hear(HOST, NODE, air.sealings[NODE].seal(HOST, NEIGHBOUR, 1 << 20, b"\x02 a share"))
    assert air.refused(HOST) == [reason, "kind"]
    air.ends[NODE].send_frames(HOST, PASSED)
    air.run(air.now + 10.0)
    assert moved(air, HOST) == [FrameArrived(NODE, frame) for frame in PASSED]


def test_windows_wait_while_nothing_comes_of_them() -> None:  # R8.2-34
    air = begun()
    air.events[NODE].clear()
    air.send(HOST)
    assert [type(e) for e in air.events[NODE]] == [SymbolHeld]
    air.run()
    kinds = [type(e) for e in air.events[NODE]]
    assert SecurityChanged in kinds[kinds.index(ObjectArrived) :], "before the receipt"


def test_frames_must_hold_a_broadcast_key() -> None:  # R8.2-33
    assert FRAME_MIN == SYNC_OVERHEAD + 29 == 100
    short = replace(SETTINGS, mtu=FRAME_MIN - 1)
    with pytest.raises(ValueError, match="at least 100"):
        Air(settings=short)
    air = Air((HOST, NODE), settings=replace(SETTINGS, mtu=FRAME_MIN))
    air.ends[HOST].send(ALL, OBJECT, receivers=(NODE,))
    finish(air)
    Air(open_ends=(HOST, NODE), settings=short)
