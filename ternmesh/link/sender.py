"""The sending half of a link: objects that wait, and transfers to one receiver or to many.

    state of an object     event                                          next state
    ------------------     -----                                          ----------
    WAITING                its lane has a free slot (`begin`)             SENDING
    WAITING                cancelled, superseded, or no room              (given up)
    SENDING                all symbols and offers that are due have left  LISTENING
    SENDING or LISTENING   a status with needs from every receiver that   SENDING
                           lacks it, or the timeout with some of them
    LISTENING              the timeout without a status: offer it again   SENDING
    SENDING or LISTENING   a receipt of the last receiver                 (delivered)
    SENDING or LISTENING   cancelled, no answer, or no progress           (given up)

WAITING objects are in `Sender._waiting`. The others are in a lane; SENDING ones have frames. After
a restart a transfer is SENDING its offer.
"""

import operator
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ternmesh.errors import WireError
from ternmesh.link import events, messages
from ternmesh.link.erasure_code import INDEX_END, Layout, best_symbol_bytes, encode_symbols
from ternmesh.link.settings import LinkSettings
from ternmesh.timers import backoff_s, earliest

REPAIRS_BLOCK = 64  # repair symbols of each generation that are reserved at once


@dataclass(slots=True)
class OutgoingObject:
    """The state of one transfer. Times in seconds.

    A burst is the symbols that receivers need. After its last symbol the sender listens for their
    statuses.
    """

    queued: events.Queued
    offer: messages.Offer
    layout: Layout
    turn: int  # how many transfers began in its lane before it
    repairs: int = 0  # repair ordinals below it are reserved on disk
    next_repair: list[int] = field(default_factory=list)  # the next ordinal, by generation
    queue: deque[int] = field(default_factory=deque)  # indexes of symbols to send
    # The status of each receiver since the last burst
    needs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)  # receivers that hold the object
    offer_to: list[str] = field(default_factory=list)  # peers that get the offer, before symbols
    begun: bool = False  # something may have been sent
    at: float | None = None  # the timeout; None while sending
    attempts: int = 0  # offers since the last status
    progress_at: float = inf  # when a receiver made progress; at first when the first frame left
    answers: int = 0  # bursts since then
    # For each receiver: the first generation that lacks symbols, and the fewest needs so far
    least: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def waiting(self) -> list[str]:
        """The receivers that lack the object."""
        return [name for name in self.queued.receivers if name not in self.done]

    @property
    def has_frames(self) -> bool:
        """Whether there is a symbol or offer to send now."""
        return bool(self.offer_to or self.queue)

    def next_to_ask(self) -> str:
        """All receivers; or one after the other, where most of them hold the object already."""
        waiting = self.waiting
        if 2 * len(waiting) > len(self.queued.receivers):
            return self.queued.peer
        return waiting[self.attempts % len(waiting)]

    def check(self, needs: Sequence[int]) -> None:
        """Raise WireError if the object has fewer symbols than these needs."""
        sizes = [len(self.layout.source(g)) for g in range(self.layout.generations)]
        if len(needs) > len(sizes) or any(map(operator.gt, needs, sizes)):
            raise WireError("link", "a status asks for more than the object has")

    def has_progress(self, peer: str, needs: tuple[int, ...]) -> bool:
        """Whether a receiver has made progress: its needs are at most half of what they were.

        Also if a later generation is now the first that lacks symbols: a status may leave out the
        generations behind the first. A receiver that never completes shows progress only so often.
        """
        first = next((g for g, need in enumerate(needs) if need), self.layout.generations)
        before, least = self.least.get(peer, (0, self.layout.count))
        has_progress = first > before or 2 * sum(needs) <= least
        if has_progress:
            self.least[peer] = max(first, before), min(sum(needs), least)
        return has_progress

    def ask_for(self, needs: Sequence[int]) -> None:
        """Queue as many symbols of each generation as are needed.

        A generation of which the receiver holds nothing is sent as source symbols.
        """
        for generation, need in enumerate(needs):
            source = self.layout.source(generation)
            if need >= len(source):
                self.queue.extend(source)
            else:
                self.queue.extend(self._repair(generation) for _ in range(need))

    def reserve(self) -> int | None:
        """Return the new limit of repair ordinals to save before sending; None if unchanged."""
        highest = max(self.next_repair, default=0)
        if highest <= self.repairs:
            return None
        self.repairs = -(-highest // REPAIRS_BLOCK) * REPAIRS_BLOCK
        return self.repairs

    def _repair(self, generation: int) -> int:
        """Return an unsent repair symbol; after thousands, repeat an old repair symbol."""
        ordinal = self.next_repair[generation]
        self.next_repair[generation] += 1
        first, step = self.layout.count + generation, self.layout.generations
        return first + step * (ordinal % (-(-(INDEX_END - first) // step)))


def most_needed(needs: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return for each generation the most symbols that any receiver lacks."""
    longest = max(map(len, needs), default=0)
    return tuple(max(n[g] if g < len(n) else 0 for n in needs) for g in range(longest))


LANE_SLOTS = messages.SLOTS // 2  # for one receiver; the others are for broadcasts
ACTIVE_MAX = LANE_SLOTS // 2  # in one lane, so that a slot rests before it is used again
LEAD_MAX = events.ARRIVED_MAX // 4  # with two lanes and a restart, within what receivers remember
WAIT_IDLES = 3.0  # first wait for a status, in `idle_s`: the receiver should send one before
POLLS_MIN = 3  # offers before a transfer is given up: duty-cycle limits may have kept it silent
ANSWERS_MIN = 8  # bursts without progress before the time without progress counts
ANSWERS_MAX = 64  # bursts without progress before a transfer is given up at any time
SHARE = 4  # one receiver's transfers take at most this part of the memory


@dataclass(slots=True)
class Lane:
    """Transfers that share slots: those to one receiver, or all broadcasts.

    A receiver that is away then does not hold up the others.
    """

    free: deque[int]  # slots; the one that is free for longest comes first
    active: dict[int, OutgoingObject] = field(default_factory=dict)  # by slot
    begun: int = 0  # transfers so far

    @property
    def is_full(self) -> bool:
        """Whether a transfer must end before another begins.

        A receiver remembers the last `ARRIVED_MAX` objects. An object whose receipt is lost must
        still be among them when it is offered again.
        """
        oldest = min((sending.turn for sending in self.active.values()), default=self.begun)
        return len(self.active) >= ACTIVE_MAX or self.begun - oldest >= LEAD_MAX


class Sender:
    """The outgoing objects of a link. `queue` takes the events of the link."""

    def __init__(
        self,
        settings: LinkSettings,
        state: events.LinkState,
        rng: np.random.Generator,
        queue: deque[events.LinkEvent],
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._events = queue
        self._resumed = state.outgoing  # until `start`
        self._number = state.number  # of the next object
        self._waiting: list[events.Queued] = []
        self._lanes: dict[str | None, Lane] = {}  # by receiver; None: broadcasts

    def start(self, now: float) -> None:
        """Resume transfers in their old slots; each first asks its receivers for a status."""
        for record in self._resumed:
            if len(record.queued.payload) > self._settings.size_max:  # the settings have changed
                gave_up = events.GaveUp(record.queued.number, record.queued.receivers, "too large")
                self._events.append(gave_up)
                continue
            if record.slot is None:
                self._waiting.append(record.queued)
                continue
            self._lane(record.queued).free.remove(record.slot)
            sending = self._open(record.queued, record.slot)
            sending.begun = True
            sending.progress_at = now
            sending.repairs = record.repairs
            sending.next_repair = [record.repairs] * sending.layout.generations
        self._resumed = ()

    def queue(
        self, peer: str, payload: bytes, receivers: tuple[str, ...], keep: int | None = None
    ) -> int | None:
        """Queue an object. Return its number, or None without room. See `Link.send`."""
        mine = sorted((q for q in self._unsent if q.peer == peer), key=lambda q: q.number)
        old = [] if keep is None else mine[: max(0, len(mine) + 1 - keep)]
        if not self._make_room(peer, len(payload), old, spares_own=keep is None):
            return None
        for queued in old:
            reason = events.SUPERSEDED if queued.peer == peer else "others needed the room"
            self.cancel(queued.number, reason)
        queued = events.Queued(self._number, peer, receivers, payload)
        self._number += 1
        self._waiting.append(queued)
        self._events.append(queued)
        return queued.number

    def _make_room(
        self, peer: str, size: int, old: list[events.Queued], *, spares_own: bool
    ) -> bool:
        """Add objects to `old` until `size` bytes have room; False if they cannot have it.

        The first to go is the oldest unsent object of the peer that uses most, if `peer` uses
        less. A broadcast is divided among its receivers.
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

    def cancel(self, number: int, reason: str = events.CANCELLED) -> None:
        """Forget an object; nothing happens if there is none of this number."""
        for queued in [q for q in self._waiting if q.number == number]:
            self._waiting.remove(queued)
            self._events.append(events.GaveUp(number, queued.receivers, reason))
        for sending in [s for s in self._active if s.queued.number == number]:
            self._close(sending, events.GaveUp(number, tuple(sending.waiting), reason))

    # Messages of receivers

    def receive_status(self, peer: str, status: messages.Status, now: float) -> None:
        """Handle a status. In a burst only a receipt counts; after the receipt, no status."""
        found = [s for s in self._active if s.offer.name == status.name]
        for sending in [s for s in found if peer in s.waiting]:
            sending.check(status.needs)
            sending.attempts = 0
            if sending.has_progress(peer, status.needs):
                sending.progress_at = now
                sending.answers = 0
            if not status.needs:
                sending.done.add(peer)
                sending.needs.pop(peer, None)
            elif not sending.queue:
                sending.needs[peer] = status.needs
            if not status.needs and sending.waiting:
                self._events.append(events.ReceiverDone(sending.queued.number, peer))
            if not sending.waiting:
                self._close(
                    sending, events.Delivered(sending.queued.number, sending.queued.receivers)
                )
            elif all(name in sending.needs for name in sending.waiting):
                sending.offer_to.clear()  # all of them have the offer
                self._answer(sending, now)

    def receive_question(self, peer: str, question: messages.Question) -> None:
        """Handle a question: a receiver has symbols without their offer."""
        for sending in self._active:
            is_it = sending.offer.slot == question.slot and peer in sending.waiting
            if is_it and not {peer, sending.queued.peer} & set(sending.offer_to):
                sending.offer_to.append(peer)

    def _answer(self, sending: OutgoingObject, now: float) -> None:
        """Begin a burst for the receivers that sent a status, or give up without progress."""
        is_late = now - sending.progress_at >= self._give_up_s(sending)
        if sending.answers >= (ANSWERS_MIN if is_late else ANSWERS_MAX):
            gave_up = events.GaveUp(sending.queued.number, tuple(sending.waiting), "no progress")
            self._close(sending, gave_up)
            return
        sending.answers += 1
        sending.ask_for(most_needed([sending.needs[name] for name in sending.needs]))
        sending.needs.clear()
        sending.at = None
        limit = sending.reserve()
        if limit is not None:
            self._events.append(events.RepairsReserved(sending.queued.number, limit))

    # Timers

    def next_timeout(self) -> float | None:
        """Return the time when `handle_timeout` is due; None if it is not needed."""
        return earliest(*(sending.at for sending in self._active))

    def handle_timeout(self, now: float) -> None:
        """Continue with receivers that answered; else offer again, or stop without answers."""
        due = [s for s in self._active if s.at is not None and now >= s.at]
        for sending in due:
            if sending.needs:
                self._answer(sending, now)
            elif sending.attempts >= POLLS_MIN and now - sending.progress_at >= self._give_up_s(
                sending
            ):
                gave_up = events.GaveUp(sending.queued.number, tuple(sending.waiting), "no answer")
                self._close(sending, gave_up)
            else:
                sending.offer_to = [sending.next_to_ask()]
                sending.at = None
                sending.attempts += 1

    def _give_up_s(self, sending: OutgoingObject) -> float:
        """How long a transfer may make no progress: less where broadcasts wait behind it."""
        lane = self._lane(sending.queued)
        is_in_the_way = lane.is_full and any(self._lane(q) is lane for q in self._waiting)
        if is_in_the_way and lane is self._lanes.get(None):
            return self._settings.make_way_s
        return self._settings.give_up_s

    # Frames

    @property
    def has_frames(self) -> bool:
        """Whether there is a symbol or offer to send now."""
        return any(sending.has_frames for sending in self._active)

    def begin(self) -> None:
        """Begin the transfers of the oldest objects that wait, while their lanes have room."""
        for queued in tuple(self._waiting):
            if self._may_begin(queued):
                self._waiting.remove(queued)
                slot = self._lane(queued).free.popleft()
                sending = self._open(queued, slot)
                sending.queue.extend(range(sending.layout.count))
                self._events.append(events.TransferBegun(queued.number, slot))

    def _may_begin(self, queued: events.Queued) -> bool:
        lane = self._lane(queued)
        if lane.is_full or lane is self._lanes.get(None) or not lane.active:
            return not lane.is_full
        size = sum(len(s.queued.payload) for s in lane.active.values()) + len(queued.payload)
        return SHARE * size <= self._settings.outgoing_bytes_max

    def bodies(self, now: float, room: int) -> list[tuple[str, bytes]]:
        """Return at most `room` bodies with their peers, oldest objects first."""
        found: list[tuple[str, bytes]] = []
        sending_now = (sending for sending in self._active if sending.has_frames)
        order = sorted(sending_now, key=lambda sending: sending.queued.number)
        for sending in order:
            if len(found) >= room:
                break
            found += self._bodies(sending, now, room - len(found))
        return found

    def _bodies(self, sending: OutgoingObject, now: float, room: int) -> list[tuple[str, bytes]]:
        sending.begun = True
        sending.progress_at = min(sending.progress_at, now)
        bodies = [(peer, messages.write_message(sending.offer)) for peer in sending.offer_to[:room]]
        del sending.offer_to[:room]
        count = min(room - len(bodies), len(sending.queue))
        indexes = [sending.queue.popleft() for _ in range(count)]
        name, payload = sending.offer.name, sending.queued.payload
        symbols = encode_symbols(sending.layout, name, payload, indexes)
        for place, (index, data) in enumerate(zip(indexes, symbols, strict=True), 1):
            is_last = place == count and not sending.queue
            body = messages.write_message(messages.Symbol(sending.offer.slot, index, data, is_last))
            bodies.append((sending.queued.peer, body))
        if not sending.has_frames:
            first_s = WAIT_IDLES * self._settings.idle_s
            pause_s = backoff_s(sending.attempts, first_s, self._settings.longest_s, self._rng)
            sending.at = now + pause_s
        return bodies

    # Begin and end

    @property
    def _unsent(self) -> list[events.Queued]:
        return [*self._waiting, *(s.queued for s in self._active if not s.begun)]

    @property
    def _active(self) -> list[OutgoingObject]:
        return [sending for lane in self._lanes.values() for sending in lane.active.values()]

    def _lane(self, queued: events.Queued) -> Lane:
        is_broadcast = queued.receivers != (queued.peer,)
        slots = range(LANE_SLOTS, messages.SLOTS) if is_broadcast else range(LANE_SLOTS)
        return self._lanes.setdefault(None if is_broadcast else queued.peer, Lane(deque(slots)))

    def _open(self, queued: events.Queued, slot: int) -> OutgoingObject:
        size = len(queued.payload)
        layout = Layout(size, best_symbol_bytes(size, self._settings.symbol_room))
        name = messages.object_name(queued.number, queued.payload)
        offer = messages.Offer(slot, queued.number & 0xFFFF, name, size, layout.symbol_bytes)
        lane = self._lane(queued)
        sending = lane.active[slot] = OutgoingObject(queued, offer, layout, lane.begun)
        sending.offer_to = [queued.peer]
        sending.next_repair = [0] * layout.generations
        lane.begun += 1
        return sending

    def _close(self, sending: OutgoingObject, event: events.LinkEvent) -> None:
        lane = self._lane(sending.queued)
        slot = sending.offer.slot
        del lane.active[slot]
        lane.free.append(slot)
        self._events.append(event)
