"""A bearer of small frames that get lost, made into one of whole messages: the link around it.

A frame alone that fits the bearer is sent as it is, once. Several, or one that is too long,
travel as an object (`ternmesh.link`), which arrives whole or not at all, over restarts of both
sides; or, where whatever arrives counts, each as it is, once. All of it happens in the thread that
calls `send` and `receive`. Where the fleet has keys the link is sealed from neighbour to neighbour.
"""

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from ternmesh.errors import WireError
from ternmesh.link.link import Link, LinkFull, LinkSettings
from ternmesh.link.records import (
    SUPERSEDED,
    Delivered,
    FrameArrived,
    GaveUp,
    LinkEvent,
    LinkRefused,
    LinkState,
    ObjectArrived,
    SealsChanged,
)
from ternmesh.swarm.events import OTHER, known_reason, refusals
from ternmesh.swarm.pace import Pace
from ternmesh.trust.sealing import Change, OpenSealing, Sealing
from ternmesh.wire import seal
from ternmesh.wire.frame import body_of
from transports import batch
from transports.base import (
    ALL,
    HOST,
    Arrival,
    Busy,
    FrameTooLarge,
    NotConnected,
    Transport,
    UnknownPeer,
)

WAIT_MAX_S = 0.25  # how long the bearer is listened to before timers are looked at again
ROOM = 1  # frames that are taken from the link at once: what it says may be out of date soon
DELIVERED_MAX = 256
PASSED_MAX = 4096
REFUSED_PEERS_MAX, REASONS_MAX = 256, 32  # that are counted by name
HEARD_MAX = 256  # nodes that nobody has named, and that broadcasts are for since they were heard
ORDINARY = ("seal", "sync", "replay")  # of radios, and of ends that meet
UNSENT_MAX = 8  # objects for one node that wait: what it asks for again is newer
KEEP_S = 60.0  # an object stays in the inbox so long after it was handed out: see `receive`
KEEP_BYTES_MAX = 1 << 23  # or until younger ones of so many bytes are there

Name = tuple[str, bytes]  # a peer, and what an object for it says

_logger = logging.getLogger(__name__)


class LinkLog(Protocol):
    """What keeps a link's state: `ternmesh_store.link_store.LinkStore`."""

    def open(self) -> None:
        """Take it, or begin it."""

    def close(self) -> None:
        """Give it back; what was not committed is lost."""

    def load(self) -> LinkState:
        """The state of the last commit."""

    def record(self, event: LinkEvent) -> None:
        """Write what of an event must survive."""

    def commit(self) -> None:
        """Make it durable."""

    def inbox(self, after: int) -> list[tuple[int, str, bytes]]:
        """Objects that arrived and were not taken, of places beyond `after`."""

    def take(self, place: int) -> None:
        """Forget one of them."""


class LinkKeys(Protocol):
    """What seals a link, and keeps where its seals stand: `ternmesh_store.keyring.HopKeys`."""

    def sealing(self, counter: int) -> Sealing:
        """The seals of this process; `counter` is the first that was never reserved."""

    def record(self, changes: Sequence[Change]) -> None:
        """Write what has changed."""

    def commit(self) -> None:
        """Make it durable."""


@runtime_checkable
class StatusTransport(Transport, Protocol):
    """A transport that tells how it is."""

    def status(self) -> dict[str, object]:
        """Counters and state, ready for JSON."""


class LinkedTransport:
    """See `transports.base.Transport`. `receivers` are nodes that a broadcast is for.

    It is for those, too, who were heard in this process: a broker's nodes are named nowhere.
    `as_is`: the frames of a packet that fit the bearer are sent once each and not as an object.
    Without `keys` whoever reaches the bearer is believed.
    """

    def __init__(
        self,
        inner: Transport,
        settings: LinkSettings,
        log: LinkLog,
        clock: Callable[[], float],
        rng: np.random.Generator,
        receivers: Sequence[str] = (),
        *,
        as_is: bool = False,
        keys: LinkKeys | None = None,
    ) -> None:
        self._inner, self._settings, self._log, self._clock = inner, settings, log, clock
        self._rng, self._receivers, self._as_is = rng, tuple(receivers), as_is
        self._keys = keys
        self._link = Link(settings, LinkState(), rng)
        self._arrivals: deque[Arrival] = deque()
        self._held: deque[tuple[str, bytes]] = deque()  # frames that the bearer was too busy for
        self._handed: deque[tuple[float, int, int]] = deque()  # when, place in the inbox, bytes
        self._handed_bytes = 0
        self._heard: dict[str, None] = {}
        self._under_way: dict[Name, int] = {}
        self._delivered: dict[Name, float] = {}  # when
        self._passed: dict[Name, float] = {}  # when a frame of a packet was sent as it is
        self.objects_sent = self.objects_lost = self.frames_refused = 0
        self.refused: dict[str, Counter[str]] = {}  # by peer and reason

    @property
    def mtu(self) -> int:
        """The longest frame in bytes: any may travel."""
        return seal.FRAME_MAX

    @property
    def pace(self) -> Pace:
        """How patient a node behind this link is: nothing is asked that is still on its way."""
        idle_s, longest_s = self._settings.idle_s, self._settings.longest_s
        return Pace(idle_s, longest_s, longest_s, 6 * longest_s, longest_s / 2)

    @property
    def connected(self) -> bool:
        """Always: what cannot leave now is kept."""
        return True

    def open(self) -> None:
        """Start the bearer, and take up what was under way. TrustError where keys do not fit."""
        self._log.open()
        state = self._log.load()
        for record in state.outgoing:
            name = record.queued.peer, _content(batch.split(record.queued.payload))
            self._under_way[name] = record.queued.number
        sealing = OpenSealing() if self._keys is None else self._keys.sealing(state.counter)
        self._link = Link(self._settings, state, self._rng, sealing=sealing)
        self._inner.open()
        self._link.start(self._clock())
        self._hand_out()

    def close(self) -> None:
        """Stop the bearer; what is under way goes on at the next start."""
        self._inner.close()
        self._log.close()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Queue frames; returns their bytes, not those that they will have cost on the air.

        An object for the host waits with the caller where there is no room (Busy). One for a node
        or for all is lost then: a node that takes nothing must not hold up the others.
        """
        fits = max(map(len, frames)) <= self._inner.mtu
        if fits and (len(frames) == 1 or self._as_is):
            self._send_as_is(peer, frames)
        else:
            self._send_objects(peer, frames)
        self._settle()
        return sum(map(len, frames))

    def receive(self, timeout_s: float) -> Arrival | None:
        """The next arrival, or None after `timeout_s`.

        After a restart the objects of the last minute are handed out once more: what they led to
        may not have been on disk. The protocol above knows what it has seen.
        """
        now = self._clock()
        while self._handed and now >= self._handed[0][0] + KEEP_S:
            self._let_go()
        until = now + timeout_s
        while not self._arrivals:
            left_s = until - self._clock()
            self._listen(max(0.0, min(left_s, WAIT_MAX_S)))
            if left_s <= 0:
                break
        if not self._arrivals:
            return None
        return self._arrivals.popleft()

    def status(self) -> dict[str, object]:
        """What the bearer tells, and the link's own counters, ready for JSON."""
        own = {
            "objects_under_way": len(self._under_way),
            "objects_sent": self.objects_sent,
            "objects_lost": self.objects_lost,
            "frames_refused": self.frames_refused,
            "sealed": self._keys is not None,
            "refused": {p: shown for p, r in self.refused.items() if (shown := refusals(r))},
        }
        told = self._inner.status() if isinstance(self._inner, StatusTransport) else {}
        return {**told, "link": own}

    def _send_as_is(self, peer: str, frames: Sequence[bytes]) -> None:
        """Each once; those of a packet not again before an object would be asked for again.

        A frame alone is a question or answer: its sender knows when to repeat it.
        """
        now = self._clock()
        while self._passed and next(iter(self._passed.values())) <= now - self._settings.longest_s:
            del self._passed[next(iter(self._passed))]
        names = [(peer, _content([frame])) for frame in frames]
        new = [i for i, name in enumerate(names) if name not in self._passed]
        taken = self._link.send_frames(peer, [frames[i] for i in new])
        if len(frames) > 1 and len(self._passed) + taken <= PASSED_MAX:
            self._passed |= {names[i]: now for i in new[:taken]}
        if taken < len(new):
            raise Busy("too many frames wait for the bearer: try again soon")

    def _send_objects(self, peer: str, frames: Sequence[bytes]) -> None:
        """As one object, or as many as it takes for the longest that the link carries."""
        for group in batch.fill(frames, self._settings.size_max):
            self._send_object(peer, group)

    def _send_object(self, peer: str, frames: Sequence[bytes]) -> None:
        name = peer, _content(frames)
        if self._is_known(name):
            return
        receivers = (*self._receivers, *self._heard) if peer == ALL else (peer,)
        if not receivers:
            return  # nobody is here: who comes asks for it
        keep = None if peer == HOST else UNSENT_MAX
        try:
            number = self._link.send(peer, batch.join(frames), receivers=receivers, keep=keep)
        except LinkFull as error:
            if peer == HOST:
                raise Busy(str(error)) from error
            self.objects_lost += 1  # who lacks it asks again
            _logger.warning("an object for %s is lost: %s", peer, error)
            return
        self._under_way[name] = number

    def _is_known(self, name: Name) -> bool:
        """Whether the same bodies, under whatever seals, are on their way or have just arrived.

        The protocol above sends again what it has heard nothing of, with the patience of a network.
        """
        everybody = ALL, name[1]
        since = self._delivered.get(name, self._delivered.get(everybody))
        is_fresh = since is not None and self._clock() < since + self._settings.longest_s
        return is_fresh or name in self._under_way or everybody in self._under_way

    def _listen(self, wait_s: float) -> None:
        now = self._clock()
        due = self._link.next_timeout()
        if due is not None:
            wait_s = min(wait_s, max(0.0, due - now))
        arrival = self._inner.receive(0.0 if self._link.has_frames else wait_s)
        now = self._clock()
        if arrival is not None:
            is_named = arrival.peer in (HOST, *self._receivers)
            if not is_named and len(self._heard) < HEARD_MAX:
                self._heard[arrival.peer] = None
            for frame in arrival.frames:
                self._link.receive_frame(arrival.peer, frame, now)
        due = self._link.next_timeout()
        if due is not None and now >= due:
            self._link.handle_timeout(now)
        self._settle()

    def _settle(self) -> None:
        """Events, onto disk, and only then frames."""
        has_object = False
        while (event := self._link.next_event()) is not None:
            self._log.record(event)
            has_object |= isinstance(event, ObjectArrived)
            self._note(event)
        if self._keys is not None:
            self._keys.commit()  # first: what came of a frame may be lost, but not taken twice
        self._log.commit()
        if has_object:
            self._hand_out()
        self._send_frames()

    def _note(self, event: LinkEvent) -> None:
        match event:
            case FrameArrived():
                self._arrivals.append(Arrival(event.peer, (event.frame,), len(event.frame)))
            case SealsChanged():
                assert self._keys is not None
                self._keys.record(event.changes)
            case LinkRefused():
                self._note_refusal(event.peer, event.reason)
            case Delivered():
                self.objects_sent += 1
                for name in self._end(event.number):
                    self._delivered[name] = self._clock()
                while len(self._delivered) > DELIVERED_MAX:
                    del self._delivered[next(iter(self._delivered))]
            case GaveUp():
                self.objects_lost += 1
                level = logging.INFO if event.reason == SUPERSEDED else logging.WARNING
                _logger.log(level, "object %d is given up: %s", event.number, event.reason)
                self._end(event.number)
            case _:
                pass  # The store's business alone.

    def _note_refusal(self, peer: str, reason: str) -> None:
        """Count it; the first of its kind is told, for it may be why nothing moves."""
        self.frames_refused += 1
        peer = peer if peer in self.refused or len(self.refused) < REFUSED_PEERS_MAX else OTHER
        reasons = self.refused.setdefault(peer, Counter())
        reason = known_reason(reason, reasons, REASONS_MAX)
        if reason not in reasons:
            level = logging.INFO if reason in ORDINARY else logging.WARNING
            _logger.log(level, "the link refuses frames from or for %s: %s", peer, reason)
        reasons[reason] += 1

    def _end(self, number: int) -> list[Name]:
        """Objects of this number are not under way any more; their names."""
        names = [name for name, n in self._under_way.items() if n == number]
        for name in names:
            del self._under_way[name]
        return names

    def _hand_out(self) -> None:
        """Objects of the inbox as arrivals, each once in the life of this process."""
        after = self._handed[-1][1] if self._handed else 0
        for place, peer, payload in self._log.inbox(after):
            self._handed.append((self._clock(), place, len(payload)))
            self._handed_bytes += len(payload)
            try:
                self._arrivals.append(Arrival(peer, batch.split(payload), len(payload)))
            except WireError as error:
                self.frames_refused += 1
                _logger.warning("an object from %s holds no frames: %s", peer, error)
        while self._handed_bytes > KEEP_BYTES_MAX:
            self._let_go()

    def _let_go(self) -> None:
        """Forget the oldest object that was handed out: it is above the link by now."""
        _, place, size = self._handed.popleft()
        self._handed_bytes -= size
        self._log.take(place)

    def _send_frames(self) -> None:
        while self._inner.connected:
            if not self._held:
                self._held.extend(self._link.frames_to_send(self._clock(), ROOM))
            if not self._held:
                return
            peer, frame = self._held[0]
            try:
                self._inner.send(peer, [frame])
            except (Busy, NotConnected):
                return
            except (FrameTooLarge, UnknownPeer) as error:
                # A broker's limit may shrink under our hands, and what is under way since before
                # a restart may be for a board that has left the configuration.
                self.frames_refused += 1
                _logger.warning("a frame for %s is lost: %s", peer, error)
            self._held.popleft()


def _content(frames: Sequence[bytes]) -> bytes:
    """What frames say, whatever their seals."""
    digest = hashlib.sha256()
    for body in map(body_of, frames):
        digest.update(len(body).to_bytes(4, "little") + body)
    return digest.digest()
