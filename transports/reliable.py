"""A transport of whole messages around a bearer that loses small frames: the link around it.

A frame alone that fits the bearer is sent unreliably, once, as are frames that join a node to the
run: their senders repeat them. Several others, or a longer one, travel as an object
(`ternmesh.link`), which arrives whole or not at all, also over restarts of both sides.
With the unreliable service the frames of an update that fit are sent once each instead.

Each object is reported as held, then as delivered or lost, for each receiver: the protocol above
does not repeat what the link repeats. All work is done in the thread that calls `send` and
`receive`. Where the fleet has keys, the link's own frames are sealed from neighbour to neighbour.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ternmesh.deliveries import Delivery, DeliveryState
from ternmesh.errors import WireError
from ternmesh.federated.events import OTHER, known_reason, refusals
from ternmesh.federated.refusals import why
from ternmesh.link import events
from ternmesh.link.link import Link, LinkFull, joins
from ternmesh.link.settings import LinkSettings
from ternmesh.security.sealing import Change, OpenSealing, Sealing, SecurityChanged
from ternmesh.timers import TimerSettings
from ternmesh.wire.frame import FRAME_MAX, SEALED_MIN
from transports import batch
from transports.base import (
    ALL,
    HOST,
    Arrival,
    Busy,
    FrameTooLarge,
    LinkStatus,
    NotConnected,
    Spare,
    SpareTransport,
    StatusTransport,
    Transport,
    TransportStatus,
    UnknownPeer,
    check_sizes,
)

WAIT_MAX_S = 0.25  # how long the bearer is listened to before timers are looked at again
BUSY_WAIT_S = 0.02  # how soon frames are offered again that the bearer has not taken
REFUSED_PEERS_MAX = 256  # peers whose refused frames are counted by name
REASONS_MAX = 32
HEARD_MAX = 256  # nodes that no configuration names: broadcasts are for them once they were heard
EXPECTED = (events.SUPERSEDED, events.CANCELLED)  # reasons of objects that are given up
ORDINARY = ("seal", "sync", "replay")  # refusals that are normal on radios and at first contact
UNSENT_MAX = 8  # objects for one node that wait; beyond it a newer one replaces the oldest
KEEP_S = 60.0  # an object stays in the inbox so long after it was handed out: see `receive`
KEEP_BYTES_MAX = 1 << 23  # or until younger ones of so many bytes are there
REPORTS_MAX = 1 << 14  # that wait for `deliveries`; a gateway never asks

_logger = logging.getLogger(__name__)


class LinkLog(Protocol):
    """The state of a link on disk: `ternmesh_store.link_store.LinkStore`. The program opens it."""

    def load(self) -> events.LinkState:
        """The state of the last commit."""

    def record(self, event: events.LinkEvent) -> None:
        """Write what of an event must survive."""

    def commit(self) -> None:
        """Make it durable, and with it what `LinkKeys` has recorded."""

    def inbox(self, after: int) -> list[tuple[int, str, bytes]]:
        """Objects that arrived and were not taken, of places beyond `after`."""

    def take(self, place: int) -> None:
        """Forget one of them."""


class LinkKeys(Protocol):
    """The seals of a link and their state on disk: `ternmesh_service.keyring.HopKeys`."""

    def sealing(self, counter: int) -> Sealing:
        """The seals of this process; `counter` is the first that was never reserved."""

    def record(self, changes: Sequence[Change]) -> None:
        """Write what has changed, in the transaction of the link's state."""


class ReliableTransport:
    """See `transports.base.ReportingTransport`. `receivers` are the nodes of a broadcast.

    A broadcast is also for nodes that were heard in this process: a host on a broker names none.
    `unreliable`: an update's frames that fit the bearer are sent once each, not as an object.
    Without `keys` any end that reaches the bearer is believed.
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
        unreliable: bool = False,
        keys: LinkKeys | None = None,
    ) -> None:
        self._inner = inner
        self._settings = settings
        self._log = log
        self._clock = clock
        self._rng = rng
        self._receivers = tuple(receivers)
        self._is_unreliable = unreliable
        self._keys = keys
        self._link = Link(settings, events.LinkState(), rng)
        self._frame: tuple[str, bytes] | None = None  # for a peer; the bearer was too busy for it
        self._arrivals: deque[Arrival] = deque()
        self._handed: deque[tuple[float, int, int]] = deque()  # when, place in the inbox, bytes
        self._handed_bytes = 0
        self._heard: dict[str, None] = {}  # nodes that no configuration names
        self._under_way: dict[int, set[str]] = {}  # receivers that lack an object, by its number
        self._reports: deque[Delivery] = deque(maxlen=REPORTS_MAX)
        self.objects_sent = 0
        self.objects_lost = 0
        self.frames_refused = 0
        self.refused: dict[str, Counter[str]] = {}  # by peer and reason

    @property
    def mtu(self) -> int:
        """The longest frame in bytes: the link cuts what is longer than the bearer's frames."""
        return FRAME_MAX

    @property
    def update_mtu(self) -> int:
        """The longest frame in bytes of an update that the chosen service carries."""
        return self._inner.mtu if self._is_unreliable else FRAME_MAX

    @property
    def pace(self) -> TimerSettings:
        """The waits of a node behind this link.

        The first wait for a receipt is long: it begins when the link has delivered the update.
        """
        longest_s = self._settings.longest_s
        return TimerSettings(
            hello_s=self._settings.idle_s,
            hello_longest_s=longest_s,
            update_s=2 * longest_s if self._is_unreliable else longest_s,
            update_longest_s=6 * longest_s,
            catch_up_s=longest_s / 2,
        )

    @property
    def connected(self) -> bool:
        """Always True: what cannot leave now is kept."""
        return True

    def open(self) -> None:
        """Start the bearer, and go on with objects under way. SecurityError: keys do not fit."""
        state = self._log.load()
        for record in state.outgoing:
            self._hold(record.queued.number, record.queued.receivers)
        sealing = OpenSealing() if self._keys is None else self._keys.sealing(state.counter)
        self._link = Link(self._settings, state, self._rng, sealing=sealing)
        self._inner.open()
        self._link.start(self._clock())
        self._hand_out()

    def close(self) -> None:
        """Stop the bearer; objects under way go on at the next start."""
        self._inner.close()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Queue frames; returns their bytes, not those that they will have cost on the air.

        Where there is no room, an object for the host waits with the caller (Busy). One for a node
        or for all is lost: a node that takes nothing must not hold up the others.
        """
        check_sizes(frames, self.mtu)
        fits = max(map(len, frames)) <= self._inner.mtu
        is_alone = len(frames) == 1 or all(map(joins, frames))
        if fits and (is_alone or self._is_unreliable):
            self._send_unreliably(peer, frames, is_update=not is_alone)
        else:
            self._send_objects(peer, frames)
        self._settle()
        return sum(map(len, frames))

    def deliveries(self) -> list[Delivery]:
        """See `transports.base.ReportingTransport`; a frame that is sent alone has no report."""
        reports = list(self._reports)
        self._reports.clear()
        return reports

    def receive(self, timeout_s: float) -> Arrival | None:
        """The next arrival, or None after `timeout_s`.

        After a restart the objects of the last minute are handed out once more: what they led to
        may not have been on disk. The protocol above drops repeats.
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
        return self._arrivals.popleft() if self._arrivals else None

    def spare(self) -> Spare | None:
        """See `transports.base.SpareTransport`."""
        if self._frame is not None or self._link.has_frames or not self._inner.connected:
            return None
        return self._inner.spare() if isinstance(self._inner, SpareTransport) else None

    def status(self) -> TransportStatus:
        """The bearer's status, with the link's counters."""
        link = LinkStatus(
            objects_under_way=len(self._under_way),
            objects_sent=self.objects_sent,
            objects_lost=self.objects_lost,
            frames_refused=self.frames_refused,
            sealed=self._keys is not None,
            refused={p: shown for p, r in self.refused.items() if (shown := refusals(r))},
        )
        if isinstance(self._inner, StatusTransport):
            return replace(self._inner.status(), link=link)
        return TransportStatus(connected=self.connected, last_error=None, link=link)

    # Sending

    def _send_unreliably(self, peer: str, frames: Sequence[bytes], *, is_update: bool) -> None:
        """Each frame once. An update counts as delivered: its receipt decides about a repeat.

        A frame alone is a question or an answer: its sender's timer repeats it.
        """
        try:
            self._link.send_frames(peer, frames)
        except LinkFull as error:
            raise Busy(str(error)) from error
        if is_update:
            self._report(peer, DeliveryState.HELD)
            self._report(peer, DeliveryState.DELIVERED)

    def _send_objects(self, peer: str, frames: Sequence[bytes]) -> None:
        """As one object, or as many as it takes for the longest that the link carries."""
        receivers = (*self._receivers, *self._heard) if peer == ALL else (peer,)
        if not receivers:
            return  # nobody is here: a node that comes asks for it
        keep = None if peer == HOST else UNSENT_MAX
        numbers: list[int] = []
        try:
            for group in batch.fill(frames, self._settings.size_max):
                payload = batch.join(group)
                numbers.append(self._link.send(peer, payload, receivers=receivers, keep=keep))
        except LinkFull as error:
            for number in numbers:
                self._link.cancel(number)
            if peer == HOST:
                raise Busy(str(error)) from error
            self.objects_lost += 1  # a node that lacks it asks again
            _logger.warning("an object for %s is lost: %s", peer, error)
            return
        for number in numbers:
            self._hold(number, receivers)

    def _hold(self, number: int, receivers: Sequence[str]) -> None:
        """Report that the link has an object in its hands."""
        self._under_way[number] = set(receivers)
        for receiver in receivers:
            self._report(receiver, DeliveryState.HELD)

    def _end(self, number: int, receivers: Sequence[str], state: DeliveryState) -> None:
        """Report what became of an object for those `receivers` that still lacked it."""
        waiting = self._under_way.get(number, set())
        for receiver in receivers:
            if receiver in waiting:
                waiting.remove(receiver)
                self._report(receiver, state)
        if not waiting:
            self._under_way.pop(number, None)

    def _report(self, peer: str, state: DeliveryState) -> None:
        self._reports.append(Delivery(peer, state))

    def _listen(self, wait_s: float) -> None:
        due = self._clock() if self._link.has_frames else self._link.next_timeout()
        # What stays due, because the bearer is down or busy, must not make the loop spin.
        floor_s = 0.0 if self._inner.connected and self._frame is None else BUSY_WAIT_S
        if due is not None:
            wait_s = min(wait_s, max(floor_s, due - self._clock()))
        arrival = self._inner.receive(wait_s)
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
        """Handle the link's events, commit them to disk, and only then send frames."""
        has_object = False
        while (event := self._link.next_event()) is not None:
            self._log.record(event)
            has_object |= isinstance(event, events.ObjectArrived)
            self._handle(event)
        self._log.commit()
        if has_object:
            self._hand_out()
        self._send_frames()

    def _handle(self, event: events.LinkEvent) -> None:
        match event:
            case events.FrameArrived():
                self._arrivals.append(Arrival(event.peer, (event.frame,), len(event.frame)))
            case SecurityChanged():
                assert self._keys is not None
                self._keys.record(event.changes)
            case events.LinkRefused():
                self._count_refusal(event.peer, event.reason)
            case events.ReceiverDone():
                self._end(event.number, (event.receiver,), DeliveryState.DELIVERED)
            case events.Delivered():
                self.objects_sent += 1
                self._end(event.number, event.receivers, DeliveryState.DELIVERED)
            case events.GaveUp():
                self.objects_lost += 1
                level = logging.INFO if event.reason in EXPECTED else logging.WARNING
                _logger.log(level, "object %d is given up: %s", event.number, event.reason)
                self._end(event.number, event.receivers, DeliveryState.LOST)
            case _:
                pass  # for the store alone

    def _count_refusal(self, peer: str, reason: str) -> None:
        """Count it; the first of its kind is logged, for it may be why nothing moves."""
        self.frames_refused += 1
        peer = peer if peer in self.refused or len(self.refused) < REFUSED_PEERS_MAX else OTHER
        reasons = self.refused.setdefault(peer, Counter())
        reason = known_reason(reason, reasons, REASONS_MAX)
        if reason not in reasons:
            level = logging.INFO if reason in ORDINARY else logging.WARNING
            advice = why(reason, on_host=peer != HOST)
            _logger.log(
                level, "the link refuses frames from or for %s: %s: %s", peer, reason, advice
            )
        reasons[reason] += 1

    def _hand_out(self) -> None:
        """Objects of the inbox as arrivals, each once in the life of this process."""
        after = self._handed[-1][1] if self._handed else 0
        for place, peer, payload in self._log.inbox(after):
            self._handed.append((self._clock(), place, len(payload)))
            self._handed_bytes += len(payload)
            try:
                self._arrivals.append(Arrival(peer, batch.split(payload, SEALED_MIN), len(payload)))
            except WireError as error:
                self.frames_refused += 1
                _logger.warning("an object from %s holds no frames: %s", peer, error)
        while self._handed_bytes > KEEP_BYTES_MAX:
            self._let_go()

    def _let_go(self) -> None:
        """Forget the oldest object that was handed out: the protocol above has it by now."""
        _, place, size = self._handed.popleft()
        self._handed_bytes -= size
        self._log.take(place)

    def _send_frames(self) -> None:
        """Send while the bearer takes frames; each is made at the last moment, up to date."""
        while self._inner.connected:
            if self._frame is None:
                self._frame = next(iter(self._link.frames_to_send(self._clock(), 1)), None)
            if self._frame is None:
                return
            peer, frame = self._frame
            try:
                self._inner.send(peer, [frame])
            except (Busy, NotConnected):
                return
            except (FrameTooLarge, UnknownPeer) as error:
                # A broker's limit may shrink meanwhile, and an object from before a restart may be
                # for a board that has left the configuration.
                self.frames_refused += 1
                _logger.warning("a frame for %s is lost: %s", peer, error)
            self._frame = None
