"""The sending half of a link: objects that wait, those under way, and their receivers' words."""

import hashlib
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ternmesh.link.code import Layout, best_symbol_bytes
from ternmesh.link.coder import Coder
from ternmesh.link.frames import NAME_SIZE, SLOTS, SYMBOL_HEAD, Offer, Question, Status, write
from ternmesh.link.frames import Symbol as SymbolBody
from ternmesh.link.records import (
    Delivered,
    GaveUp,
    LinkEvent,
    LinkState,
    Queued,
    RepairsReserved,
)
from ternmesh.link.sending import Sending, most_needed
from ternmesh.wire import seal

if TYPE_CHECKING:
    from ternmesh.link.link import LinkSettings

ACTIVE_MAX = SLOTS // 2  # so that a slot rests before it is used again
PATIENCE = 3.0  # times `idle_s`: the receiver, who knows more, asks first
DOUBLINGS_MAX = 16


def object_name(number: int, payload: bytes) -> bytes:
    """What names an object on the air: the head of sha256(u16 number, payload)."""
    low = (number & 0xFFFF).to_bytes(2, "little")
    return hashlib.sha256(low + payload).digest()[:NAME_SIZE]


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
        self._active: dict[int, Sending] = {}
        self._free = deque(range(SLOTS))  # the slot that has rested longest comes first
        self._bytes = 0

    def start(self, now: float) -> None:
        """What was under way asks first what its receivers hold."""
        for record in sorted(self._resumed, key=lambda record: record.queued.number):
            self._bytes += len(record.queued.payload)
            if len(self._active) < ACTIVE_MAX:
                sending = self._open(record.queued, now)
                sending.repairs = record.repairs
                sending.next_repair = [record.repairs] * sending.layout.generations
            else:
                self._waiting.append(record.queued)
        self._resumed = ()

    def queue(
        self,
        peer: str,
        payload: bytes,
        receivers: tuple[str, ...],
        priority: int,
        key: str | None,
    ) -> int | None:
        """Queue an object; its number, or None where there is no room."""
        if key is not None:
            for old in [q for q in self._waiting if (q.peer, q.key) == (peer, key)]:
                self._waiting.remove(old)
                self._forget(old, GaveUp(old.number, old.receivers, "superseded"))
        waiting = len(self._waiting) + len(self._active)
        room = self._settings.outgoing_bytes_max - self._bytes
        if waiting >= self._settings.outgoing_max or len(payload) > room:
            return None
        queued = Queued(self._number, peer, receivers, payload, priority, key)
        self._number += 1
        self._bytes += len(payload)
        self._waiting.append(queued)
        self._events.append(queued)
        return queued.number

    def cancel(self, number: int) -> None:
        """Forget an object."""
        for queued in [q for q in self._waiting if q.number == number]:
            self._waiting.remove(queued)
            self._forget(queued, GaveUp(number, queued.receivers, "cancelled"))
        for sending in [s for s in self._active.values() if s.queued.number == number]:
            self._close(sending, GaveUp(number, tuple(sending.waiting), "cancelled"))

    # What receivers say

    def heard(self, peer: str, status: Status, now: float) -> None:
        """A receiver's needs; those of one that is still being served say nothing new."""
        found = [s for s in self._active.values() if s.offer.name == status.name]
        for sending in found:
            if peer not in sending.queued.receivers:
                continue
            sending.heard_at, sending.attempts = now, 0
            if not status.needs:
                sending.done.add(peer)
                sending.needs.pop(peer, None)
            elif not sending.queue:
                sending.needs[peer] = status.needs
            if not sending.waiting:
                self._close(sending, Delivered(sending.queued.number, sending.queued.receivers))
            elif all(name in sending.needs for name in sending.waiting):
                self._answer(sending)

    def asked(self, peer: str, question: Question) -> None:
        """A receiver has symbols and not their offer."""
        sending = self._active.get(question.slot)
        if sending is not None and peer in sending.waiting:
            sending.offer_due = True

    def _answer(self, sending: Sending) -> None:
        """Send what the neediest of those who have spoken needs."""
        sending.ask_for(most_needed([sending.needs[name] for name in sending.needs]))
        sending.needs.clear()
        sending.at = None
        limit = sending.reserve()
        if limit is not None:
            self._events.append(RepairsReserved(sending.queued.number, limit))

    # Timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        times = (sending.at for sending in self._active.values())
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Go on with those who have answered; else ask again, and give up after long silence."""
        due = [s for s in self._active.values() if s.at is not None and now >= s.at]
        for sending in due:
            if sending.needs:
                self._answer(sending)
            elif now - sending.heard_at >= self._settings.give_up_s:
                gave_up = GaveUp(sending.queued.number, tuple(sending.waiting), "no answer")
                self._close(sending, gave_up)
            else:
                sending.offer_due, sending.at = True, None
                sending.attempts += 1

    # Frames

    @property
    def has_frames(self) -> bool:
        """Whether anything may leave now."""
        is_room = len(self._active) < ACTIVE_MAX
        return bool(self._waiting and is_room) or any(s.has_frames for s in self._active.values())

    def bodies(self, now: float, room: int) -> list[tuple[str, bytes]]:
        """At most `room` bodies, those of the most urgent objects first."""
        found: list[tuple[str, bytes]] = []
        while len(self._active) < ACTIVE_MAX and self._waiting and room > 0:
            first = min(self._waiting, key=lambda q: (q.priority, q.number))
            self._waiting.remove(first)
            self._open(first, now).send_source()
        order = sorted(
            (s for s in self._active.values() if s.has_frames),
            key=lambda s: (s.queued.priority, s.queued.number),
        )
        for sending in order:
            if len(found) >= room:
                break
            bodies = self._bodies(sending, now, room - len(found))
            found += [(sending.queued.peer, body) for body in bodies]
        return found

    def _bodies(self, sending: Sending, now: float, room: int) -> list[bytes]:
        bodies = []
        if sending.offer_due:
            bodies.append(write(sending.offer))
            sending.offer_due = False
        count = min(room - len(bodies), len(sending.queue))
        indexes = [sending.queue.popleft() for _ in range(count)]
        symbols = self._coder.encode(
            sending.layout, sending.offer.name, sending.queued.payload, indexes
        )
        for place, (index, data) in enumerate(zip(indexes, symbols, strict=True), 1):
            is_last = place == count and not sending.queue
            bodies.append(write(SymbolBody(sending.offer.slot, index, data, is_last)))
        if not sending.queue:
            sending.at = now + self._patience_s(sending)
        return bodies

    def _patience_s(self, sending: Sending) -> float:
        doublings = min(sending.attempts, DOUBLINGS_MAX)
        delay_s = PATIENCE * self._settings.idle_s * 2.0**doublings
        wait_s: float = min(self._settings.longest_s, delay_s) * (0.75 + 0.5 * self._rng.random())
        return wait_s

    # Begin and end

    def _open(self, queued: Queued, now: float) -> Sending:
        size = len(queued.payload)
        room = self._settings.mtu - seal.OVERHEAD - SYMBOL_HEAD
        layout = Layout(size, best_symbol_bytes(size, room))
        slot = self._free.popleft()
        name = object_name(queued.number, queued.payload)
        offer = Offer(slot, queued.number & 0xFFFF, name, size, layout.symbol_bytes)
        sending = Sending(queued, offer, layout, heard_at=now)
        sending.next_repair = [0] * layout.generations
        self._active[slot] = sending
        return sending

    def _close(self, sending: Sending, event: LinkEvent) -> None:
        del self._active[sending.offer.slot]
        self._free.append(sending.offer.slot)
        self._forget(sending.queued, event)

    def _forget(self, queued: Queued, event: LinkEvent) -> None:
        self._bytes -= len(queued.payload)
        self._events.append(event)
