"""Hostile or damaged frames change nothing, and memory stays bounded."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ternmesh.link import receiver
from ternmesh.link.erasure_code import GENERATION_MAX, SOURCES_MAX
from ternmesh.link.events import (
    ARRIVED_MAX,
    GaveUp,
    IncomingDropped,
    LinkEvent,
    LinkRefused,
    LinkState,
    ObjectArrived,
)
from ternmesh.link.link import Link
from ternmesh.link.messages import (
    SLOTS,
    Message,
    Offer,
    Question,
    Status,
    Symbol,
    object_name,
    read_message,
)
from ternmesh.link.receiver import PEERS_MAX
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED, Header, open_seal, seal_open
from tests.ternmesh.link.wired_air import (
    HOST,
    NODE,
    ROOM,
    SETTINGS,
    Air,
    Sent,
    content,
    drain,
    lose,
    said,
    sealed,
)

OFFER = Offer(2, 7, b"name", 600, 60)
HOSTILE = {
    "nothing": b"",
    "noise": bytes(range(60)),
    "no body": bytes(14),
    "a broken seal": sealed(OFFER)[:-1] + b"\0",
    "another version": b"\x40" + sealed(OFFER)[1:],
    "a body that ends early": seal_open(Header(1, 0), b"\x06\x00"),
    "an object too large": sealed(replace(OFFER, size=(1 << 22) + 1)),
    "too many symbols": sealed(replace(OFFER, size=40_000, symbol_bytes=1)),
    "symbols too large": sealed(replace(OFFER, symbol_bytes=5000)),
    "symbols that fit a body without their head": sealed(replace(OFFER, symbol_bytes=4080)),
    "no neighbour's context": sealed(OFFER, 2),
    "the context of enrolment": sealed(OFFER, UNASSIGNED),
    "a context downward": sealed(OFFER, DOWN | 1),
    "a status for all": sealed(Status(b"name", (1,)), BROADCAST),
    "a question for all": sealed(Question(2), BROADCAST),
    "an offer for all in a slot of one": sealed(OFFER, BROADCAST),
}
UNHEARD = {
    "a receipt of nobody": Status(object_name(0, content(6 * ROOM)), ()),
    "needs of nobody": Status(object_name(0, content(6 * ROOM)), (2,)),
    "a question of nobody": Question(0),
}


def transfer_with(frame: bytes, sender: str, victim: str) -> tuple[list[Sent], list[LinkEvent]]:
    """A transfer that one frame disturbs: what was sent, and the events of the frame."""
    air, events = Air(losses=[lose(Symbol, index=1)]), []
    air.host.send(NODE, content(6 * ROOM))
    air.send(HOST, room=4)
    if frame or sender:
        air.ends[victim].receive_frame(sender, frame, air.now)
        events = list(drain(air.ends[victim]))
    air.run()
    assert air.got(NODE) == [content(6 * ROOM)]
    return air.sent, events


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize(("sender", "victim"), [(HOST, NODE), (NODE, HOST), ("stranger", NODE)])
def test_what_is_wrong_changes_nothing(frame: bytes, sender: str, victim: str) -> None:  # R8.2-3
    sent, events = transfer_with(frame, sender, victim)
    assert [type(event) for event in events] == [LinkRefused]
    assert sent == transfer_with(b"", "", NODE)[0]


def test_a_symbol_that_does_not_fit_changes_nothing() -> None:  # R8.1-2
    frame = sealed(Symbol(0, 3, b"short", False))
    sent, events = transfer_with(frame, HOST, NODE)
    assert events == [LinkRefused(HOST, "symbol")]
    assert sent == transfer_with(b"", "", NODE)[0]


@pytest.mark.parametrize("message", UNHEARD.values(), ids=list(UNHEARD))
def test_only_receivers_are_heard(message: Message) -> None:
    sent, events = transfer_with(sealed(message), "stranger", HOST)
    assert events == []
    assert sent == transfer_with(b"", "", NODE)[0]


@pytest.mark.parametrize("needs", [(7,), (1, 1), (0, 1)], ids=["symbols", "generations", "none"])
def test_nobody_gets_more_than_there_is(needs: tuple[int, ...]) -> None:
    """Needs that nothing serves would leave a transfer waiting for ever."""
    air = Air()
    air.host.send(NODE, content(6 * ROOM))
    air.send(HOST, room=9)
    air.take()
    status = Status(object_name(0, content(6 * ROOM)), needs)
    air.host.receive_frame(NODE, sealed(status), air.now)
    assert list(drain(air.host)) == [LinkRefused(NODE, "link")]
    assert not air.host.has_frames
    assert air.host.next_timeout() is not None


def test_a_damaged_object_is_refused_and_fetched_again() -> None:  # R8.2-24
    air, payload = Air(), content(3 * ROOM)
    air.host.send(NODE, payload)
    air.send(HOST)
    air.node.receive_frame(HOST, sealed(Symbol(0, 1, bytes(ROOM), False)), air.now)
    air.run()
    assert air.of(NODE, LinkRefused) == [LinkRefused(HOST, "damaged object")]
    assert air.got(NODE) == [payload]


def test_early_symbols_of_another_size_do_no_harm() -> None:
    air = Air(losses=[lose(Offer)])
    air.node.receive_frame(HOST, sealed(Symbol(0, 2, b"short", False)), 0.0)
    air.node.receive_frame(HOST, sealed(Symbol(0, 9, b"other", False)), 0.0)
    air.host.send(NODE, content(4 * ROOM))
    frames = air.run()
    assert said(frames)[5:] == ["question", "offer", "needs [1]", "4!", "receipt"]
    assert air.of(NODE, LinkRefused) == []


def many(count: int) -> Iterator[str]:
    return (f"peer {number}" for number in range(count))


OBJECT_BYTES = 20 * (10 + GENERATION_MAX)  # of memory, for an object of 20 symbols of 10 bytes


def offered(number: int, name: bytes = b"name", slot: int = 0, size: int = 200) -> Offer:
    return Offer(slot, number, name, size, 10)


def hears(air: Air, peer: str, message: Message, now: float = 0.0) -> list[LinkEvent]:
    """The events of a message at the node."""
    air.node.receive_frame(peer, sealed(message), now)
    return list(drain(air.node))


def with_memory(objects: int) -> Air:
    return Air(settings=replace(SETTINGS, incoming_bytes_max=objects * OBJECT_BYTES))


def test_offers_of_many_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "PEERS_MAX", 64)
    air = Air()
    dropped = [event for peer in many(128) for event in hears(air, peer, offered(0))]
    assert [type(event) for event in dropped] == [IncomingDropped] * 64
    air.host.send(NODE, content(100))
    air.run(until=100.0)
    assert air.got(NODE) == [content(100)]


def test_memory_for_objects_is_bounded_with_their_coefficients() -> None:  # R8.2-18
    air, large = Air(), Offer(0, 0, b"name", SOURCES_MAX, 1)
    events = [event for peer in many(40) for event in hears(air, peer, large)]
    held = 40 - len(events)
    assert 0 < held * SOURCES_MAX * (1 + GENERATION_MAX) <= SETTINGS.incoming_bytes_max


def test_what_waited_longest_makes_room() -> None:  # R8.2-19
    air = with_memory(2)
    for number, peer in enumerate(("a", "b")):
        assert hears(air, peer, offered(number)) == []
    hears(air, "a", Symbol(0, 3, bytes(10), False), 1.0)
    assert hears(air, "c", offered(2), 2.0) == [IncomingDropped("b", offered(1))]
    assert hears(air, "d", offered(2, size=411), 3.0) == [LinkRefused("d", "link")]


def test_offers_do_not_take_the_room_of_what_another_has_sent() -> None:  # R8.2-19
    air, huge = with_memory(3), offered(1, b"huge", size=600)
    hears(air, "a", offered(0))
    hears(air, "a", Symbol(0, 3, bytes(10), False))
    for slot in range(SLOTS):  # one after the other, and one that would be larger than all
        dropped = hears(air, "b", offered(slot, bytes((slot, 0, 0, 0)), slot), 1.0 + slot)
        assert {event.peer for event in dropped if isinstance(event, IncomingDropped)} <= {"b"}
    for peer in ("c", "a"):
        assert hears(air, peer, huge, 30.0) == [LinkRefused(peer, "link")]
    late = SETTINGS.make_way_s + 30.0  # nothing has moved: then the room is theirs
    assert IncomingDropped("a", offered(0)) in hears(air, "c", huge, late)


def early_slots(air: Air) -> set[tuple[str, int]]:
    """The slots of which the node has symbols without their offer: it asks for these."""
    asked = set()
    air.node.handle_timeout(1000.0)
    while list(drain(air.node)) or air.node.has_frames:
        for peer, frame in air.node.frames_to_send(1000.0):
            message = read_message(open_seal(frame)[1])
            if isinstance(message, Question):
                asked.add((peer, message.slot))
    return asked


def test_early_symbols_are_bounded() -> None:  # R8.2-18
    air = Air(settings=replace(SETTINGS, incoming_bytes_max=100_000))
    tracemalloc.start()
    for peer in many(2 * PEERS_MAX):
        for index in range(2):
            air.node.receive_frame(peer, sealed(Symbol(0, index, bytes(900), False)), 0.0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1 << 20  # 100 kB of symbols, and 1,024 slots
    assert len(early_slots(air)) == PEERS_MAX


def test_early_symbols_make_way_for_objects_and_never_the_other_way() -> None:  # R8.2-18
    air = with_memory(4)
    hears(air, "a", offered(0))
    for slot, at in ((3, 3.0), (2, 2.0)):  # the younger one first
        for index in range(20):
            hears(air, "a", Symbol(slot, index, bytes(20), False), at)
    for slot in (4, 5, 6):
        assert hears(air, "a", offered(slot, b"more", slot), 4.0) == []
    assert early_slots(air) == set()
    air = with_memory(2)
    hears(air, "a", offered(0))
    for slot, at in ((3, 3.0), (2, 2.0)):
        hears(air, "b", Symbol(slot, 0, bytes(20), False), at)
    hears(air, "c", offered(0, b"more", size=180), 4.0)
    assert early_slots(air) == {("b", 3)}, "the one that moved longest ago has gone"


def test_answers_and_names_are_bounded() -> None:
    air = Air()
    for peer in many(2 * PEERS_MAX):
        payload = peer.encode()
        offer = Offer(0, 0, object_name(0, payload), len(payload), len(payload))
        air.node.receive_frame(peer, sealed(offer), 0.0)
        air.node.receive_frame(peer, sealed(Symbol(0, 0, payload, True)), 0.0)
        air.node.handle_timeout(0.0)
    air.take()
    assert len(air.got(NODE)) == 2 * PEERS_MAX
    receipts = 0
    while air.node.has_frames:
        receipts += len(air.node.frames_to_send(0.0))
        air.take()
    assert receipts == PEERS_MAX
    for number, kind in ((0, Question), (2 * PEERS_MAX - 1, Status)):  # the first is forgotten
        hears(air, f"peer {number}", Symbol(0, 0, b"x", True))
        air.node.handle_timeout(0.0)
        air.take()
        [(_, frame)] = air.node.frames_to_send(0.0)
        assert isinstance(read_message(open_seal(frame)[1]), kind)


def test_of_each_peer_the_last_names_are_remembered() -> None:  # R8.2-25
    air, count = Air(), ARRIVED_MAX + 40
    for seed in range(count):
        air.host.send(NODE, content(8, seed))
    air.run()
    for seed, is_known in ((40, True), (count - 1, True), (39, False)):
        payload = content(8, seed)
        offer = Offer(seed % 8, seed, object_name(seed, payload), 8, 8)
        air.node.receive_frame(HOST, sealed(offer), air.now + 1000.0)
        air.node.receive_frame(HOST, sealed(Symbol(seed % 8, 0, payload, True)), air.now + 1000.0)
        assert any(isinstance(event, ObjectArrived) for event in drain(air.node)) is not is_known


def test_a_sender_that_was_kept_silent_itself_does_not_give_up() -> None:
    """An hour without airtime is no silence of the receiver: questions must have left first."""
    settings = replace(SETTINGS, give_up_s=3600.0)
    end = Link(settings, LinkState(), np.random.default_rng(0))
    end.start(0.0)
    end.send(NODE, b"x" * 100)
    found, now = [], 0.0
    for _ in range(5):
        while (event := end.next_event()) is not None:
            found.append((now, event))
        end.frames_to_send(now)
        now += 4000.0
        end.handle_timeout(now)
    while (event := end.next_event()) is not None:
        found.append((now, event))
    gave_up = [at for at, event in found if isinstance(event, GaveUp)]
    assert gave_up == [4 * 4000.0]
