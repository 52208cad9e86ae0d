"""Links wired by hand: what is lost is chosen, and what is said is counted frame by frame."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeVar

import numpy as np

from ternmesh.link import messages
from ternmesh.link.events import (
    Delivered,
    GaveUp,
    InRecord,
    LinkEvent,
    LinkState,
    ObjectArrived,
    OutRecord,
    Queued,
    RepairsReserved,
    SymbolHeld,
    TransferBegun,
)
from ternmesh.link.link import Link
from ternmesh.link.settings import LinkSettings
from ternmesh.security.sealing import CountersReserved
from ternmesh.wire.frame import BROADCAST, FRAME_OVERHEAD, Header, open_seal, seal_open

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
    message: messages.Message | bytes


Rule = Callable[[str, messages.Message | bytes], bool]  # a receiver, and what it would hear


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
            message = messages.read_message(body) if messages.is_link(body) else frame
            self.sent.append(Sent(self.now, sender, peer, message))
            for name in self.ends:
                if name != sender and peer in (name, ALL) and not self._loses(name, message):
                    self.ends[name].receive_frame(sender, frame, self.now)
        self.take()
        return self.sent[first:]

    def _loses(self, receiver: str, message: messages.Message | bytes) -> bool:
        rule = next((rule for rule in self.losses if rule(receiver, message)), None)
        if rule is not None:
            self.losses.remove(rule)
        return rule is not None or receiver in self.deaf

    def run(self, until: float = inf) -> list[Sent]:
        """Everything that happens until then, answers first; what was sent meanwhile."""
        first = len(self.sent)
        run_ends(self, until)
        self.now = max(self.now, until) if until < inf else self.now
        return self.sent[first:]

    def got(self, name: str) -> list[bytes]:
        """The objects that arrived."""
        return [event.payload for event in self.of(name, ObjectArrived)]

    def of(self, name: str, kind: type[Event]) -> list[Event]:
        """Events of one end of one kind."""
        return [event for event in self.events[name] if isinstance(event, kind)]


def run_ends(air: Any, until: float) -> None:
    """Everything that happens to the links of an `Air` until then, answers first."""
    while True:
        air.take()
        timeouts = [t for end in air.ends.values() if (t := end.next_timeout()) is not None]
        due = min(timeouts, default=inf)
        speaker = next((n for n in reversed(air.ends) if air.ends[n].has_frames), None)
        if speaker is not None and due > air.now:
            air.send(speaker)
        elif due < inf and due <= until:
            air.now = max(air.now, due)
            for end in air.ends.values():
                end.handle_timeout(air.now)
        else:
            return


def drain(end: Link) -> Iterator[LinkEvent]:
    while (event := end.next_event()) is not None:
        yield event


def lose(kind: type, receiver: str = NODE, index: int | None = None) -> Rule:
    def rule(name: str, message: messages.Message | bytes) -> bool:
        is_it = index is None or (isinstance(message, messages.Symbol) and message.index == index)
        return name == receiver and isinstance(message, kind) and is_it

    return rule


def lose_last(name: str, message: messages.Message | bytes) -> bool:
    return name == NODE and isinstance(message, messages.Symbol) and message.is_last


def said(frames: Sequence[Sent], sender: str = "") -> list[str]:
    """What was said, in short: kinds, indexes of symbols, needs."""
    return [short(each.message) for each in frames if each.sender == sender or not sender]


def short(message: messages.Message | bytes) -> str:
    match message:
        case messages.Offer():
            return "offer"
        case messages.Symbol():
            return f"{message.index}{'!' if message.is_last else ''}"
        case messages.Status():
            return f"needs {list(message.needs)}" if message.needs else "receipt"
        case messages.Question():
            return "question"
    return "frame"


def sealed(message: messages.Message, address: int = 1) -> bytes:
    return seal_open(Header(address, 0), messages.write_message(message))


def state_of(events: Sequence[LinkEvent]) -> LinkState:
    """What a disk would have of these events, all committed; for one peer and no drops."""
    records: dict[int, OutRecord] = {}
    symbols: dict[messages.Offer, list[tuple[int, bytes]]] = {}
    counter = number = 0
    for event in events:
        match event:
            case CountersReserved():
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


def says(air: Air, name: str, needs: tuple[int, ...]) -> None:
    """Whatever it holds: this of all that is under way."""
    for sending in list(air.host._out._active):
        frame = sealed(messages.Status(sending.offer.name, needs))
        air.host.receive_frame(name, frame, air.now)
