"""The reliable link, sans-I/O: whole objects over frames that get lost, with few frames more.

An object is offered, then sent as source symbols, one a frame; its receiver says how many symbols
it lacks, and gets as many repair symbols as that, until it has all. Feedback is a frame of about
20 bytes per burst. Verbs and order are those of the swarm: frames or a timeout in, events out and
onto disk, then `frames_to_send`. Times in seconds of any clock that does not jump. No frame is
believed before its seal is opened; what is sealed end to end passes by.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ternmesh.errors import TernmeshError, WireError
from ternmesh.link.code import SOURCES_MAX
from ternmesh.link.coder import Coder, RandomLinear
from ternmesh.link.frames import (
    SIZE_MAX,
    SYMBOL_HEAD,
    Offer,
    Question,
    Status,
    Symbol,
    is_link,
    read,
)
from ternmesh.link.inbound import Inbound
from ternmesh.link.outbound import LANE_SLOTS, Outbound
from ternmesh.link.records import (
    FrameArrived,
    LinkCountersReserved,
    LinkEvent,
    LinkRefused,
    LinkState,
    SealsChanged,
)
from ternmesh.trust.keyed import FRAME_MIN, NEIGHBOUR
from ternmesh.trust.keys import SUITE_END
from ternmesh.trust.sealing import OpenSealing, Sealing
from ternmesh.wire import seal

MTU_MIN = 32
COUNTERS_BLOCK = 4096
FRAMES_MAX = 256  # handed out at once
AS_IS_MAX = 4096  # frames that wait


class LinkFull(TernmeshError):
    """Too much waits already; the caller keeps its object and offers it later."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What both ends of a link agree on. `contexts` are those of peers that stand for several.

    `idle_s` is a silence after which a burst is taken to be over: some frames long, and longer
    than a turnaround. Questions are repeated ever more seldom, at most every `longest_s`; after
    `give_up_s` in which nobody who lacks it comes on an object is given up; a broadcast after
    `make_way_s` already, where it keeps others from beginning, and one on its way in, where others
    need its room. Answers to a broadcast are spread over `spread_s`.
    """

    mtu: int
    idle_s: float = 4.0
    longest_s: float = 600.0
    give_up_s: float = 7 * 86_400.0
    make_way_s: float = 7200.0
    spread_s: float = 0.0
    object_max: int = 1 << 22
    incoming_bytes_max: int = 1 << 23
    outgoing_bytes_max: int = 1 << 24
    outgoing_max: int = 256
    contexts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError for frames in which the link has no room, and objects that no offer names."""
        if not MTU_MIN <= self.mtu <= seal.FRAME_MAX:
            raise ValueError(f"mtu {self.mtu}: it is {MTU_MIN} to {seal.FRAME_MAX} bytes")
        if not 0 < self.object_max <= SIZE_MAX:
            raise ValueError(f"object_max {self.object_max}: it is 1 to {SIZE_MAX} bytes")

    @property
    def symbol_room(self) -> int:
        """The largest symbol that fits in a frame."""
        return self.mtu - seal.OVERHEAD - SYMBOL_HEAD

    @property
    def size_max(self) -> int:
        """The largest object that can be sent."""
        return min(self.object_max, self.outgoing_bytes_max, SOURCES_MAX * self.symbol_room)


class Link:
    """One end. `rng` only jitters timers. ValueError where frames are too short for keys."""

    def __init__(
        self,
        settings: LinkSettings,
        state: LinkState,
        rng: np.random.Generator,
        coder: Coder | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        coder = coder or RandomLinear()
        self._settings, self._sealing = settings, sealing or OpenSealing()
        if self._sealing.asks and settings.mtu < FRAME_MIN:
            raise ValueError(f"mtu {settings.mtu}: with keys it is at least {FRAME_MIN} bytes")
        self._events: deque[LinkEvent] = deque()
        self._out = Outbound(settings, state, rng, coder, self._events)
        self._in = Inbound(settings, state, rng, coder, self._events)
        self._as_is: deque[tuple[str, str | None, bytes]] = deque()
        self._words: dict[str, tuple[int, bytes]] = {}  # the newest of the seals' own to each peer
        self._counter = self._limit = state.counter

    # The verbs

    def start(self, now: float) -> None:
        """Begin: what was under way before a restart goes on."""
        self._out.start(now)
        self._in.start(now)
        self._ask(now)

    def send(
        self,
        peer: str,
        payload: bytes,
        *,
        receivers: Sequence[str] = (),
        priority: int = 1,
        key: str | None = None,
        keep: int | None = None,
    ) -> int:
        """Queue an object that must arrive whole; returns its number.

        A smaller `priority` goes first. An object of the same peer and `key` of which nothing was
        sent yet is superseded, and so are the oldest such ones of the same peer beyond `keep`.
        `receivers` are those of a broadcast. Where there is no room, such an object of the peer
        that claims most makes way, if this one claims less or `keep` is given. LinkFull; ValueError
        for an object that is empty or too large.
        """
        most = self._settings.size_max
        if not 0 < len(payload) <= most:
            raise ValueError(f"an object is of 1 to {most} bytes here, not {len(payload)}")
        number = self._out.queue(peer, payload, tuple(receivers) or (peer,), priority, key, keep)
        if number is None:
            raise LinkFull("too many objects wait for delivery: offer this one later")
        return number

    def send_frames(self, peer: str, frames: Sequence[bytes], key: str | None = None) -> int:
        """Send frames once, as they are: whatever arrives counts. Returns how many had room.

        Frames of the same peer and `key` that still wait are superseded.
        """
        if key is not None:
            self._as_is = deque(item for item in self._as_is if item[:2] != (peer, key))
        taken = frames[: max(0, AS_IS_MAX - len(self._as_is))]
        self._as_is.extend((peer, key, frame) for frame in taken)
        return len(taken)

    def cancel(self, number: int) -> None:
        """Forget an object that nobody needs any more."""
        self._out.cancel(number)

    def receive_frame(self, peer: str, frame: bytes, now: float) -> None:
        """Take a frame. What is wrong becomes a `LinkRefused` event and changes nothing.

        What is sealed end to end is for whoever is above the link, and its seal not ours to open.
        """
        try:
            if seal.suite_of(frame) == SUITE_END:
                self._events.append(FrameArrived(peer, frame))
            else:
                self._open(peer, frame, now)
        except WireError as error:
            self._events.append(LinkRefused(peer, error.reason))
        self._ask(now)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        times = (self._out.next_timeout(), self._in.next_timeout(), self._sealing.next_due())
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Do what is due: ask again, go on with those who have answered, give up."""
        self._out.handle_timeout(now)
        self._in.handle_timeout(now)
        self._ask(now)

    def next_event(self) -> LinkEvent | None:
        """The next thing to make durable or act on, until None."""
        if not self._events:
            self._out.begin()
        if self._events:
            return self._events.popleft()
        if not self.has_frames:
            return None  # Windows may wait: nobody repeats with gain what has led to nothing.
        for peer in self._out.addressees:
            self._sealing.meet(peer)
        if changes := self._sealing.changes():
            return SealsChanged(changes)
        if self._limit - self._counter < FRAMES_MAX:
            self._limit += COUNTERS_BLOCK
            return LinkCountersReserved(self._limit)
        return None

    @property
    def has_frames(self) -> bool:
        """Whether anything wants to leave now."""
        waiting = self._words or self._as_is
        return bool(waiting) or self._in.has_frames or self._out.has_frames

    def frames_to_send(self, now: float, room: int = FRAMES_MAX) -> list[tuple[str, bytes]]:
        """At most `room` frames in the order of their worth: answers, frames as is, objects.

        Before all of them goes what the seals say. A frame for whom there is no key is lost.
        """
        room = min(room, FRAMES_MAX, self._limit - self._counter)
        frames: list[tuple[str, bytes]] = []
        for _ in range(FRAMES_MAX):
            if len(frames) >= room or not self.has_frames:
                break
            frames += self._next_frames(now, room - len(frames))
        return frames

    def _next_frames(self, now: float, room: int) -> list[tuple[str, bytes]]:
        frames = []
        for peer in list(self._words)[:room]:
            context, body = self._words.pop(peer)
            frames += self._seal(peer, context, body)
        for peer, body in self._in.bodies(room - len(frames)):
            frames += self._seal(peer, self._context(peer), body)
        while self._as_is and len(frames) < room:
            peer, _, frame = self._as_is.popleft()
            frames.append((peer, frame))
        for peer, body in self._out.bodies(now, room - len(frames)):
            frames += self._seal(peer, self._context(peer), body)
        return frames

    def _ask(self, now: float) -> None:
        """Note what the seals want said."""
        self._words |= {peer: (context, body) for peer, context, body in self._sealing.due(now)}

    def _open(self, peer: str, frame: bytes, now: float) -> None:
        header, body = self._sealing.open(peer, frame)
        if is_link(body):
            if header.context not in (NEIGHBOUR, seal.BROADCAST):
                raise WireError("link", "what a link says is between neighbours, or for all")
            message, is_broadcast = read(body), header.context == seal.BROADCAST
            if is_broadcast and not _may_be_for_all(message):
                raise WireError("link", "what is said to all is about what all are to have")
            self._take(peer, message, is_broadcast, now)
        elif header.suite == seal.SUITE_OPEN:
            self._events.append(FrameArrived(peer, frame))
        elif not self._sealing.is_own(header.context, body):
            raise WireError("kind", f"a link takes no body of kind {body[0]}")

    def _take(
        self,
        peer: str,
        message: Offer | Symbol | Status | Question,
        is_broadcast: bool,
        now: float,
    ) -> None:
        match message:
            case Offer():
                self._in.offered(peer, message, is_broadcast, now)
            case Symbol():
                self._in.symbol(peer, message, is_broadcast, now)
            case Status():
                self._out.heard(peer, message, now)
            case Question():
                self._out.asked(peer, message)

    def _context(self, peer: str) -> int:
        return self._settings.contexts.get(peer, NEIGHBOUR)

    def _seal(self, peer: str, context: int, body: bytes) -> list[tuple[str, bytes]]:
        """The frame with this body, or none."""
        try:
            frame = self._sealing.seal(peer, context, self._counter, body)
        except WireError as error:
            self._events.append(LinkRefused(peer, error.reason))
            return []
        self._counter += 1
        return [(peer, frame)]


def _may_be_for_all(message: Offer | Symbol | Status | Question) -> bool:
    """Who holds a broadcast's key could speak to all: not into what is between two."""
    return isinstance(message, Offer | Symbol) and message.slot >= LANE_SLOTS
