"""Links wired by hand: what is lost is chosen, and what is said is counted frame by frame."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

import numpy as np
import pytest

from ternmesh.link.erasure_code import GENERATION_MAX, SOURCES_MAX, Layout, encode_symbols
from ternmesh.link.events import (
    ARRIVED_MAX,
    Delivered,
    FrameArrived,
    GaveUp,
    IncomingDropped,
    InRecord,
    LinkCountersReserved,
    LinkEvent,
    LinkRefused,
    LinkState,
    ObjectArrived,
    OutRecord,
    Queued,
    RepairsReserved,
    SymbolHeld,
    TransferBegun,
)
from ternmesh.link.link import FRAMES_MAX, UNRELIABLE_MAX, Link, LinkFull
from ternmesh.link.messages import (
    SLOTS,
    Message,
    Offer,
    Question,
    Status,
    Symbol,
    is_link,
    object_name,
    read_message,
    write_message,
)
from ternmesh.link.receiver import PEERS_MAX, SILENCES_MAX
from ternmesh.link.sender import ACTIVE_MAX, ANSWERS_MAX, LEAD_MAX, REPAIRS_BLOCK
from ternmesh.link.settings import MTU_MIN, LinkSettings
from ternmesh.wire.frame import (
    BROADCAST,
    DOWN,
    FRAME_MAX,
    FRAME_OVERHEAD,
    UNASSIGNED,
    Header,
    open_seal,
    seal_open,
)

HOST, NODE, ALL = "host", "node", "all"
MTU = 51
ROOM = MTU - FRAME_OVERHEAD - 3  # of a symbol
IDLE_S = 4.0
FRAME_S = 0.1
SETTINGS = LinkSettings(mtu=MTU, idle_s=IDLE_S, addresses={ALL: BROADCAST})
Event = TypeVar("Event")


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng((size, seed)).bytes(size)


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame that left."""

    time_s: float
    sender: str
    peer: str
    message: Message | bytes


Rule = Callable[[str, Message | bytes], bool]  # a receiver, and what it would hear


@dataclass(slots=True)
class Air:
    """Links, a clock, and rules of which each loses one frame on its way to one receiver."""

    names: Sequence[str] = (HOST, NODE)
    settings: LinkSettings = SETTINGS
    states: dict[str, LinkState] = field(default_factory=dict)
    now: float = 0.0
    losses: list[Rule] = field(default_factory=list)
    deaf: set[str] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    ends: dict[str, Link] = field(default_factory=dict)
    events: dict[str, list[LinkEvent]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, name in enumerate(self.names):
            rng = np.random.default_rng(number)
            self.ends[name] = Link(self.settings, self.states.get(name, LinkState()), rng)
            self.ends[name].start(self.now)
            self.events[name] = []

    @property
    def host(self) -> Link:
        return self.ends[HOST]

    @property
    def node(self) -> Link:
        return self.ends[NODE]

    def take(self) -> None:
        """All events of all ends."""
        for name, end in self.ends.items():
            self.events[name] += list(drain(end))

    def send(self, sender: str, room: int = 1) -> list[Sent]:
        """What one end has to say now, carried to whom it is for."""
        self.take()
        first = len(self.sent)
        for peer, frame in self.ends[sender].frames_to_send(self.now, room):
            self.now += FRAME_S
            body = open_seal(frame)[1]
            message = read_message(body) if is_link(body) else frame
            self.sent.append(Sent(self.now, sender, peer, message))
            for name in self.ends:
                if name != sender and peer in (name, ALL) and not self._loses(name, message):
                    self.ends[name].receive_frame(sender, frame, self.now)
        self.take()
        return self.sent[first:]

    def _loses(self, receiver: str, message: Message | bytes) -> bool:
        rule = next((rule for rule in self.losses if rule(receiver, message)), None)
        if rule is not None:
            self.losses.remove(rule)
        return rule is not None or receiver in self.deaf

    def run(self, until: float = inf) -> list[Sent]:
        """Everything that happens until then, answers first; what was sent meanwhile."""
        first = len(self.sent)
        while True:
            self.take()
            timeouts = [t for end in self.ends.values() if (t := end.next_timeout()) is not None]
            due = min(timeouts, default=inf)
            speaker = next((n for n in reversed(self.ends) if self.ends[n].has_frames), None)
            if speaker is not None and due > self.now:
                self.send(speaker)
            elif due < inf and due <= until:
                self.now = max(self.now, due)
                for end in self.ends.values():
                    end.handle_timeout(self.now)
            else:
                self.now = max(self.now, until) if until < inf else self.now
                return self.sent[first:]

    def got(self, name: str) -> list[bytes]:
        """The objects that arrived."""
        return [event.payload for event in self.of(name, ObjectArrived)]

    def of(self, name: str, kind: type[Event]) -> list[Event]:
        """Events of one end of one kind."""
        return [event for event in self.events[name] if isinstance(event, kind)]


def drain(end: Link) -> Iterator[LinkEvent]:
    while (event := end.next_event()) is not None:
        yield event


def lose(kind: type, receiver: str = NODE, index: int | None = None) -> Rule:
    def rule(name: str, message: Message | bytes) -> bool:
        is_it = index is None or (isinstance(message, Symbol) and message.index == index)
        return name == receiver and isinstance(message, kind) and is_it

    return rule


def lose_last(name: str, message: Message | bytes) -> bool:
    return name == NODE and isinstance(message, Symbol) and message.is_last


def said(frames: Sequence[Sent], sender: str = "") -> list[str]:
    """What was said, in short: kinds, indexes of symbols, needs."""
    return [short(each.message) for each in frames if each.sender == sender or not sender]


def short(message: Message | bytes) -> str:
    match message:
        case Offer():
            return "offer"
        case Symbol():
            return f"{message.index}{'!' if message.is_last else ''}"
        case Status():
            return f"needs {list(message.needs)}" if message.needs else "receipt"
        case Question():
            return "question"
    return "frame"


def sealed(message: Message, address: int = 1) -> bytes:
    return seal_open(Header(address, 0), write_message(message))


def state_of(events: Sequence[LinkEvent]) -> LinkState:
    """What a disk would have of these events, all committed; for one peer and no drops."""
    records: dict[int, OutRecord] = {}
    symbols: dict[Offer, list[tuple[int, bytes]]] = {}
    counter = number = 0
    for event in events:
        match event:
            case LinkCountersReserved():
                counter = event.limit
            case Queued():
                records[event.number] = OutRecord(event)
                number = event.number + 1
            case TransferBegun():
                records[event.number] = replace(records[event.number], slot=event.slot)
            case RepairsReserved():
                records[event.number] = replace(records[event.number], repairs=event.limit)
            case Delivered() | GaveUp():
                del records[event.number]
            case SymbolHeld():
                symbols.setdefault(event.offer, []).append((event.index, event.data))
    incoming = tuple(InRecord(HOST, offer, tuple(held)) for offer, held in symbols.items())
    arrived = tuple(event.name for event in events if isinstance(event, ObjectArrived))
    return LinkState(counter, number, tuple(records.values()), incoming, {HOST: arrived})


# One object, one receiver


@pytest.mark.parametrize("size", [1, ROOM, ROOM + 1, 5 * ROOM, 128 * ROOM, 128 * ROOM + 1])
def test_nothing_lost_is_an_offer_the_object_and_one_receipt(size: int) -> None:
    air, payload = Air(), content(size)
    number = air.host.send(NODE, payload)
    frames = air.run()
    count = -(-size // ROOM)
    symbols = [*map(str, range(count - 1)), f"{count - 1}!"]
    assert said(frames) == ["offer", *symbols, "receipt"]
    assert air.got(NODE) == [payload]
    assert air.of(HOST, Delivered) == [Delivered(number, (NODE,))]
    assert [end.next_timeout() for end in air.ends.values()] == [None, None]


def test_events_come_in_the_order_that_a_disk_needs() -> None:
    air, payload = Air(), content(2 * ROOM)
    air.host.send(NODE, payload, priority=3, key="k")
    assert air.host.frames_to_send(0.0) == []  # nothing may leave before it is on disk
    air.run()
    queued = Queued(0, NODE, (NODE,), payload, 3, "k")
    begun, reserved = TransferBegun(0, 0), LinkCountersReserved(4096)
    assert air.events[HOST] == [queued, begun, reserved, Delivered(0, (NODE,))]
    offer = Offer(0, 0, object_name(0, payload), 2 * ROOM, ROOM)
    held = SymbolHeld(HOST, offer, 0, payload[:ROOM])
    arrived = ObjectArrived(HOST, offer.name, payload)
    assert air.events[NODE] == [held, IncomingDropped(HOST, offer), arrived, reserved]


def test_a_lost_offer_costs_a_question_and_an_offer() -> None:
    air = Air(losses=[lose(Offer)])
    air.host.send(NODE, content(4 * ROOM))
    assert said(air.run()) == ["offer", "0", "1", "2", "3!", "question", "offer", "receipt"]
    assert len(air.got(NODE)) == 1


def test_a_lost_offer_and_last_symbol_cost_a_pause() -> None:
    air = Air(losses=[lose(Offer), lose_last])
    air.host.send(NODE, content(3 * ROOM))
    frames = air.run()
    burst = ["offer", "0", "1", "2!", "question", "offer", "needs [1]", "3!", "receipt"]
    assert said(frames) == burst
    assert frames[4].time_s - frames[3].time_s < IDLE_S + 2 * FRAME_S


def test_a_lost_symbol_costs_its_repair_and_a_status() -> None:
    air = Air(losses=[lose(Symbol, index=1)])
    air.host.send(NODE, content(4 * ROOM))
    assert said(air.run()) == ["offer", "0", "1", "2", "3!", "needs [1]", "4!", "receipt"]
    assert air.of(HOST, RepairsReserved) == [RepairsReserved(0, REPAIRS_BLOCK)]


def test_a_lost_last_symbol_costs_a_pause() -> None:
    air = Air(losses=[lose_last])
    air.host.send(NODE, content(4 * ROOM))
    frames = air.run()
    assert said(frames) == ["offer", "0", "1", "2", "3!", "needs [1]", "4!", "receipt"]
    pause_s = frames[5].time_s - frames[4].time_s
    assert IDLE_S - FRAME_S <= pause_s <= IDLE_S + 2 * FRAME_S


def test_a_lost_status_is_said_again_by_who_lacks_something() -> None:
    air = Air(losses=[lose(Symbol, index=0), lose(Status, HOST)])
    air.host.send(NODE, content(2 * ROOM))
    burst = ["offer", "0", "1!", "needs [1]", "needs [1]", "2!", "receipt"]
    assert said(air.run()) == burst


def test_a_lost_receipt_is_asked_for_and_the_object_not_delivered_again() -> None:
    air = Air(losses=[lose(Status, HOST)])
    air.host.send(NODE, content(2 * ROOM))
    assert said(air.run()) == ["offer", "0", "1!", "receipt", "offer", "receipt"]
    assert len(air.got(NODE)) == len(air.of(HOST, Delivered)) == 1


def test_a_repeated_offer_is_answered_at_once_but_not_within_a_burst() -> None:
    air = Air(losses=[lose(Symbol, index=0), *[lose(Status, HOST)] * SILENCES_MAX])
    air.host.send(NODE, content(3 * ROOM))
    [offer] = air.send(HOST)
    assert isinstance(offer.message, Offer)
    air.node.receive_frame(HOST, sealed(offer.message), air.now)  # a bearer may duplicate it
    frames = air.run()
    assert said(frames)[:4] == ["0", "1", "2!", "needs [1]"]
    asked = next(n for n, frame in enumerate(frames) if short(frame.message) == "offer")
    assert frames[asked + 1].time_s - frames[asked].time_s < 2 * FRAME_S


def test_where_all_was_lost_the_object_is_sent_again_as_it_is() -> None:
    air = Air(losses=[lose(Symbol)] * 3)
    air.host.send(NODE, content(3 * ROOM))
    again = ["offer", "0", "1", "2!", "needs [3]", "0", "1", "2!", "receipt"]
    assert said(air.run()) == again
    assert air.of(HOST, RepairsReserved) == []


def test_repairs_are_never_sent_twice() -> None:
    air = Air(losses=[lose(Symbol, index=i) for i in (0, 4, 5, 6)])
    air.host.send(NODE, content(4 * ROOM))
    symbols = [each for each in said(air.run(), HOST) if each != "offer"]
    assert symbols == ["0", "1", "2", "3!", "4!", "5!", "6!", "7!"]


def test_each_generation_gets_what_it_lacks() -> None:
    payload = content(256 * ROOM)
    lost = (0, 2, 4, 7)  # generations take turns: three of the first, one of the second
    air = Air(losses=[lose(Symbol, index=i) for i in lost])
    air.host.send(NODE, payload)
    assert said(air.run())[257:] == ["needs [3, 1]", "256", "258", "260", "257!", "receipt"]
    assert air.got(NODE) == [payload]


def test_a_generation_that_lacks_all_comes_as_it_is_beside_repairs() -> None:
    count = 130
    lost = [*range(1, count, 2), 0]
    air = Air(losses=[lose(Symbol, index=i) for i in lost])
    air.host.send(NODE, content(count * ROOM))
    second = said(air.run(), HOST)[count + 1 :]
    assert second == [str(count), *map(str, range(1, count - 1, 2)), f"{count - 1}!"]


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


def test_equal_objects_are_delivered_as_often_as_they_are_sent() -> None:
    air = Air()
    for _ in range(3):
        air.host.send(NODE, b"the same")
    air.run()
    assert air.got(NODE) == [b"the same"] * 3
    assert [event.number for event in air.of(HOST, Delivered)] == [0, 1, 2]


def test_both_ends_send_at_once() -> None:
    air = Air(losses=[lose(Symbol), lose(Symbol, HOST)])
    air.host.send(NODE, content(100))
    air.node.send(HOST, content(120))
    air.run()
    assert (air.got(NODE), air.got(HOST)) == ([content(100)], [content(120)])


def test_many_objects_use_slots_again() -> None:
    rng = np.random.default_rng(5)
    payloads = [content(70, seed) for seed in range(100)]
    air = Air(losses=[])
    for payload in payloads:
        air.host.send(NODE, payload)
    air.losses = [lambda _, __: bool(rng.random() < 0.2)] * 150
    frames = air.run()
    assert Counter(air.got(NODE)) == Counter(payloads)
    slots = {each.message.slot for each in frames if isinstance(each.message, Offer)}
    assert slots == set(range(SLOTS // 2))


def test_a_slot_rests() -> None:
    air = Air()
    for seed in range(20):
        air.host.send(NODE, content(30, seed))
    offers = [each.message.slot for each in air.run() if isinstance(each.message, Offer)]
    assert offers == [number % (SLOTS // 2) for number in range(20)]


def test_an_unfinished_object_makes_way_for_the_next_in_its_slot() -> None:
    air = Air()
    old = Offer(0, 9, b"olds", 90, 30)
    air.node.receive_frame(HOST, sealed(old), 0.0)
    air.node.receive_frame(HOST, sealed(Symbol(0, 1, bytes(30), False)), 0.0)
    air.host.send(NODE, content(90))
    air.run()
    assert air.of(NODE, IncomingDropped)[0] == IncomingDropped(HOST, old)
    assert air.got(NODE) == [content(90)]


# Many receivers

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


def test_the_same_repairs_serve_all_receivers() -> None:
    lost = (("n0", 0), ("n1", 1), ("n1", 2), ("n2", 3))
    air = broadcast(content(5 * ROOM), [lose(Symbol, name, index) for name, index in lost])
    frames = air.run()
    assert said(frames, HOST) == ["offer", "0", "1", "2", "3", "4!", "5", "6!"]
    assert all(air.got(name) == [content(5 * ROOM)] for name in NODES)
    assert said(frames, "n1") == ["needs [2]", "receipt"]


def test_answers_to_a_broadcast_are_spread() -> None:
    settings = replace(SETTINGS, spread_s=60.0)
    air = broadcast(content(3 * ROOM), [lose(Symbol, "n2", 1)], settings)
    frames = air.run()
    last = next(f.time_s for f in frames if isinstance(f.message, Symbol) and f.message.is_last)
    answers = [f.time_s - last for f in frames if isinstance(f.message, Status)][:4]
    assert all(later - earlier > FRAME_S for earlier, later in pairwise(answers))
    assert answers[-1] < 60.0 + IDLE_S


def test_answers_to_an_offer_alone_are_spread() -> None:
    """Its sender may be kept silent, by the law say, before its first symbol."""
    air = broadcast(content(3 * ROOM), (), replace(SETTINGS, spread_s=60.0))
    assert said(air.send(HOST)) == ["offer"]
    times = sorted(due for name in NODES if (due := air.ends[name].next_timeout()) is not None)
    assert len(times) == len(NODES)
    assert all(later - earlier > FRAME_S for earlier, later in pairwise(times))
    assert air.now + IDLE_S <= times[0]
    assert times[-1] < air.now + IDLE_S + 60.0


def test_whoever_missed_the_offer_asks_after_the_burst() -> None:
    air = broadcast(content(3 * ROOM), [lose(Offer, "n1")])
    frames = air.run()
    assert said(frames, HOST) == ["offer", "0", "1", "2!", "offer"]
    assert said(frames, "n1") == ["question", "receipt"]


def test_receivers_wait_for_the_end_of_a_burst() -> None:
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


def test_a_broadcast_and_an_object_for_one_do_not_disturb_each_other() -> None:
    air = broadcast(content(4 * ROOM), [lose(Symbol, "n1", 0)])
    air.host.send("n1", content(3 * ROOM))
    air.host.send("n2", content(3 * ROOM, 1))
    air.run()
    assert set(air.got("n1")) == {content(4 * ROOM), content(3 * ROOM)}
    assert set(air.got("n2")) == {content(4 * ROOM), content(3 * ROOM, 1)}
    slots = {f.peer: f.message.slot for f in air.sent if isinstance(f.message, Offer)}
    assert slots == {ALL: SLOTS // 2, "n1": 0, "n2": 0}


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


def says(air: Air, name: str, needs: tuple[int, ...]) -> None:
    """Whatever it holds: this of all that is under way."""
    for sending in list(air.host._out._active):
        frame = sealed(Status(sending.offer.name, needs))
        air.host.receive_frame(name, frame, air.now)


def test_who_always_lacks_something_keeps_broadcasts_from_nobody_for_ever() -> None:
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
    air = Air(deaf={NODE})
    air.host.send(NODE, content(3 * ROOM))
    for _ in range(500):
        air.run(until=air.now + 1.0)
        says(air, NODE, needs)
    assert air.of(HOST, GaveUp) == [GaveUp(0, (NODE,), "no progress")]
    assert len(air.sent) <= 3 + needs[0] * (ANSWERS_MAX + 1) + 10
    assert not air.host.has_frames


def test_who_comes_on_is_answered_as_often_as_it_takes() -> None:
    air = Air(deaf={NODE})
    size = GENERATION_MAX * ROOM
    air.host.send(NODE, content(size))
    air.run(until=100.0)
    needs = GENERATION_MAX
    while needs > 1:  # two in three get lost
        for _ in range(ANSWERS_MAX - 1):
            air.run(until=air.now + 20.0)
            says(air, NODE, (needs,))
        needs //= 2
    air.deaf.clear()
    air.run()
    assert air.got(NODE) == [content(size)]
    assert air.of(HOST, GaveUp) == []


def test_who_is_done_does_not_keep_a_sender_from_giving_up() -> None:
    air = broadcast(content(4 * ROOM), (), replace(SETTINGS, give_up_s=1000.0))
    air.deaf.add("n3")
    air.run(until=60.0)
    receipt = sealed(Status(object_name(0, content(4 * ROOM)), ()))
    for minute in range(1, 60):
        air.run(until=60.0 * minute)
        air.host.receive_frame("n0", receipt, air.now)
    assert air.of(HOST, GaveUp) == [GaveUp(0, ("n3",), "no answer")]


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


# Which goes first


def test_urgent_objects_go_first_also_within_a_burst() -> None:
    air = Air()
    air.host.send(NODE, content(4 * ROOM), priority=2)
    assert said(air.send(HOST, room=2)) == ["offer", "0"]
    air.host.send(NODE, content(ROOM, 1), priority=0)
    air.host.send(NODE, content(ROOM, 2), priority=1)
    order = said(air.send(HOST, room=7))
    assert order == ["offer", "0!", "offer", "0!", "1", "2", "3!"]


def test_urgent_objects_begin_first() -> None:
    air = Air()
    for number in range(2 * ACTIVE_MAX):
        air.host.send(NODE, content(10, number), priority=9 - number)
    air.run()
    assert air.got(NODE) == [content(10, number) for number in reversed(range(2 * ACTIVE_MAX))]


def test_a_receiver_that_is_away_holds_up_nobody_else() -> None:
    air = Air((HOST, "away", NODE), deaf={"away"})
    for seed in range(20):
        air.host.send("away", content(40, seed), priority=0)
    air.host.send(NODE, content(40))
    air.run(until=10.0)
    assert air.got(NODE) == [content(40)]
    begun = [f for f in air.sent if f.peer == "away" and isinstance(f.message, Symbol)]
    assert len(begun) == 2 * ACTIVE_MAX


def test_no_object_falls_so_far_behind_that_it_looks_new() -> None:
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
    first = air.host.send(NODE, content(60), key="update")
    air.send(HOST)  # the offer
    old = air.host.send(NODE, content(60, 1), key="update")
    air.take()  # it has a slot now, and nothing has left
    kept = [air.host.send("n2", content(60, 3), key="update"), air.host.send(NODE, content(60, 4))]
    new = air.host.send(NODE, content(60, 2), key="update")
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


# Limits of what is sent


def test_a_full_link_takes_no_more_until_something_is_delivered() -> None:
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


def test_what_makes_room_counts_and_a_refused_object_supersedes_nothing() -> None:
    settings = replace(SETTINGS, outgoing_max=2, outgoing_bytes_max=100)
    air = Air(settings=settings)
    air.host.send(NODE, content(60), key="a")
    air.host.send(NODE, content(40), key="b")
    with pytest.raises(LinkFull):
        air.host.send(NODE, content(61), key="a")
    air.host.send(NODE, content(50), key="a")
    air.run()
    assert air.got(NODE) == [content(40), content(50)]


def test_who_takes_nothing_leaves_room_for_others() -> None:
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


def test_who_claims_most_displaces_nobody() -> None:
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


def test_of_what_waits_for_a_peer_the_newest_are_kept() -> None:
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


def test_one_receiver_has_a_part_of_the_room_under_way_and_the_rest_can_go() -> None:
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
    air = Air(settings=replace(SETTINGS, object_max=500))
    for size in (0, 501):
        with pytest.raises(ValueError, match="1 to 500 bytes"):
            air.host.send(NODE, bytes(size))
    air.host.send(NODE, bytes(500))
    air.run()
    assert air.got(NODE) == [bytes(500)]


def test_no_object_has_more_symbols_than_the_code() -> None:
    settings = replace(SETTINGS, mtu=MTU_MIN)
    most = SOURCES_MAX * (MTU_MIN - FRAME_OVERHEAD - 3)
    air = Air(settings=settings)
    with pytest.raises(ValueError, match=f"1 to {most} bytes"):
        air.host.send(NODE, bytes(most + 1))
    air.host.send(NODE, bytes(most))
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


def test_no_seal_counter_is_used_before_it_is_reserved() -> None:
    air, limit = Air(settings=replace(SETTINGS, mtu=MTU_MIN)), 0
    air.host.send(NODE, bytes(15 * 9000))
    counters = []
    for _ in range(40):
        for event in drain(air.host):
            limit = event.limit if isinstance(event, LinkCountersReserved) else limit
        for _, frame in air.host.frames_to_send(0.0):
            counters.append(open_seal(frame)[0].counter)
            assert counters[-1] < limit
    assert counters == list(range(9001))


def test_frames_end_where_the_reserved_counters_do() -> None:
    air = Air(settings=replace(SETTINGS, mtu=MTU_MIN))
    air.host.send(NODE, bytes(15 * 9000))
    air.take()
    assert sum(len(air.host.frames_to_send(0.0)) for _ in range(40)) == 4096


# Frames as they are


def test_other_frames_pass_as_they_are() -> None:
    air = Air()
    frames = [seal_open(Header(5, number), b"\x02share") for number in range(3)]
    air.host.send_frames(NODE, frames)
    air.run()
    assert air.of(NODE, FrameArrived) == [FrameArrived(HOST, frame) for frame in frames]
    assert len(air.sent) == 3


def test_frames_are_superseded_by_key() -> None:
    air = Air((HOST, NODE, "n2"))
    made = iter(seal_open(Header(5, number), b"\x02") for number in range(9))
    old, new, other, plain = [next(made), next(made)], [next(made)], [next(made)], [next(made)]
    air.host.send_frames(NODE, old, key="update")
    air.host.send_frames(NODE, plain)
    air.host.send_frames("n2", other, key="update")
    air.host.send_frames(NODE, new, key="update")
    air.run()
    assert [each.message for each in air.sent] == [*plain, *other, *new]


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


def test_answers_go_before_frames_and_frames_before_objects() -> None:
    air = Air()
    air.node.send(HOST, b"object")
    air.node.send_frames(HOST, [seal_open(Header(5, 0), b"\x02")])
    air.host.send(NODE, content(10))
    air.send(HOST, room=9)
    air.node.handle_timeout(air.now)
    assert said(air.send(NODE, room=9)) == ["receipt", "frame", "offer", "0!"]


# Restarts


def restarted(air: Air, *names: str) -> Air:
    """The same ends after a restart of some, from what their events left on disk."""
    states = {name: state_of(air.events[name]) for name in names}
    again = Air(air.names, air.settings, states, air.now)
    for name in set(air.names) - set(names):
        again.ends[name] = air.ends[name]
    return again


def test_a_restarted_sender_asks_first_and_sends_what_is_lacking() -> None:
    air, payload = Air(losses=[lose(Symbol, index=i) for i in (1, 2)]), content(6 * ROOM)
    air.host.cancel(air.host.send(NODE, b"before"))
    air.host.send(NODE, payload)
    [offer, *_] = air.send(HOST, room=5)  # a burst is interrupted
    again = restarted(air, HOST)
    frames = again.run()
    assert frames[0].message == offer.message  # in the slot it had
    assert said(frames) == ["offer", "needs [4]", "6", "7", "8", "9!", "receipt"]
    assert again.got(NODE) == [payload]


def test_a_restarted_sender_sends_no_held_symbol_and_no_repair_again() -> None:
    air, payload = Air(), content(8 * ROOM)
    air.host.send(NODE, payload)
    air.losses = [lose(Symbol, index=i) for i in (1, 2, 8)]
    air.send(HOST, room=9)
    air.node.handle_timeout(air.now)
    air.send(NODE)
    air.send(HOST, room=1)  # repair symbol 8, which is lost
    frames = restarted(air, HOST).run()
    first = 8 + REPAIRS_BLOCK
    assert said(frames) == ["offer", "needs [2]", str(first), f"{first + 1}!", "receipt"]


def test_a_restarted_sender_begins_what_it_had_not_begun() -> None:
    air = Air()
    for seed in range(ACTIVE_MAX + 2):
        air.host.send(NODE, content(20, seed))
    air.take()
    again = restarted(air, HOST)
    frames = again.run()
    assert len(again.got(NODE)) == ACTIVE_MAX + 2
    assert Counter(said(frames))["0!"] == ACTIVE_MAX + 2


def test_a_restarted_receiver_says_what_it_lacks() -> None:
    air, payload = Air(), content(6 * ROOM)
    air.host.send(NODE, payload)
    air.send(HOST, room=5)
    frames = restarted(air, NODE).run()
    assert air.of(NODE, SymbolHeld)[-1].index == 3
    assert said(frames) == ["4", "5!", "receipt"]
    air = Air(losses=[lose(Symbol, index=4), lose_last])
    air.host.send(NODE, payload)
    air.send(HOST, room=9)
    again = restarted(air, NODE)
    assert said(again.run()) == ["needs [2]", "6", "7!", "receipt"]
    assert again.got(NODE) == [payload]


def test_a_restarted_receiver_knows_what_arrived() -> None:
    air = Air(losses=[lose(Status, HOST)])
    air.host.send(NODE, b"once")
    air.run(until=1.0)
    again = restarted(air, NODE)
    assert said(again.run()) == ["offer", "receipt"]
    assert (len(air.got(NODE)), again.got(NODE)) == (1, [])


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


# Whom nobody answers


def test_silence_is_asked_ever_more_seldom_and_then_given_up() -> None:
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


def test_a_receiver_stops_asking_and_then_forgets() -> None:
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


def test_a_symbol_begins_the_patience_of_its_receiver_anew() -> None:
    air = Air()
    air.node.receive_frame(HOST, sealed(Offer(0, 0, b"name", 90, 30)), 0.0)
    assert said(air.run(until=20_000.0)) == ["needs [3]"] * SILENCES_MAX
    air.node.receive_frame(HOST, sealed(Symbol(0, 0, bytes(30), True)), air.now)
    assert said(air.run()) == ["needs [2]"] * SILENCES_MAX


def test_a_word_begins_the_patience_of_its_sender_anew() -> None:
    air = Air(settings=replace(SETTINGS, give_up_s=10_000.0), deaf={NODE})
    air.host.send(NODE, content(3 * ROOM))
    air.run(until=9000.0)
    status = Status(object_name(0, content(3 * ROOM)), (1,))
    air.host.receive_frame(NODE, sealed(status), air.now)
    frames = air.run()
    assert said(frames)[:3] == ["3!", "offer", "offer"]
    assert frames[1].time_s - frames[0].time_s < 1.3 * 12
    assert 19_000 - 900 < frames[-1].time_s < 19_000 + 900


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


def test_a_question_that_waits_is_not_asked_once_its_offer_has_come() -> None:
    air = Air()
    air.node.receive_frame(HOST, sealed(Symbol(0, 0, bytes(30), False)), 0.0)
    air.node.handle_timeout(IDLE_S)
    assert air.node.has_frames  # and may not speak, by the law say
    air.node.receive_frame(HOST, sealed(Offer(0, 0, b"name", 90, 30)), IDLE_S)
    assert said(air.run(until=2 * IDLE_S)) == ["needs [2]"]


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


def test_a_sender_does_not_ask_while_its_own_question_waits() -> None:
    air = Air(losses=[lose(Symbol, index=0)])
    air.host.send(NODE, content(2 * ROOM))
    air.send(HOST, room=9)
    for hour in range(1, 10):
        air.host.handle_timeout(3600.0 * hour)
    assert air.host.next_timeout() is None
    air.node.handle_timeout(air.now)
    air.send(NODE)  # what it says now answers that question
    assert said(air.run()) == ["2!", "receipt"]


def test_a_status_within_a_burst_is_not_counted() -> None:
    air = Air(losses=[lose(Symbol, index=0)])
    air.host.send(NODE, content(6 * ROOM))
    air.send(HOST, room=4)
    status = Status(object_name(0, content(6 * ROOM)), (4,))
    air.host.receive_frame(NODE, sealed(status), air.now)
    assert said(air.run()) == ["3", "4", "5!", "needs [1]", "6!", "receipt"]


def test_a_receipt_ends_a_burst() -> None:
    air = Air()
    air.host.send(NODE, content(6 * ROOM))
    air.send(HOST, room=3)
    status = Status(object_name(0, content(6 * ROOM)), ())
    air.host.receive_frame(NODE, sealed(status), air.now)
    assert not air.host.has_frames
    assert [event.number for event in drain(air.host) if isinstance(event, Delivered)] == [0]


def test_a_status_that_had_to_wait_does_not_ask_for_what_has_come() -> None:
    air = Air(losses=[lose(Symbol, index=0), lose(Symbol, index=1)])
    air.host.send(NODE, content(3 * ROOM))
    air.send(HOST, room=9)
    air.node.handle_timeout(air.now)  # two are lacking, and the node may not send
    assert air.node.has_frames
    air.host.receive_frame(NODE, sealed(Status(object_name(0, content(3 * ROOM)), (2,))), air.now)
    assert said(air.send(HOST)) == ["3"]
    assert not air.node.has_frames
    assert said(air.run()) == ["4!", "receipt"]


# Strangers

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
def test_what_is_wrong_changes_nothing(frame: bytes, sender: str, victim: str) -> None:
    sent, events = transfer_with(frame, sender, victim)
    assert [type(event) for event in events] == [LinkRefused]
    assert sent == transfer_with(b"", "", NODE)[0]


def test_a_symbol_that_does_not_fit_changes_nothing() -> None:
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


def test_a_damaged_object_is_refused_and_fetched_again() -> None:
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


# Memory


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


def test_memory_for_objects_is_bounded_with_their_coefficients() -> None:
    air = Air()
    for peer in many(40):
        air.node.receive_frame(peer, sealed(Offer(0, 0, b"name", SOURCES_MAX, 1)), 0.0)
    held = air.node._in._incoming
    most = sum(SOURCES_MAX * (1 + GENERATION_MAX) for _ in held)
    assert 0 < most <= SETTINGS.incoming_bytes_max


def test_what_waited_longest_makes_room() -> None:
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


def test_offers_do_not_take_the_room_of_what_another_has_sent() -> None:
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


def test_early_symbols_are_bounded() -> None:
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


def test_symbols_that_nobody_offered_push_out_no_object() -> None:
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


def test_of_each_peer_the_last_names_are_remembered() -> None:
    air = Air()
    for seed in range(ARRIVED_MAX + 40):
        air.host.send(NODE, content(8, seed))
    air.run()
    assert [len(names) for names in air.node._in._arrived.values()] == [ARRIVED_MAX]


def test_one_symbol_of_a_code_serves_a_transfer_from_anywhere() -> None:
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
