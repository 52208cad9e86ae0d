"""The reliable link, sans-I/O: delivers whole objects over a channel that loses frames.

An object is offered, then sent as source symbols, one in a frame. Its receiver answers with a
status: how many symbols it lacks. It gets as many repair symbols, until it lacks none. A status is
a frame of about 20 bytes for each burst.

The program calls `receive_frame` and `handle_timeout`, takes all events with `next_event`, makes
them durable, and sends `frames_to_send`. Times are seconds of any clock that does not jump. Every
frame of the link is sealed from neighbour to neighbour; frames that are sealed end to end pass.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from ternmesh.errors import TernmeshError, WireError
from ternmesh.link import events
from ternmesh.link.messages import Message, Offer, Question, Status, Symbol, is_link, read_message
from ternmesh.link.receiver import Receiver
from ternmesh.link.sender import LANE_SLOTS, Sender
from ternmesh.link.settings import LinkSettings
from ternmesh.security.key_derivation import SUITE_END
from ternmesh.security.keyed_sealing import FRAME_MIN, NEIGHBOUR
from ternmesh.security.notices import is_notice
from ternmesh.security.sealing import CountersReserved, OpenSealing, Sealing, SecurityChanged
from ternmesh.timers import earliest
from ternmesh.wire.frame import BROADCAST, SUITE_OPEN, UNASSIGNED, suite_of

COUNTERS_BLOCK = 4096  # seal counters that are reserved at once
FRAMES_MAX = 256  # handed out at once
UNRELIABLE_MAX = 4096  # frames that wait; more where nothing waits


class LinkFull(TernmeshError):
    """The queue is full: the caller sends its object again later."""


class Link:
    """One end. `rng` only jitters timers. ValueError where frames are too short for keys."""

    def __init__(
        self,
        settings: LinkSettings,
        state: events.LinkState,
        rng: np.random.Generator,
        sealing: Sealing | None = None,
    ) -> None:
        self._settings = settings
        self._sealing = sealing or OpenSealing()
        if self._sealing.is_keyed and settings.mtu < FRAME_MIN:
            raise ValueError(f"mtu {settings.mtu}: with keys it is at least {FRAME_MIN} bytes")
        self._events: deque[events.LinkEvent] = deque()
        self._out = Sender(settings, state, rng, self._events)
        self._in = Receiver(settings, state, rng, self._events)
        self._unreliable: dict[object, tuple[str, bytes]] = {}
        # The newest message of the sealing itself to each peer: address, body
        self._sealing_messages: dict[str, tuple[int, bytes]] = {}
        self._counter = state.counter  # of the next frame
        self._limit = state.counter  # counters below it are reserved on disk

    # What the program calls

    def start(self, now: float) -> None:
        """Begin: continue the transfers from before a restart."""
        self._out.start(now)
        self._in.start(now)
        self._ask(now)

    def send(
        self, peer: str, payload: bytes, *, receivers: Sequence[str] = (), keep: int | None = None
    ) -> int:
        """Queue an object that must arrive whole. Return its number.

        The oldest unsent objects of the same peer beyond `keep` are superseded. `receivers` are
        those of a broadcast. Where there is no room, an unsent object of the peer that uses most
        is given up, if this peer uses less or `keep` is given.
        LinkFull; ValueError for an object that is empty or too large.
        """
        most = self._settings.size_max
        if not 0 < len(payload) <= most:
            raise ValueError(f"an object is of 1 to {most} bytes here, not {len(payload)}")
        number = self._out.queue(peer, payload, tuple(receivers) or (peer,), keep)
        if number is None:
            raise LinkFull("too many objects wait for delivery: offer this one later")
        return number

    def send_frames(self, peer: str, frames: Sequence[bytes]) -> None:
        """Send frames once each, unreliably. LinkFull, and none is taken, where too many wait.

        One that `joins` takes the place of an older one of its kind.
        """
        if self._unreliable and len(self._unreliable) + len(frames) > UNRELIABLE_MAX:
            raise LinkFull("too many frames wait for the bearer: offer these later")
        for frame in frames:  # they are sealed: the length stands for the kind
            key = (peer, len(frame)) if joins(frame) else object()
            self._unreliable[key] = peer, frame

    def cancel(self, number: int) -> None:
        """Stop sending an object that is not needed any more."""
        self._out.cancel(number)

    def receive_frame(self, peer: str, frame: bytes, now: float) -> None:
        """Handle a frame. A wrong frame becomes a `LinkRefused` event and changes nothing.

        A frame that is sealed end to end is for the protocol above: it passes unopened. So do the
        host's notices, which have signatures in place of a seal.
        """
        try:
            if suite_of(frame) == SUITE_END or is_notice(frame):
                self._events.append(events.FrameArrived(peer, frame))
            else:
                self._open(peer, frame, now)
        except WireError as error:
            self._events.append(events.LinkRefused(peer, error.reason))
        self._ask(now)

    def next_timeout(self) -> float | None:
        """Return the time when `handle_timeout` is due; None if it is not needed."""
        return earliest(self._out.next_timeout(), self._in.next_timeout(), self._sealing.next_due())

    def handle_timeout(self, now: float) -> None:
        """Offer again, continue with receivers that answered, or stop transfers, as due."""
        self._out.handle_timeout(now)
        self._in.handle_timeout(now)
        self._ask(now)

    def next_event(self) -> events.LinkEvent | None:
        """Return the next event to save or handle; None if there are no more."""
        if not self._events:
            self._out.begin()
        if self._events:
            return self._events.popleft()
        if not self.has_frames:
            return None  # Replay windows may wait: a replay of what changed nothing gains nothing.
        if changes := self._sealing.changes():
            return SecurityChanged(changes)
        if self._limit - self._counter < FRAMES_MAX:
            self._limit += COUNTERS_BLOCK
            return CountersReserved(self._limit)
        return None

    @property
    def has_frames(self) -> bool:
        waiting = self._sealing_messages or self._unreliable
        return bool(waiting) or self._in.has_frames or self._out.has_frames

    def frames_to_send(self, now: float, room: int = FRAMES_MAX) -> list[tuple[str, bytes]]:
        """Return at most `room` frames: keys, answers, unreliable frames, objects.

        A frame for a peer without a key is lost.
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
        for peer in list(self._sealing_messages)[:room]:
            address, body = self._sealing_messages.pop(peer)
            frames += self._seal(peer, address, body)
        for peer, body in self._in.bodies(room - len(frames)):
            frames += self._seal(peer, self._address(peer), body)
        while self._unreliable and len(frames) < room:
            frames.append(self._unreliable.pop(next(iter(self._unreliable))))
        for peer, body in self._out.bodies(now, room - len(frames)):
            frames += self._seal(peer, self._address(peer), body)
        return frames

    def _ask(self, now: float) -> None:
        """Queue the handshake and key messages of the sealing."""
        self._sealing_messages |= {
            peer: (address, body) for peer, address, body in self._sealing.due(now)
        }

    def _open(self, peer: str, frame: bytes, now: float) -> None:
        header, body = self._sealing.open(peer, frame)
        if is_link(body):
            if header.address not in (NEIGHBOUR, BROADCAST):
                raise WireError("link", "a body of the link has another address")
            message, is_broadcast = read_message(body), header.address == BROADCAST
            # Every member holds the broadcast key: it must not reach transfers between two.
            is_for_all = isinstance(message, Offer | Symbol) and message.slot >= LANE_SLOTS
            if is_broadcast and not is_for_all:
                raise WireError("link", "a broadcast is no offer or symbol of a broadcast object")
            self._take(peer, message, is_broadcast, now)
        elif header.suite == SUITE_OPEN:
            self._events.append(events.FrameArrived(peer, frame))
        elif not self._sealing.is_own(header.address, body):
            raise WireError("kind", f"a link takes no body of kind {body[0]}")

    def _take(self, peer: str, message: Message, is_broadcast: bool, now: float) -> None:
        match message:
            case Offer():
                self._in.receive_offer(peer, message, is_broadcast, now)
            case Symbol():
                self._in.receive_symbol(peer, message, is_broadcast, now)
            case Status():
                self._out.receive_status(peer, message, now)
            case Question():
                self._out.receive_question(peer, message)

    def _address(self, peer: str) -> int:
        return self._settings.addresses.get(peer, NEIGHBOUR)

    def _seal(self, peer: str, address: int, body: bytes) -> list[tuple[str, bytes]]:
        """Return the sealed frame with this body; an empty list without a key."""
        try:
            frame = self._sealing.seal(peer, address, self._counter, body)
        except WireError as error:
            self._events.append(events.LinkRefused(peer, error.reason))
            return []
        self._counter += 1
        return [(peer, frame)]


def joins(frame: bytes) -> bool:
    """Whether a frame joins a node to the run (keys, hellos, answers): its sender repeats it."""
    return frame[1:3] == UNASSIGNED.to_bytes(2, "little") and suite_of(frame) == SUITE_END
