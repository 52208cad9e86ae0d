"""Which object and which frame goes first, and how much waits."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ternmesh.link.erasure_code import SOURCES_MAX
from ternmesh.link.events import ARRIVED_MAX, Delivered, FrameArrived, GaveUp, TransferBegun
from ternmesh.link.link import FRAMES_MAX, UNRELIABLE_MAX, LinkFull
from ternmesh.link.messages import Status, Symbol, object_name
from ternmesh.link.sender import ACTIVE_MAX, LEAD_MAX
from ternmesh.link.settings import MTU_MIN
from ternmesh.wire.frame import FRAME_MAX, FRAME_OVERHEAD, Header, seal_open
from tests.ternmesh.link.wired_air import ALL, HOST, NODE, ROOM, SETTINGS, Air, content, said


def test_a_receiver_that_is_away_holds_up_nobody_else() -> None:
    air = Air((HOST, "away", NODE), deaf={"away"})
    for seed in range(20):
        air.host.send("away", content(40, seed))
    air.host.send(NODE, content(40))
    air.run(until=10.0)
    assert air.got(NODE) == [content(40)]
    begun = [f for f in air.sent if f.peer == "away" and isinstance(f.message, Symbol)]
    assert len(begun) == 2 * ACTIVE_MAX


def test_no_object_falls_so_far_behind_that_it_looks_new() -> None:  # R8.2-11
    """Its receipt is lost for long, while its receiver gets others."""
    air = Air()
    air.host.send(NODE, b"first")
    air.send(HOST, room=9)
    for seed in range(3 * ARRIVED_MAX):
        air.host.send(NODE, content(8, seed))
    name = object_name(0, b"first")
    air.losses = [lambda _, m: isinstance(m, Status) and m.name == name] * 8
    air.run(until=600.0)
    assert len(air.got(NODE)) == LEAD_MAX < ARRIVED_MAX
    air.run()
    assert Counter(air.got(NODE))[b"first"] == 1
    assert len(air.got(NODE)) == 3 * ARRIVED_MAX + 1


def test_a_newer_object_supersedes_one_of_which_nothing_was_sent() -> None:
    air = Air((HOST, NODE, "n2"))
    first = air.host.send(NODE, content(60))
    air.send(HOST)  # the offer
    old = air.host.send(NODE, content(60, 1))
    air.send(HOST)  # it has a slot now, and nothing has left but a symbol of the first
    kept = [air.host.send("n2", content(60, 3)), air.host.send(NODE, content(60, 4))]
    new = air.host.send(NODE, content(60, 2), keep=2)
    air.run()
    assert air.of(HOST, GaveUp) == [GaveUp(old, (NODE,), "superseded")]
    assert {event.number for event in air.of(HOST, Delivered)} == {first, new, *kept}
    assert content(60, 1) not in air.got(NODE)


def test_cancel() -> None:
    air = Air()
    numbers = [air.host.send(NODE, content(60, seed)) for seed in range(ACTIVE_MAX + 2)]
    air.send(HOST, room=2)
    for number in (numbers[0], numbers[-1], 99):
        air.host.cancel(number)
    air.run()
    gone = [numbers[0], numbers[-1]]
    assert air.of(HOST, GaveUp) == [GaveUp(number, (NODE,), "cancelled") for number in gone]
    assert {event.number for event in air.of(HOST, Delivered)} == set(numbers[1:-1])
    assert not air.host.has_frames


def test_a_full_link_takes_no_more_until_something_is_delivered() -> None:  # R8.2-15
    settings = replace(SETTINGS, outgoing_max=3, outgoing_bytes_max=1000)
    air = Air(settings=settings)
    for seed in range(3):
        air.host.send(NODE, content(60, seed))
    with pytest.raises(LinkFull, match="offer this one later"):
        air.host.send(NODE, content(60, 3))
    air.run()
    air.host.send(NODE, content(800))
    with pytest.raises(LinkFull):
        air.host.send(NODE, content(201))
    air.host.send(NODE, content(200))
    air.run()
    air.host.send(NODE, content(1000))
    assert len(air.got(NODE)) == 5


def test_who_takes_nothing_leaves_room_for_others() -> None:  # R8.2-15
    settings = replace(SETTINGS, outgoing_max=20, outgoing_bytes_max=4000)
    for size, room in ((20, 20), (800, 5)):
        air = Air((HOST, NODE, "n2", "n3"), settings=settings, deaf={"n2"})
        lost = [air.host.send("n2", content(size, seed)) for seed in range(room)]
        air.run(until=10.0)
        for seed in range(2):
            air.host.send(NODE, content(size, seed))
        air.host.send(ALL, content(size, 9), receivers=(NODE, "n3"))
        air.run(until=200.0)
        assert air.got(NODE) == [content(size, seed) for seed in (0, 1, 9)]
        gave_up = air.of(HOST, GaveUp)
        assert {event.reason for event in gave_up} == {"others needed the room"}
        begun = {event.number for event in air.of(HOST, TransferBegun)}
        assert {event.number for event in gave_up} <= set(lost) - begun
        # The oldest of those that wait go first, and it is full for nobody else.
        assert [event.number for event in gave_up] == sorted(event.number for event in gave_up)


def test_who_claims_most_displaces_nobody() -> None:  # R8.2-15
    air = Air((HOST, NODE, "n2"), settings=replace(SETTINGS, outgoing_max=12))
    kept = [air.host.send("n2", content(20, seed)) for seed in range(6)]
    for seed in range(6):
        air.host.send(NODE, content(20, seed))
    with pytest.raises(LinkFull):
        air.host.send(NODE, content(20, 6))
    air.host.send(NODE, content(20, 7), keep=8)
    air.run()
    assert content(20) not in air.got(NODE)
    assert set(kept) < {event.number for event in air.of(HOST, Delivered)}


def test_of_what_waits_for_a_peer_the_newest_are_kept() -> None:  # R8.2-16
    air = Air((HOST, NODE, "n2"), deaf={NODE})
    other = air.host.send("n2", content(20, 99))
    for seed in range(20):
        air.host.send(NODE, content(20, seed), keep=3)
        air.run(until=air.now + 1.0)
    assert [event.number for event in air.of(HOST, Delivered)] == [other]
    air.deaf.clear()
    air.run()
    newest = [content(20, seed) for seed in (17, 18, 19)]
    assert set(newest) < set(air.got(NODE))
    assert len(air.got(NODE)) == ACTIVE_MAX + 3
    assert {event.reason for event in air.of(HOST, GaveUp)} == {"superseded"}


def test_one_receiver_has_a_part_of_the_room_under_way_and_the_rest_can_go() -> None:  # R8.2-17
    air = Air((HOST, NODE, "n2"), settings=replace(SETTINGS, outgoing_bytes_max=4000))
    for seed in range(4):
        air.host.send(NODE, content(900, seed))
    air.send(HOST)
    assert len(air.of(HOST, TransferBegun)) == 1
    air.host.send("n2", content(3000))
    air.run()
    assert air.got("n2") == [content(3000)]
    assert air.got(NODE) == [content(900)]


def test_objects_have_a_size() -> None:
    most = SOURCES_MAX * (MTU_MIN - FRAME_OVERHEAD - 3)
    short, small = replace(SETTINGS, mtu=MTU_MIN), replace(SETTINGS, object_max=500)
    for settings, limit in ((small, 500), (short, most)):
        air = Air(settings=settings)
        for size in (0, limit + 1):
            with pytest.raises(ValueError, match=f"1 to {limit} bytes"):
                air.host.send(NODE, bytes(size))
        air.host.send(NODE, bytes(limit))
        assert said(air.send(HOST, room=3)) == ["offer", "0", "1"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("mtu", MTU_MIN - 1), ("mtu", FRAME_MAX + 1), ("object_max", 0), ("object_max", 1 << 24)],
)
def test_settings_that_cannot_be(name: str, value: int) -> None:
    change: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name):
        replace(SETTINGS, **change)


@pytest.mark.parametrize("mtu", [MTU_MIN, FRAME_MAX])
def test_every_frame_fits(mtu: int) -> None:
    air, longest = Air(settings=replace(SETTINGS, mtu=mtu)), 0
    air.host.send(NODE, content(3 * (mtu - FRAME_OVERHEAD - 3)))
    air.take()
    while air.host.has_frames:
        [(_, frame)] = air.host.frames_to_send(0.0, 1)
        longest = max(longest, len(frame))
    assert longest == mtu


def test_room_is_kept() -> None:
    air = Air()
    air.host.send(NODE, content(400 * ROOM))
    air.host.send_frames(NODE, [b"as it is"] * 5)
    air.take()
    for room in (0, -1):
        assert air.host.frames_to_send(0.0, room) == []
    assert [len(air.host.frames_to_send(0.0, room)) for room in (1, 3, 7)] == [1, 3, 7]
    assert len(air.host.frames_to_send(0.0, 100_000)) == FRAMES_MAX


def test_frames_that_wait_are_bounded() -> None:
    air = Air()
    air.host.send_frames(NODE, [b"x"] * (UNRELIABLE_MAX - 1))
    with pytest.raises(LinkFull, match="too many frames"):
        air.host.send_frames(NODE, [b"y"] * 2)
    air.host.send_frames(NODE, [b"z"])
    while air.host.next_event() is not None:
        pass
    frames = [frame for _ in range(20) for _, frame in air.host.frames_to_send(0.0)]
    assert (len(frames), frames[-1]) == (UNRELIABLE_MAX, b"z")


def test_a_newer_hello_takes_the_place_of_one_that_waits() -> None:  # R8.2-29
    air = Air((HOST, NODE, "other"))
    rows = [(NODE, 0, 9), (NODE, 5, 9), ("other", 0, 9), (NODE, 0, 8), (NODE, 0, 9), (NODE, 5, 9)]
    for number, (peer, address, size) in enumerate(rows):
        air.host.send_frames(peer, [seal_open(Header(address, number, suite=1), bytes(size))])
    air.take()
    assert [frame[3] for _, frame in air.host.frames_to_send(0.0)] == [4, 1, 2, 3, 5]


def test_answers_go_before_frames_and_frames_before_objects() -> None:
    air = Air()
    air.node.send(HOST, b"object")
    frame = seal_open(Header(5, 0), b"\x02")
    air.node.send_frames(HOST, [frame])
    air.host.send(NODE, content(10))
    air.send(HOST, room=9)
    air.node.handle_timeout(air.now)
    assert said(air.send(NODE, room=9)) == ["receipt", "frame", "offer", "0!"]
    assert air.of(HOST, FrameArrived) == [FrameArrived(NODE, frame)], "as it is"


def test_frames_end_where_the_reserved_counters_do() -> None:
    air = Air(settings=replace(SETTINGS, mtu=MTU_MIN))
    air.host.send(NODE, bytes(15 * 9000))
    air.take()
    assert sum(len(air.host.frames_to_send(0.0)) for _ in range(40)) == 4096
