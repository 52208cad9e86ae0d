"""Hostile or damaged frames change nothing, and memory stays bounded."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.link.erasure_code import GENERATION_MAX, SOURCES_MAX, Layout, encode_symbols
from ternmesh.link.events import (
    ARRIVED_MAX,
    GaveUp,
    IncomingDropped,
    LinkEvent,
    LinkRefused,
    LinkState,
)
from ternmesh.link.link import Link
from ternmesh.link.messages import SLOTS, Message, Offer, Question, Status, Symbol, object_name
from ternmesh.link.receiver import PEERS_MAX
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED, Header, seal_open
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


def test_offers_of_many_peers_are_bounded() -> None:
    air = Air()
    for peer in many(2 * PEERS_MAX):
        air.node.receive_frame(peer, sealed(Offer(0, 0, b"name", 20, 10)), 0.0)
    assert len(air.node._in._incoming) == PEERS_MAX
    assert len(list(drain(air.node))) == PEERS_MAX  # of as many it forgot the symbols
    air.host.send(NODE, content(100))
    air.run(until=100.0)
    assert air.got(NODE) == [content(100)]


def test_memory_for_objects_is_bounded_with_their_coefficients() -> None:  # R8.2-18
    air = Air()
    for peer in many(40):
        air.node.receive_frame(peer, sealed(Offer(0, 0, b"name", SOURCES_MAX, 1)), 0.0)
    held = air.node._in._incoming
    most = sum(SOURCES_MAX * (1 + GENERATION_MAX) for _ in held)
    assert 0 < most <= SETTINGS.incoming_bytes_max


def test_what_waited_longest_makes_room() -> None:  # R8.2-19
    settings = replace(SETTINGS, incoming_bytes_max=2 * 20 * (10 + GENERATION_MAX))
    air = Air(settings=settings)
    first, second, third = (Offer(0, n, b"name", 200, 10) for n in range(3))
    for peer, offer in (("a", first), ("b", second)):
        air.node.receive_frame(peer, sealed(offer), 0.0)
    air.node.receive_frame("a", sealed(Symbol(0, 3, bytes(10), False)), 1.0)
    air.node.receive_frame("c", sealed(third), 2.0)
    air.take()
    assert air.of(NODE, IncomingDropped) == [IncomingDropped("b", second)]
    air.node.receive_frame("d", sealed(replace(third, size=411)), 3.0)
    air.take()
    assert air.events[NODE][-1] == LinkRefused("d", "link")
    assert len(air.of(NODE, IncomingDropped)) == 1


def test_offers_do_not_take_the_room_of_what_another_has_sent() -> None:  # R8.2-19
    object_bytes = 20 * (10 + GENERATION_MAX)
    air = Air(settings=replace(SETTINGS, incoming_bytes_max=3 * object_bytes))
    mine = Offer(0, 0, b"mine", 200, 10)
    air.node.receive_frame("a", sealed(mine), 0.0)
    air.node.receive_frame("a", sealed(Symbol(0, 3, bytes(10), False)), 0.0)
    for slot in range(SLOTS):  # one after the other, and one that would be larger than all
        offer = Offer(slot, slot, bytes((slot, 0, 0, 0)), 200, 10)
        air.node.receive_frame("b", sealed(offer), 1.0 + slot)
    air.node.receive_frame("c", sealed(Offer(0, 0, b"huge", 600, 10)), 30.0)
    air.take()
    assert {event.peer for event in air.of(NODE, IncomingDropped)} == {"b"}
    assert air.events[NODE][-1] == LinkRefused("c", "link")
    assert ("a", 0) in air.node._in._incoming
    air.node.receive_frame("a", sealed(Offer(0, 1, b"more", 600, 10)), 30.0)
    air.take()
    assert air.events[NODE][-1] == LinkRefused("a", "link")
    assert air.node._in._incoming["a", 0].offer == mine  # what is refused has changed nothing
    late = SETTINGS.make_way_s + 30.0  # nothing has moved: then the room is theirs
    air.node.receive_frame("c", sealed(Offer(0, 0, b"huge", 600, 10)), late)
    assert list(air.node._in._incoming) == [("c", 0)]


def test_early_symbols_are_bounded() -> None:  # R8.2-18
    air = Air(settings=replace(SETTINGS, incoming_bytes_max=100_000))
    for peer in many(2 * PEERS_MAX):
        for index in (0, 1, 2):
            air.node.receive_frame(peer, sealed(Symbol(0, index, b"x", False)), 0.0)
    early = air.node._in._early
    assert len(early) == PEERS_MAX
    assert sum(len(each.symbols) for each in early.values()) * 128 <= 100_000
    for _ in range(5):
        air.node.receive_frame("peer 2047", sealed(Symbol(1, 0, b"x" * 900, False)), 0.0)
    assert len(early["peer 2047", 1].symbols) <= 1


def test_early_symbols_and_objects_share_the_memory() -> None:
    object_bytes = 20 * (10 + GENERATION_MAX)
    air = Air(settings=replace(SETTINGS, incoming_bytes_max=3 * object_bytes))
    air.node.receive_frame("a", sealed(Offer(0, 0, b"mine", 200, 10)), 0.0)
    for index in range(100):
        air.node.receive_frame("b", sealed(Symbol(index % 2, index, bytes(20), False)), 1.0)

    def held() -> int:
        state: Any = air.node._in
        return sum(i.memory_bytes for i in (*state._incoming.values(), *state._early.values()))

    assert 2 * object_bytes < held() <= 3 * object_bytes
    air.node.receive_frame("c", sealed(Offer(0, 0, b"more", 200, 10)), 2.0)
    assert held() <= 3 * object_bytes
    assert set(air.node._in._incoming) == {("a", 0), ("c", 0)}
    assert list(air.node._in._early) == [("b", 1)]  # who claimed most made way


def test_symbols_that_nobody_offered_push_out_no_object() -> None:  # R8.2-18
    object_bytes = 20 * (10 + GENERATION_MAX)
    air = Air(settings=replace(SETTINGS, incoming_bytes_max=4 * object_bytes))
    air.node.receive_frame("a", sealed(Offer(0, 0, b"mine", 200, 10)), 0.0)
    for slot, at in ((3, 3.0), (2, 2.0)):  # the younger one first
        for index in range(10):
            air.node.receive_frame("a", sealed(Symbol(slot, index, bytes(20), False)), at)
    for slot, early in ((4, {("a", 2), ("a", 3)}), (5, {("a", 3)}), (6, set())):
        air.node.receive_frame("a", sealed(Offer(slot, slot, b"more", 200, 10)), 4.0)
        assert set(air.node._in._early) == early
    assert ("a", 0) in air.node._in._incoming


def test_an_offer_without_an_end_stops_nothing() -> None:
    air = Air()
    for number in range(1100):  # the node hears no symbol, and its host no answer
        air.node.receive_frame(HOST, sealed(Offer(0, 0, b"name", 200, 10)), 100.0 * number)
        air.node.handle_timeout(100.0 * number + 50.0)
    assert air.node._in._incoming


def test_answers_and_names_are_bounded() -> None:
    air = Air()
    for peer in many(2 * PEERS_MAX):
        payload = peer.encode()
        offer = Offer(0, 0, object_name(0, payload), len(payload), len(payload))
        air.node.receive_frame(peer, sealed(offer), 0.0)
        air.node.receive_frame(peer, sealed(Symbol(0, 0, payload, True)), 0.0)
        air.node.handle_timeout(0.0)
    state = air.node._in
    assert len(state._answers) == len(state._arrived) == len(state._finished) == PEERS_MAX
    assert len(state._incoming) == 0
    air.take()
    assert len(air.got(NODE)) == 2 * PEERS_MAX


def test_of_each_peer_the_last_names_are_remembered() -> None:  # R8.2-25
    air = Air()
    for seed in range(ARRIVED_MAX + 40):
        air.host.send(NODE, content(8, seed))
    air.run()
    assert [len(names) for names in air.node._in._arrived.values()] == [ARRIVED_MAX]


def test_one_symbol_of_a_code_serves_a_transfer_from_anywhere() -> None:  # R8.1-1
    """A gateway may add symbols that it made itself."""
    air, payload = Air(), content(4 * ROOM)
    air.host.send(NODE, payload)
    [offer] = [each.message for each in air.send(HOST)]
    assert isinstance(offer, Offer)
    layout = Layout(offer.size, offer.symbol_bytes)
    for index, data in zip(
        (90, 91), encode_symbols(layout, offer.name, payload, (90, 91)), strict=True
    ):
        air.node.receive_frame(HOST, sealed(Symbol(offer.slot, index, data, False)), air.now)
    air.send(HOST, room=2)
    air.take()
    assert air.got(NODE) == [payload]


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
