"""The sending half of a link: objects that wait, those under way, and their receivers' words."""

import hashlib
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ternmesh.link.code import Layout, best_symbol_bytes
from ternmesh.link.coder import Coder
from ternmesh.link.frames import NAME_SIZE, SLOTS, Offer, Question, Status, write
from ternmesh.link.frames import Symbol as SymbolBody
from ternmesh.link.records import (
    ARRIVED_MAX,
    SUPERSEDED,
    Delivered,
    GaveUp,
    LinkEvent,
    LinkState,
    Queued,
    RepairsReserved,
    TransferBegun,
)
from ternmesh.link.sending import Sending, most_needed

if TYPE_CHECKING:
    from ternmesh.link.link import LinkSettings

LANE_SLOTS = SLOTS // 2  # for one receiver; the others are for what several hear
ACTIVE_MAX = LANE_SLOTS // 2  # in one lane, so that a slot rests before it is used again
LEAD_MAX = ARRIVED_MAX // 4  # two lanes and a restart then keep to what receivers remember
PATIENCE = 3.0  # times `idle_s`: the receiver, who knows more, asks first
DOUBLINGS_MAX = 16
POLLS_MIN = 3  # questions that must have left: a sender may itself be kept silent, by the law say
# Answers to words that show no progress: after some of them the time counts, after many nothing.
ANSWERS_MIN, ANSWERS_MAX = 8, 64
SHARE = 4  # one receiver has at most this part of the room under way: what has not begun can go


def object_name(number: int, payload: bytes) -> bytes:
    """What names an object on the air: the head of sha256(u16 number, payload)."""
    low = (number & 0xFFFF).to_bytes(2, "little")
    return hashlib.sha256(low + payload).digest()[:NAME_SIZE]


def is_shared(queued: Queued) -> bool:
    """Whether several hear an object, not its one receiver."""
    return queued.receivers != (queued.peer,)


def slots_of(queued: Queued) -> range:
    """The slots that an object may have."""
    return range(LANE_SLOTS, SLOTS) if is_shared(queued) else range(LANE_SLOTS)


@dataclass(slots=True)
class Lane:
    """Objects with the same slots: those for one receiver, or all that several hear.

    A receiver that is away then holds up nobody else.
    """

    free: deque[int]  # the slot that has rested longest comes first
    active: dict[int, Sending] = field(default_factory=dict)
    begun: int = 0

    @property
    def is_full(self) -> bool:
        """Whether something must end before anything begins.

        A receiver remembers the last `ARRIVED_MAX` objects: one whose receipt is lost must not
        fall behind so far that it looks new.
        """
        oldest = min((sending.turn for sending in self.active.values()), default=self.begun)
        return len(self.active) >= ACTIVE_MAX or self.begun - oldest >= LEAD_MAX


class Outbound:
    """See the module; `events` is the link's queue."""

    def __init__(
        self,
        settings: "LinkSettings",
        state: LinkState,
        rng: np.random.Generator,
        coder: Coder,
        events: deque[LinkEvent],
    ) -> None:
        self._settings, self._rng, self._coder, self._events = settings, rng, coder, events
        self._resumed = state.outgoing
        self._number = state.number
        self._waiting: list[Queued] = []
        self._lanes: dict[str | None, Lane] = {}

    def start(self, now: float) -> None:
        """What was under way asks first, in its old slot, what its receivers hold."""
        for record in self._resumed:
            if len(record.queued.payload) > self._settings.size_max:  # its settings were others
                gave_up = GaveUp(record.queued.number, record.queued.receivers, "too large")
                self._events.append(gave_up)
                continue
            if record.slot is None:
                self._waiting.append(record.queued)
                continue
            self._lane(record.queued).free.remove(record.slot)
            sending = self._open(record.queued, record.slot)
            sending.begun, sending.heard_at = True, now
            sending.repairs = record.repairs
            sending.next_repair = [record.repairs] * sending.layout.generations
        self._resumed = ()

    def queue(
        self,
        peer: str,
        payload: bytes,
        receivers: tuple[str, ...],
        priority: int,
        key: str | None,
        keep: int | None = None,
    ) -> int | None:
        """Queue an object; its number, or None where there is no room: see `Link.send`."""
        mine = sorted((q for q in self._unsent if q.peer == peer), key=lambda q: q.number)
        old = [q for q in mine if key is not None and q.key == key]
        if keep is not None:
            rest = [q for q in mine if q not in old]
            old += rest[: max(0, len(rest) + 1 - keep)]
        if not self._make_room(peer, len(payload), old, spares_own=keep is None):
            return None
        for queued in old:
            reason = SUPERSEDED if queued.peer == peer else "others needed the room"
            self.cancel(queued.number, reason)
        queued = Queued(self._number, peer, receivers, payload, priority, key)
        self._number += 1
        self._waiting.append(queued)
        self._events.append(queued)
        return queued.number

    def _make_room(self, peer: str, size: int, old: list[Queued], *, spares_own: bool) -> bool:
        """Add to what goes until `size` bytes more have room; False if they cannot have it.

        The oldest object of which nothing was sent, of the peer that claims most, makes way for one
        that claims less. A broadcast is a claim of all its receivers.
        """
        unsent = [q for q in self._unsent if q not in old]
        held = [q for q in (*self._waiting, *(s.queued for s in self._active)) if q not in old]
        while True:
            is_many = len(held) >= self._settings.outgoing_max
            total = sum(len(q.payload) for q in held) + size
            if not is_many and total <= self._settings.outgoing_bytes_max:
                return True
            claims: Counter[str] = Counter()
            for q in held:
                claims[q.peer] += -(-(1 << 20 if is_many else len(q.payload)) // len(q.receivers))
            found = [
                q
                for q in unsent
                if (not spares_own if q.peer == peer else claims[q.peer] > claims[peer])
            ]
            if not found:
                return False
            first = max(found, key=lambda q: (claims[q.peer], -q.number))
            unsent.remove(first)
            held.remove(first)
            old.append(first)

    def cancel(self, number: int, reason: str = "cancelled") -> None:
        """Forget an object."""
        for queued in [q for q in self._waiting if q.number == number]:
            self._waiting.remove(queued)
            self._events.append(GaveUp(number, queued.receivers, reason))
        for sending in [s for s in self._active if s.queued.number == number]:
            self._close(sending, GaveUp(number, tuple(sending.waiting), reason))

    # What receivers say

    def heard(self, peer: str, status: Status, now: float) -> None:
        """What a receiver needs; within a burst that is nothing new, after its receipt nothing."""
        found = [s for s in self._active if s.offer.name == status.name]
        for sending in [s for s in found if peer in s.waiting]:
            sending.check(status.needs)
            sending.attempts = 0
            if sending.has_progress(peer, status.needs):
                sending.heard_at, sending.answers = now, 0
            if not status.needs:
                sending.done.add(peer)
                sending.needs.pop(peer, None)
            elif not sending.queue:
                sending.needs[peer] = status.needs
            if not sending.waiting:
                self._close(sending, Delivered(sending.queued.number, sending.queued.receivers))
            elif all(name in sending.needs for name in sending.waiting):
                sending.offer_to.clear()  # all of them know what they answer
                self._answer(sending, now)

    def asked(self, peer: str, question: Question) -> None:
        """A receiver has symbols and not their offer."""
        for sending in self._active:
            is_it = sending.offer.slot == question.slot and peer in sending.waiting
            if is_it and not {peer, sending.queued.peer} & set(sending.offer_to):
                sending.offer_to.append(peer)

    def _answer(self, sending: Sending, now: float) -> None:
        """Send what the neediest of those who have spoken needs, while it leads to anything."""
        is_late = now - sending.heard_at >= self._patience_max_s(sending)
        if sending.answers >= (ANSWERS_MIN if is_late else ANSWERS_MAX):
            gave_up = GaveUp(sending.queued.number, tuple(sending.waiting), "no progress")
            self._close(sending, gave_up)
            return
        sending.answers += 1
        sending.ask_for(most_needed([sending.needs[name] for name in sending.needs]))
        sending.needs.clear()
        sending.at = None
        limit = sending.reserve()
        if limit is not None:
            self._events.append(RepairsReserved(sending.queued.number, limit))

    # Timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        times = (sending.at for sending in self._active)
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Go on with those who have answered; else ask again, and give up after long silence."""
        due = [s for s in self._active if s.at is not None and now >= s.at]
        for sending in due:
            if sending.needs:
                self._answer(sending, now)
            elif sending.attempts >= POLLS_MIN and now - sending.heard_at >= self._patience_max_s(
                sending
            ):
                gave_up = GaveUp(sending.queued.number, tuple(sending.waiting), "no answer")
                self._close(sending, gave_up)
            else:
                sending.offer_to, sending.at = [sending.whom_to_ask()], None
                sending.attempts += 1

    def _patience_max_s(self, sending: Sending) -> float:
        """A receiver that is away keeps broadcasts from nobody else for long."""
        lane = self._lane(sending.queued)
        is_in_the_way = lane.is_full and any(self._lane(q) is lane for q in self._waiting)
        if is_in_the_way and lane is self._lanes.get(None):
            return self._settings.make_way_s
        return self._settings.give_up_s

    # Frames

    @property
    def has_frames(self) -> bool:
        """Whether anything may leave now."""
        return any(sending.has_frames for sending in self._active)

    @property
    def addressees(self) -> set[str]:
        """To whom something may leave now."""
        found = [sending for sending in self._active if sending.has_frames]
        return {name for s in found for name in (s.queued.peer, *s.offer_to)}

    def begin(self) -> None:
        """Take the most urgent objects that wait under way, as far as there is room."""
        for queued in sorted(self._waiting, key=lambda q: (q.priority, q.number)):
            if self._may_begin(queued):
                self._waiting.remove(queued)
                slot = self._lane(queued).free.popleft()
                self._open(queued, slot).send_source()
                self._events.append(TransferBegun(queued.number, slot))

    def _may_begin(self, queued: Queued) -> bool:
        lane = self._lane(queued)
        if lane.is_full or lane is self._lanes.get(None) or not lane.active:
            return not lane.is_full
        size = sum(len(s.queued.payload) for s in lane.active.values()) + len(queued.payload)
        return SHARE * size <= self._settings.outgoing_bytes_max

    def bodies(self, now: float, room: int) -> list[tuple[str, bytes]]:
        """At most `room` bodies, those of the most urgent objects first."""
        found: list[tuple[str, bytes]] = []
        order = sorted(
            (s for s in self._active if s.has_frames),
            key=lambda s: (s.queued.priority, s.queued.number),
        )
        for sending in order:
            if len(found) >= room:
                break
            found += self._bodies(sending, now, room - len(found))
        return found

    def _bodies(self, sending: Sending, now: float, room: int) -> list[tuple[str, bytes]]:
        sending.begun, sending.heard_at = True, min(sending.heard_at, now)
        bodies = [(peer, write(sending.offer)) for peer in sending.offer_to[:room]]
        del sending.offer_to[:room]
        count = min(room - len(bodies), len(sending.queue))
        indexes = [sending.queue.popleft() for _ in range(count)]
        symbols = self._coder.encode(
            sending.layout, sending.offer.name, sending.queued.payload, indexes
        )
        for place, (index, data) in enumerate(zip(indexes, symbols, strict=True), 1):
            is_last = place == count and not sending.queue
            body = write(SymbolBody(sending.offer.slot, index, data, is_last))
            bodies.append((sending.queued.peer, body))
        if not sending.has_frames:
            sending.at = now + self._patience_s(sending)
        return bodies

    def _patience_s(self, sending: Sending) -> float:
        doublings = min(sending.attempts, DOUBLINGS_MAX)
        delay_s = PATIENCE * self._settings.idle_s * 2.0**doublings
        wait_s: float = min(self._settings.longest_s, delay_s) * (0.75 + 0.5 * self._rng.random())
        return wait_s

    # Begin and end

    @property
    def _unsent(self) -> list[Queued]:
        return [*self._waiting, *(s.queued for s in self._active if not s.begun)]

    @property
    def _active(self) -> list[Sending]:
        return [sending for lane in self._lanes.values() for sending in lane.active.values()]

    def _lane(self, queued: Queued) -> Lane:
        name = None if is_shared(queued) else queued.peer
        return self._lanes.setdefault(name, Lane(deque(slots_of(queued))))

    def _open(self, queued: Queued, slot: int) -> Sending:
        size = len(queued.payload)
        layout = Layout(size, best_symbol_bytes(size, self._settings.symbol_room))
        name = object_name(queued.number, queued.payload)
        offer = Offer(slot, queued.number & 0xFFFF, name, size, layout.symbol_bytes)
        lane = self._lane(queued)
        sending = lane.active[slot] = Sending(queued, offer, layout, lane.begun)
        sending.offer_to = [queued.peer]
        sending.next_repair = [0] * layout.generations
        lane.begun += 1
        return sending

    def _close(self, sending: Sending, event: LinkEvent) -> None:
        lane, slot = self._lane(sending.queued), sending.offer.slot
        del lane.active[slot]
        lane.free.append(slot)
        self._events.append(event)
