"""Restarts, and who is asked again, how often, and until when."""

from dataclasses import replace
from itertools import pairwise

from ternmesh.link.events import Delivered, GaveUp, IncomingDropped
from ternmesh.link.messages import Offer, Status, Symbol, object_name
from ternmesh.link.receiver import SILENCES_MAX
from tests.ternmesh.link.wired_air import (
    HOST,
    IDLE_S,
    NODE,
    ROOM,
    SETTINGS,
    Air,
    content,
    drain,
    lose,
    said,
    sealed,
    state_of,
)


def restarted(air: Air, *names: str) -> Air:
    """The same ends after a restart of some, from what their events left on disk."""
    states = {name: state_of(air.events[name]) for name in names}
    again = Air(air.names, air.settings, states, air.now)
    for name in set(air.names) - set(names):
        again.ends[name] = air.ends[name]
    return again


def test_a_restarted_sender_asks_first_and_sends_what_is_lacking() -> None:  # R8.2-27
    air, payload = Air(losses=[lose(Symbol, index=i) for i in (1, 2)]), content(6 * ROOM)
    air.host.cancel(air.host.send(NODE, b"before"))
    air.host.send(NODE, payload)
    [offer, *_] = air.send(HOST, room=5)  # a burst is interrupted
    again = restarted(air, HOST)
    frames = again.run()
    assert frames[0].message == offer.message  # in the slot it had
    assert said(frames) == ["offer", "needs [4]", "6", "7", "8", "9!", "receipt"]
    assert again.got(NODE) == [payload]


def test_what_is_too_large_after_a_restart_is_forgotten_on_either_side() -> None:
    air = Air(losses=[lose(Symbol)])
    air.host.send(NODE, content(600))
    air.send(HOST, room=4)
    states = {name: state_of(air.events[name]) for name in (HOST, NODE)}
    again = Air(settings=replace(SETTINGS, object_max=599), states=states)
    assert again.run() == []
    assert again.of(HOST, GaveUp) == [GaveUp(0, (NODE,), "too large")]
    [dropped] = again.of(NODE, IncomingDropped)
    assert dropped.offer.size == 600
    again.host.send(NODE, content(599))
    again.run()
    assert again.got(NODE) == [content(599)]


def test_silence_is_asked_ever_more_seldom_and_then_given_up() -> None:  # R8.2-9, R8.2-13
    settings = replace(SETTINGS, give_up_s=20_000.0, longest_s=600.0)
    air = Air(settings=settings, deaf={NODE})
    air.host.send(NODE, content(20))
    frames = air.run()
    assert said(frames)[:2] == ["offer", "0!"]
    assert set(said(frames)[2:]) == {"offer"}
    pauses = [b.time_s - a.time_s for a, b in pairwise(frames[1:])]
    assert all(
        0.75 * 12 * 2**n <= pause <= 1.25 * 12 * 2**n + 1 for n, pause in enumerate(pauses[:5])
    )
    assert all(0.75 * 600 <= pause <= 1.25 * 600 + 1 for pause in pauses[6:])
    assert air.of(HOST, GaveUp) == [GaveUp(0, (NODE,), "no answer")]
    assert 20_000 - 900 < frames[-1].time_s < 20_000 + 900
    assert (air.host.next_timeout(), air.host.has_frames) == (None, False)


def test_a_receiver_stops_asking_and_then_forgets() -> None:  # R8.2-21
    air = Air(settings=replace(SETTINGS, give_up_s=20_000.0))
    air.host.send(NODE, content(3 * ROOM))
    air.send(HOST, room=2)
    air.host.cancel(0)
    frames = air.run()
    assert said(frames) == ["needs [2]"] * SILENCES_MAX
    pauses = [b.time_s - a.time_s for a, b in pairwise(frames)]
    assert all(0.7 * 4 * 2**n <= pause <= 1.3 * 4 * 2**n for n, pause in enumerate(pauses))
    assert len(air.of(NODE, IncomingDropped)) == 1
    assert air.node.next_timeout() is None


def test_a_symbol_begins_the_patience_of_its_receiver_anew() -> None:  # R8.2-21
    air = Air(settings=replace(SETTINGS, give_up_s=30_000.0))
    air.node.receive_frame(HOST, sealed(Offer(0, 0, b"name", 90, 30)), 0.0)
    assert said(air.run(until=20_000.0)) == ["needs [3]"] * SILENCES_MAX
    air.node.receive_frame(HOST, sealed(Symbol(0, 0, bytes(30), True)), air.now)
    assert said(air.run()) == ["needs [2]"] * SILENCES_MAX


def test_what_is_forgotten_is_not_asked_for() -> None:
    air = Air()
    air.node.receive_frame(HOST, sealed(Offer(0, 0, b"name", 90, 30)), 0.0)
    air.node.handle_timeout(IDLE_S)
    assert air.node.has_frames
    air.node.receive_frame(HOST, sealed(Offer(0, 1, b"more", 90, 30)), IDLE_S)
    assert not air.node.has_frames


def test_early_symbols_are_asked_for_and_then_forgotten() -> None:
    air = Air()
    air.node.receive_frame(HOST, sealed(Symbol(3, 0, b"data", False)), 0.0)
    assert air.node.next_timeout() == IDLE_S
    assert said(air.run()) == ["question"] * SILENCES_MAX
    assert air.node.next_timeout() is None
    air.node.receive_frame(HOST, sealed(Offer(3, 0, b"name", 8, 4)), air.now)
    assert air.node.next_timeout() is not None
    assert said(air.run(until=air.now + IDLE_S)) == ["needs [2]"]


def test_who_has_stopped_speaking_still_answers_each_offer() -> None:
    air = Air()
    offer = sealed(Offer(0, 0, b"name", 90, 30))
    for attempts in (SILENCES_MAX, 1, 1):
        air.node.receive_frame(HOST, offer, air.now)
        assert said(air.run(until=air.now + 20_000.0)) == ["needs [3]"] * attempts


def test_a_sender_held_back_within_a_burst_is_not_nagged() -> None:
    """Its duty cycle is spent for an hour."""
    air, payload = Air(), content(10 * ROOM)
    air.host.send(NODE, payload)
    air.send(HOST, room=6)
    while (due := air.node.next_timeout()) is not None and due < 3600:
        air.now = due
        air.node.handle_timeout(due)
        air.send(NODE)
    assert said(air.sent, NODE) == ["needs [5]"] * SILENCES_MAX
    assert air.host.next_timeout() is None
    air.now = 3600.0
    assert said(air.run()) == ["5", "6", "7", "8", "9!", "receipt"]
    assert air.got(NODE) == [payload]


def test_a_status_within_a_burst_is_not_counted() -> None:  # R8.2-8
    air = Air(losses=[lose(Symbol, index=0)])
    air.host.send(NODE, content(6 * ROOM))
    air.send(HOST, room=4)
    status = Status(object_name(0, content(6 * ROOM)), (4,))
    air.host.receive_frame(NODE, sealed(status), air.now)
    assert said(air.run()) == ["3", "4", "5!", "needs [1]", "6!", "receipt"]


def test_a_receipt_ends_a_burst() -> None:  # R8.2-8
    air = Air()
    air.host.send(NODE, content(6 * ROOM))
    air.send(HOST, room=3)
    status = Status(object_name(0, content(6 * ROOM)), ())
    air.host.receive_frame(NODE, sealed(status), air.now)
    assert not air.host.has_frames
    assert [event.number for event in drain(air.host) if isinstance(event, Delivered)] == [0]


def test_a_status_that_had_to_wait_does_not_ask_for_what_has_come() -> None:  # R8.2-28
    air = Air(losses=[lose(Symbol, index=0), lose(Symbol, index=1)])
    air.host.send(NODE, content(3 * ROOM))
    air.send(HOST, room=9)
    air.node.handle_timeout(air.now)  # two are lacking, and the node may not send
    assert air.node.has_frames
    air.host.receive_frame(NODE, sealed(Status(object_name(0, content(3 * ROOM)), (2,))), air.now)
    assert said(air.send(HOST)) == ["3"]
    assert not air.node.has_frames
    assert said(air.run()) == ["4!", "receipt"]
