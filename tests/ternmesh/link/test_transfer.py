"""One object for one receiver: what each loss costs, frame by frame."""

from dataclasses import replace

import pytest

from ternmesh.link import events
from ternmesh.link.erasure_code import Layout
from ternmesh.link.messages import Offer, Status, Symbol, object_name
from ternmesh.link.receiver import SILENCES_MAX
from ternmesh.link.settings import MTU_MIN
from ternmesh.security.sealing import CountersReserved
from tests.ternmesh.link.wired_air import (
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
    lose_last,
    said,
    sealed,
    short,
)


@pytest.mark.parametrize("size", [1, ROOM, ROOM + 1, 5 * ROOM, 128 * ROOM, 128 * ROOM + 1])
def test_nothing_lost_is_an_offer_the_object_and_one_receipt(size: int) -> None:  # R8.2-6
    air, payload = Air(), content(size)
    number = air.host.send(NODE, payload)
    frames = air.run()
    count = -(-size // ROOM)
    symbols = [*map(str, range(count - 1)), f"{count - 1}!"]
    assert said(frames) == ["offer", *symbols, "receipt"]
    assert air.got(NODE) == [payload]
    assert air.of(HOST, events.Delivered) == [events.Delivered(number, (NODE,))]
    assert [end.next_timeout() for end in air.ends.values()] == [None, None]


def test_events_come_in_the_order_that_a_disk_needs() -> None:  # R8.2-26
    air, payload = Air(), content(2 * ROOM)
    air.host.send(NODE, payload)
    assert air.host.frames_to_send(0.0) == []  # nothing may leave before it is on disk
    air.run()
    queued = events.Queued(0, NODE, (NODE,), payload)
    begun, reserved = events.TransferBegun(0, 0), CountersReserved(4096)
    assert air.events[HOST] == [queued, begun, reserved, events.Delivered(0, (NODE,))]
    offer = Offer(0, 0, object_name(0, payload), 2 * ROOM, ROOM)
    held = events.SymbolHeld(HOST, offer, 0, payload[:ROOM])
    arrived = events.ObjectArrived(HOST, offer.name, payload)
    assert air.events[NODE] == [held, events.IncomingDropped(HOST, offer), arrived, reserved]


BURST = ["offer", "0", "1", "2", "3!"]
LOSSES: dict[str, tuple[list[Rule], list[str]]] = {
    "the offer": (  # R8.2-10, R8.2-22
        [lose(Offer)],
        [*BURST, "question", "offer", "receipt"],
    ),
    "a symbol": (  # R8.2-7
        [lose(Symbol, index=1)],
        [*BURST, "needs [1]", "4!", "receipt"],
    ),
    "the last symbol": (  # R8.2-21
        [lose_last],
        [*BURST, "needs [1]", "4!", "receipt"],
    ),
    "the offer and the last symbol": (  # R8.2-21
        [lose(Offer), lose_last],
        [*BURST, "question", "offer", "needs [1]", "4!", "receipt"],
    ),
    "a symbol and the status of it": (
        [lose(Symbol, index=0), lose(Status, HOST)],
        [*BURST, "needs [1]", "needs [1]", "4!", "receipt"],
    ),
    "the receipt": (  # R8.2-9, R8.2-25
        [lose(Status, HOST)],
        [*BURST, "receipt", "offer", "receipt"],
    ),
    "all symbols, which come again as they are": (  # R8.2-7
        [lose(Symbol)] * 4,
        [*BURST, "needs [4]", *BURST[1:], "receipt"],
    ),
    "a symbol and its repair, which is not sent twice": (  # R8.2-7
        [lose(Symbol, index=index) for index in (0, 4)],
        [*BURST, "needs [1]", "4!", "needs [1]", "5!", "receipt"],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_a_loss_costs(name: str) -> None:
    losses, wanted = LOSSES[name]
    air, payload = Air(losses=list(losses)), content(4 * ROOM)
    air.host.send(NODE, payload)
    frames = air.run()
    assert said(frames) == wanted
    assert air.got(NODE) == [payload]
    assert len(air.of(HOST, events.Delivered)) == 1
    if lose_last in losses:  # the answer waits for the end of the burst
        pause_s = frames[5].time_s - frames[4].time_s
        assert IDLE_S - FRAME_S <= pause_s <= IDLE_S + 2 * FRAME_S


def test_a_repeated_offer_is_answered_at_once_but_not_within_a_burst() -> None:  # R8.2-20
    air = Air(losses=[lose(Symbol, index=0), *[lose(Status, HOST)] * SILENCES_MAX])
    air.host.send(NODE, content(3 * ROOM))
    [offer] = air.send(HOST)
    assert isinstance(offer.message, Offer)
    air.node.receive_frame(HOST, sealed(offer.message), air.now)  # a bearer may duplicate it
    frames = air.run()
    assert said(frames)[:4] == ["0", "1", "2!", "needs [1]"]
    asked = next(n for n, frame in enumerate(frames) if short(frame.message) == "offer")
    assert frames[asked + 1].time_s - frames[asked].time_s < 2 * FRAME_S


def test_each_generation_gets_what_it_lacks() -> None:  # R8.2-7
    payload = content(256 * ROOM)
    lost = (0, 2, 4, 7)  # generations take turns: three of the first, one of the second
    air = Air(losses=[lose(Symbol, index=i) for i in lost])
    air.host.send(NODE, payload)
    assert said(air.run())[257:] == ["needs [3, 1]", "256", "258", "260", "257!", "receipt"]
    assert air.got(NODE) == [payload]


def test_needs_that_fit_no_frame_come_in_turn() -> None:
    """At 32 bytes a status has room for 13 needs, and this object has 20 generations."""
    settings = replace(SETTINGS, mtu=MTU_MIN)
    layout = Layout(20 * 128 * 15, 15)
    assert layout.generations == 20
    lost = [i for i in range(layout.count) if i // 20 == 5]
    air = Air(settings=settings, losses=[lose(Symbol, index=i) for i in lost])
    payload = content(layout.size)
    air.host.send(NODE, payload)
    statuses = said(air.run(), NODE)
    assert statuses == [f"needs {[1] * 13}", f"needs {[0] * 13 + [1] * 7}", "receipt"]
    assert air.got(NODE) == [payload]


def test_an_unfinished_object_makes_way_for_the_next_in_its_slot() -> None:
    air = Air()
    old = Offer(0, 9, b"olds", 90, 30)
    air.node.receive_frame(HOST, sealed(old), 0.0)
    air.node.receive_frame(HOST, sealed(Symbol(0, 1, bytes(30), False)), 0.0)
    air.host.send(NODE, content(90))
    air.run()
    assert air.of(NODE, events.IncomingDropped)[0] == events.IncomingDropped(HOST, old)
    assert air.got(NODE) == [content(90)]
