"""The reliable link: its frames, one end whatever comes, and two ends over a bad radio."""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from bench.fuzz_targets.seals import fleet, member
from bench.fuzz_targets.target import Target, joined, number, parts, same
from bench.fuzz_targets.trust import someone
from ternmesh.link import code, frames
from ternmesh.link.frames import Offer, Question, Status, Symbol
from ternmesh.link.link import Link, LinkFull, LinkSettings
from ternmesh.link.outbound import object_name
from ternmesh.link.records import ARRIVED_MAX, Delivered, LinkEvent, LinkState, ObjectArrived
from ternmesh.trust.identity import Identity, Role
from ternmesh.trust.keyed import NEIGHBOUR, KeyedSealing
from ternmesh.trust.keys import SUITE_HOP
from ternmesh.trust.neighbours import Behind, Members
from ternmesh.trust.roster import Roster, RosterState
from ternmesh.trust.session import SealingState
from ternmesh.wire import seal

_OPEN = LinkSettings(64, object_max=4096, incoming_bytes_max=8192, outgoing_bytes_max=8192)
_KEYED = replace(_OPEN, mtu=160)
_STEPS_MAX = 64
_OWN = bytes(100)  # what the end sends
_SIZE, _SYMBOL = 60, 20  # of what it is sent
_THEIRS = bytes(range(_SIZE))
_BURST, _AIR_MAX = 16, 64  # frames
_TIMES = 3  # so much longer than an item is an object
_CALM_STEPS = 200  # timers that run out until all is settled on a radio that loses nothing


def _check_frames(data: bytes) -> None:
    if data and frames.is_link(data):
        same(frames.write(frames.read(data), len(data)), data, "a frame of the link")


def _bodies() -> list[bytes]:
    messages: list[frames.Message] = [
        Offer(3, 1, b"name", _SIZE, _SYMBOL),
        Symbol(3, 0, bytes(_SYMBOL), is_last=False),
        Symbol(3, 1, bytes(_SYMBOL), is_last=True),
        Status(b"name", (1, 0, 0, 2)),
        Question(3),
    ]
    return [frames.write(message) for message in messages]


class _Promises:
    """What an end has said, and that it keeps to it: an object arrives once, whole."""

    def __init__(self) -> None:
        self.arrived: Counter[tuple[str, bytes]] = Counter()
        self.payloads: list[bytes] = []
        self.delivered: set[int] = set()

    def note(self, event: LinkEvent) -> None:
        """AssertionError where an object comes again that came just before."""
        match event:
            case ObjectArrived():
                key = event.peer, event.name
                self.arrived[key] += 1
                self.payloads.append(event.payload)
                if self.arrived[key] > 1 and len(self.payloads) < ARRIVED_MAX:
                    raise AssertionError("an object arrived twice")
            case Delivered():
                same(event.number in self.delivered, False, "whether it was delivered before")
                self.delivered.add(event.number)


def _check_link(data: bytes) -> None:
    """A neighbour without keys says anything, under a right seal and under none."""
    link, promises = Link(_OPEN, LinkState(), np.random.default_rng(0)), _Promises()
    link.start(0.0)
    link.send("ada", _OWN)
    now, is_whole = 0.0, False
    for step, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = seal.BROADCAST if choice & 4 else seal.ENROL if choice & 2 else NEIGHBOUR
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        link.receive_frame(("ada", "bob")[choice & 1], frame, now)
        is_whole |= body == _RECEIPT or choice & 8 != 0
        _settle(link, now, promises)
        link.frames_to_send(now, 8)
    same(bool(promises.delivered) <= is_whole, True, "whether a receipt came before")


_RECEIPT = frames.write(Status(object_name(0, _OWN), ()))


def _settle(link: Link, now: float, promises: _Promises) -> None:
    if (due := link.next_timeout()) is not None and due <= now:
        link.handle_timeout(now)
    while (event := link.next_event()) is not None:
        promises.note(event)


def _conversations() -> Iterator[bytes]:
    yield joined(b"\x10" + body for body in _bodies())
    name, mine = object_name(1, _THEIRS), object_name(0, _OWN)
    layout = code.Layout(_SIZE, _SYMBOL)
    offer = Offer(3, 1, name, _SIZE, _SYMBOL)
    symbols = [
        Symbol(3, index, data, is_last=index == 2)
        for index, data in enumerate(code.encode(layout, name, _THEIRS, range(4)))
    ]
    whole: list[frames.Message] = [offer, *symbols[:3]]
    whole += [offer, Status(mine, (1,)), Status(mine, ())]
    early: list[frames.Message] = [symbols[3], Question(0), symbols[1], offer, symbols[0]]
    early += [symbols[2], symbols[0], offer]
    for said in (whole, early):
        for choice, slot in ((b"\x10", 3), (b"\x94", 9)):
            yield joined(choice + frames.write(_in_slot(message, slot)) for message in said)
    twice = [_in_slot(message, slot) for slot in (3, 4) for message in whole]
    yield joined(b"\x10" + frames.write(message) for message in twice)


def _in_slot(message: frames.Message, slot: int) -> frames.Message:
    return replace(message, slot=slot) if isinstance(message, Offer | Symbol) else message


class _Station:
    """One end of a radio with hop keys, what it was asked to send, and what arrived there."""

    def __init__(self, own: Identity, known: Members, peer: str, hub: str | None) -> None:
        self.peer, self.promises = peer, _Promises()
        self.sent: dict[int, bytes] = {}
        instance = own.public.fingerprint[:8]
        self.sealing = KeyedSealing(own, known, SUITE_HOP, instance, 0, SealingState(), hub=hub)
        self.link = Link(_KEYED, LinkState(), np.random.default_rng(0), sealing=self.sealing)
        self.link.start(0.0)

    def send(self, payload: bytes) -> None:
        """Queue an object, if there is room."""
        with suppress(LinkFull):
            self.sent[self.link.send(self.peer, payload)] = payload

    def leave(self, now: float) -> list[bytes]:
        """Do what is due; the frames that leave now."""
        _settle(self.link, now, self.promises)
        return [frame for _, frame in self.link.frames_to_send(now, _BURST)]


class _Radio:
    """A gateway, a board behind it, and the frames between them."""

    def __init__(self) -> None:
        gateway, state = _gateway(), _members()
        self.gateway = _Station(gateway, Roster(state), "ada", None)
        self.board = _Station(member(), Behind(Roster(state), gateway.public.name), "host", "host")
        self.air: deque[tuple[_Station, bytes]] = deque(maxlen=_AIR_MAX)
        self.lied = False

    def step(self, choice: int, said: bytes, now: float) -> None:
        """One thing that happens."""
        sender, receiver = self._ends(choice)
        match choice & 7:
            case 0 | 1 | 2 if self.air:  # arrives, is lost, arrives and is heard again later
                to, frame = self.air.popleft()
                if choice & 7 != 1:
                    self._arrive(to, frame, now)
                if choice & 7 == 2:
                    self.air.append((to, frame))
            case 3:  # a stranger
                self._arrive(receiver, said, now)
            case 4:  # one with the right keys, who says anything
                self.lied = True
                self._lie(sender, receiver, said, now)
            case 5:
                sender.send((said or b"\0") * _TIMES)
            case 6 if self.air:  # damage on the way
                to, frame = self.air.popleft()
                damaged = bytearray(frame)
                damaged[number(said, 0, 1) % len(frame)] ^= number(said, 1, 1)
                self._arrive(to, bytes(damaged), now)
            case 7 if self.air:  # out of order
                self._arrive(*self.air.pop(), now)
        self.leave(now)

    def _ends(self, choice: int) -> tuple[_Station, _Station]:
        is_down = bool(choice & 8)
        return (self.gateway, self.board) if is_down else (self.board, self.gateway)

    def _arrive(self, to: _Station, frame: bytes, now: float) -> None:
        to.link.receive_frame(to.peer, frame, now)

    def _lie(self, sender: _Station, receiver: _Station, said: bytes, now: float) -> None:
        is_for_all = sender is self.gateway and number(said, 0, 1) & 1
        context = seal.BROADCAST if is_for_all else NEIGHBOUR
        link = sender.link
        frame = sender.sealing.seal(sender.peer, context, link._counter, said[1:] or b"\0")
        link._counter += 1
        self._arrive(receiver, frame, now)

    def leave(self, now: float) -> None:
        """What wants to leave is in the air then."""
        for sender, receiver in (self._ends(0), self._ends(8)):
            self.air += [(receiver, frame) for frame in sender.leave(now)]
            if self.lied:
                continue
            theirs = receiver.promises.payloads
            for index in sender.promises.delivered:
                same(sender.sent[index] in theirs, True, "whether what was delivered is there")

    def calm_down(self, now: float) -> None:
        """From now on all arrives: every object once, and both ends know."""
        stations = self._ends(0)
        for _ in range(_CALM_STEPS):
            while self.air:
                self._arrive(*self.air.popleft(), now)
                self.leave(now)
            times = [time for s in stations if (time := s.link.next_timeout()) is not None]
            if not times:
                break
            now = max(now, min(times))
            self.leave(now)
        for sender, receiver in (self._ends(0), self._ends(8)):
            arrived, sent = receiver.promises.payloads, sender.sent
            same(sorted(arrived), sorted(sent.values()), "the objects that arrived")
            same(sender.promises.delivered, sent.keys(), "the objects that are known to be there")


def _gateway() -> Identity:
    return someone("gateway", Role.GATEWAY)


@cache
def _members() -> RosterState:
    known = Roster(fleet())
    known.enrol(_gateway().public)
    return known.state


def _check_keyed(data: bytes) -> None:
    """A radio that loses, repeats, swaps and damages frames; strangers, and ends that lie."""
    radio, now = _Radio(), 0.0
    radio.leave(now)
    for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice = number(item, 0, 1)
        now += float(choice >> 4)
        radio.step(choice, item[1:], now)
    if not radio.lied:
        radio.calm_down(now)


def _radio_days() -> Iterator[bytes]:
    hour = [b"\x00", b"\x08"] * 6
    yield joined([*hour, b"\x0dpayload", b"\x05" + bytes(range(99)), *hour, *hour, b"\x50"])
    yield joined([b"\x0dpayload" * 9, b"\x01", b"\x02", *hour, b"\x07", b"\x06\x03\x01", *hour])
    said = [b"\x0c\x00" + body for body in _bodies()] + [b"\x0c\x01" + b for b in _bodies()]
    yield joined([*hour, *said, b"\x04\x00" + _RECEIPT, b"\x03" + bytes(30), *hour])


TARGETS = (
    Target("link_frames", _check_frames, _bodies),
    Target("link", _check_link, _conversations),
    Target("link_keyed", _check_keyed, _radio_days, memory_max=2 << 20),
)
