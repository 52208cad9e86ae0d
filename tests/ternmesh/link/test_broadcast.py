"""One object for many receivers: one burst, the same repairs, and nobody who holds up others."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from ternmesh.link.events import Delivered, GaveUp
from ternmesh.link.messages import SLOTS, Offer, Question, Status, Symbol
from ternmesh.link.sender import ACTIVE_MAX, ANSWERS_MAX
from ternmesh.link.settings import LinkSettings
from tests.ternmesh.link.wired_air import (
    ALL,
    FRAME_S,
    HOST,
    IDLE_S,
    NODE,
    ROOM,
    SETTINGS,
    Air,
    Rule,
    content,
    lose,
    said,
    says,
    sealed,
    short,
)

NODES = ("n0", "n1", "n2", "n3")


def broadcast(payload: bytes, losses: Sequence[Rule], settings: LinkSettings = SETTINGS) -> Air:
    air = Air((HOST, *NODES), settings, losses=list(losses))
    air.host.send(ALL, payload, receivers=NODES)
    return air


def test_a_broadcast_is_sent_once() -> None:
    air = broadcast(content(4 * ROOM), ())
    frames = air.run()
    assert said(frames, HOST) == ["offer", "0", "1", "2", "3!"]
    assert [said(frames, name) for name in NODES] == [["receipt"]] * 4
    assert all(air.got(name) == [content(4 * ROOM)] for name in NODES)
    assert air.of(HOST, Delivered) == [Delivered(0, NODES)]


def test_the_same_repairs_serve_all_receivers() -> None:  # R8.2-7
    lost = (("n0", 0), ("n1", 1), ("n1", 2), ("n2", 3))
    air = broadcast(content(5 * ROOM), [lose(Symbol, name, index) for name, index in lost])
    frames = air.run()
    assert said(frames, HOST) == ["offer", "0", "1", "2", "3", "4!", "5", "6!"]
    assert all(air.got(name) == [content(5 * ROOM)] for name in NODES)
    assert said(frames, "n1") == ["needs [2]", "receipt"]


def test_answers_to_a_broadcast_are_spread() -> None:  # R8.2-23
    settings = replace(SETTINGS, spread_s=60.0)
    air = broadcast(content(3 * ROOM), [lose(Symbol, "n2", 1)], settings)
    frames = air.run()
    last = next(f.time_s for f in frames if isinstance(f.message, Symbol) and f.message.is_last)
    answers = [f.time_s - last for f in frames if isinstance(f.message, Status)][:4]
    assert all(later - earlier > FRAME_S for earlier, later in pairwise(answers))
    assert answers[-1] < 60.0 + IDLE_S


def test_whoever_missed_the_offer_asks_after_the_burst() -> None:  # R8.2-22
    air = broadcast(content(3 * ROOM), [lose(Offer, "n1")])
    frames = air.run()
    assert said(frames, HOST) == ["offer", "0", "1", "2!", "offer"]
    assert said(frames, "n1") == ["question", "receipt"]


def test_receivers_wait_for_the_end_of_a_burst() -> None:  # R8.2-20
    """Half-duplex radios do not listen while they send."""
    air = broadcast(content(20 * ROOM), [lose(Symbol, "n1", i) for i in range(15)])
    frames = air.run()
    first, second = [n for n, f in enumerate(frames) if short(f.message).endswith("!")]
    assert {frame.sender for frame in frames[:first]} == {HOST}
    begin = next(n for n in range(first + 1, second) if isinstance(frames[n].message, Symbol))
    assert {frame.sender for frame in frames[begin:second]} == {HOST}


def test_a_silent_receiver_does_not_keep_a_broadcast_from_the_others() -> None:
    settings = replace(SETTINGS, give_up_s=3600.0)
    air = broadcast(content(4 * ROOM), [lose(Symbol, "n0", 1), lose(Symbol, "n1", 2)], settings)
    air.deaf.add("n3")
    frames = air.run(until=60.0)
    assert [len(air.got(name)) for name in NODES] == [1, 1, 1, 0]
    assert said(frames, HOST)[:6] == ["offer", "0", "1", "2", "3!", "4!"]
    later = air.run()
    assert {(frame.peer, short(frame.message)) for frame in later} == {("n3", "offer")}
    assert len(later) < 16
    assert air.of(HOST, GaveUp) == [GaveUp(0, ("n3",), "no answer")]


def test_a_broadcast_to_one_who_is_away_makes_way_for_others() -> None:
    payloads = [content(40, seed) for seed in range(ACTIVE_MAX + 3)]
    air = Air((HOST, *NODES), deaf={"n3"})
    for payload in payloads:
        air.host.send(ALL, payload, receivers=NODES)
    air.run(until=SETTINGS.make_way_s / 2)
    assert air.got("n0") == payloads[:ACTIVE_MAX]
    air.run(until=SETTINGS.make_way_s + 2 * SETTINGS.longest_s)
    assert air.got("n0") == air.got("n2") == payloads
    given_up = {event.number for event in air.of(HOST, GaveUp)}
    assert len(given_up) == 3
    air.deaf.clear()
    air.run()
    assert set(air.got("n3")) == {p for n, p in enumerate(payloads) if n not in given_up}
    assert {event.number for event in air.of(HOST, GaveUp)} == given_up


def test_who_always_lacks_something_keeps_broadcasts_from_nobody_for_ever() -> None:  # R8.2-13
    air = Air((HOST, *NODES), deaf={"n3"})
    payloads = [content(3 * ROOM, seed) for seed in range(ACTIVE_MAX + 3)]
    for payload in payloads:
        air.host.send(ALL, payload, receivers=NODES)
    while not air.of(HOST, GaveUp):
        air.run(until=air.now + 300.0)
        says(air, "n3", (1,))
        assert air.now < 20 * SETTINGS.make_way_s
    air.run(until=air.now + 100.0)
    assert air.got("n0") == payloads
    assert {event.receivers for event in air.of(HOST, GaveUp)} == {("n3",)}


@pytest.mark.parametrize("needs", [(1,), (3,)])
def test_words_without_progress_get_a_bounded_number_of_symbols(needs: tuple[int, ...]) -> None:
    # R8.2-14
    air = Air(deaf={NODE})
    air.host.send(NODE, content(3 * ROOM))
    for _ in range(500):
        air.run(until=air.now + 1.0)
        says(air, NODE, needs)
    assert air.of(HOST, GaveUp) == [GaveUp(0, (NODE,), "no progress")]
    assert len(air.sent) <= 3 + needs[0] * (ANSWERS_MAX + 1) + 10
    assert not air.host.has_frames


def test_who_comes_on_is_answered_as_often_as_it_takes() -> None:  # R8.2-13
    air = Air(deaf={NODE})
    needs = 16
    size = needs * ROOM
    air.host.send(NODE, content(size))
    air.run(until=100.0)
    while needs > 1:  # two in three get lost
        for _ in range(ANSWERS_MAX - 1):
            air.run(until=air.now + 20.0)
            says(air, NODE, (needs,))
        needs //= 2
    air.deaf.clear()
    air.run()
    assert air.got(NODE) == [content(size)]
    assert air.of(HOST, GaveUp) == []


def test_a_question_is_answered_once() -> None:
    air = Air((HOST, *NODES))
    air.host.send(ALL, content(4 * ROOM), receivers=NODES)
    air.send(HOST, room=2)
    for name in ("n1", "n2", "n1"):
        air.host.receive_frame(name, sealed(Question(SLOTS // 2)), air.now)
    frames = air.send(HOST, room=3)
    assert [(frame.peer, short(frame.message)) for frame in frames] == [
        ("n1", "offer"),
        ("n2", "offer"),
        (ALL, "1"),
    ]
