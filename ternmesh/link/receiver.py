"""The receiving half of a link: objects on their way in, and the answers to their senders.

Each slot of each peer is in one state:

    state      event                                              next state
    -----      -----                                              ----------
    EMPTY      a symbol without an offer                          EARLY
    EMPTY      an offer                                           INCOMING
    EMPTY      an offer of an object that has arrived             FINISHED
    EARLY      its offer                                          INCOMING
    EARLY      an offer of an object that has arrived             FINISHED
    EARLY      too many questions without an answer, or no room   EMPTY
    INCOMING   the last symbol that it needs                      FINISHED
    INCOMING   another offer                                      INCOMING
    INCOMING   damaged, no symbol for `give_up_s`, or no room     EMPTY
    FINISHED   an offer                                           INCOMING
    FINISHED   a symbol, after a rest                             EARLY
    FINISHED   too many slots                                     EMPTY
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from ternmesh.errors import WireError
from ternmesh.link import events
from ternmesh.link.erasure_code import GENERATION_MAX, Decoder, Layout
from ternmesh.link.messages import Offer, Question, Status, Symbol, object_name, write_message
from ternmesh.link.settings import LinkSettings
from ternmesh.timers import backoff_s, earliest
from ternmesh.wire.frame import FRAME_OVERHEAD

GAPS = 4  # a silence of so many usual distances between symbols is the end of a burst
SYMBOL_COST = 128  # bytes of memory beside a symbol


@dataclass(slots=True)
class IncomingObject:
    """A slot that is INCOMING. Times in seconds."""

    offer: Offer
    decoder: Decoder
    memory_bytes: int  # at most
    at: float | None = None  # when to send a status
    attempts: int = 0  # statuses since the last symbol
    moved_at: float = 0.0  # when the last symbol arrived
    gap_s: float = 0.0  # between symbols, smoothed

    def note_arrival(self, now: float) -> None:
        """Measure how fast symbols arrive: a burst is over when none comes for longer."""
        gap_s = now - self.moved_at
        self.gap_s = gap_s if self.gap_s == 0.0 else 0.75 * self.gap_s + 0.25 * gap_s
        self.moved_at = now
        self.attempts = 0


@dataclass(slots=True)
class Early:
    """A slot that is EARLY: symbols whose offer was lost, until it is sent again."""

    symbols: dict[int, bytes] = field(default_factory=dict)  # by index
    memory_bytes: int = 0  # about
    at: float | None = None  # when to send a question
    attempts: int = 0  # questions since the last symbol
    moved_at: float = 0.0  # when the last symbol arrived

    def keep(self, index: int, data: bytes, now: float) -> None:
        self.attempts = 0
        self.moved_at = now
        if index not in self.symbols:
            self.symbols[index] = data
            self.memory_bytes += len(data) + SYMBOL_COST


PEERS_MAX = 1024  # peers; also objects, and answers that wait
REST_IDLES = 8  # `idle_s` after the last symbol of a whole object in which its slot stays FINISHED
SILENCES_MAX = 6  # answers in a row without effect; then the peer must send first
Slot = tuple[str, int]  # a peer and the number of its slot


@dataclass(slots=True)
class _Finished:
    name: bytes  # of the object that arrived
    until: float  # when a symbol is of another object
    at: float | None = None  # when to send the receipt


class Receiver:
    """The incoming objects of a link. `queue` takes the events of the link."""

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
        self._resumed = state.incoming  # until `start`
        # Names of the last objects of each peer
        self._arrived = {peer: deque(n, events.ARRIVED_MAX) for peer, n in state.arrived.items()}
        # A slot that is not EMPTY is in one of these three.
        self._incoming: dict[Slot, IncomingObject] = {}
        self._early: dict[Slot, Early] = {}
        self._finished: dict[Slot, _Finished] = {}
        # Answers to send, by peer and by the object's name or the slot
        self._answers: dict[tuple[str, bytes], bytes] = {}

    def start(self, now: float) -> None:
        """Resume the transfers from before a restart."""
        for record in self._resumed:
            try:
                receiving = self._open(record.peer, record.offer, now)
            except WireError:  # the settings have changed
                self._events.append(events.IncomingDropped(record.peer, record.offer))
                continue
            for index, data in record.symbols:
                receiving.decoder.add(index, data)
        self._resumed = ()

    # Messages of senders

    def receive_offer(self, peer: str, offer: Offer, is_broadcast: bool, now: float) -> None:
        """Take an offer: an object begins, or its sender asks for a status."""
        slot = (peer, offer.slot)
        answer_at = now + self._spread_s(is_broadcast)
        if offer.name in self._arrived.get(peer, ()):
            self._drop(slot)
            self._end(slot, offer.name, now)
            self._answer_at(slot, answer_at)
            return
        receiving = self._incoming.get(slot)
        if receiving is not None and receiving.offer == offer:
            # Within a burst the offer is for another receiver: no status now.
            is_over = now - receiving.moved_at >= self._settings.idle_s
            self._answer_at(slot, answer_at + (0.0 if is_over else self._quiet_s(receiving)))
            return
        early = self._early.get(slot)
        receiving = self._open(peer, offer, now)
        if early is None:
            self._answer_at(slot, answer_at + self._settings.idle_s)
            return
        for index, data in early.symbols.items():
            if len(data) == offer.symbol_bytes:
                self._add(peer, receiving, index, data, now)
        self._answer_at(slot, answer_at)

    def receive_symbol(self, peer: str, symbol: Symbol, is_broadcast: bool, now: float) -> None:
        """Take a symbol of an object under way, of one that has arrived, or of one not offered.

        The answer waits for the end of the burst: the sender does not listen before.
        """
        slot = (peer, symbol.slot)
        quiet_s = self._settings.idle_s
        receiving = self._incoming.get(slot)
        finished = self._finished.get(slot)
        if receiving is not None:
            self._add(peer, receiving, symbol.index, symbol.data, now)
            self._answers.pop((peer, receiving.offer.name), None)  # out of date now
            quiet_s = self._quiet_s(receiving)
        elif finished is not None and now < finished.until:
            self._end(slot, finished.name, now)
        else:
            self._keep_early(slot, symbol, now)
        wait_s = 0.0 if symbol.is_last else quiet_s
        self._answer_at(slot, now + wait_s + self._spread_s(is_broadcast))

    def _add(
        self, peer: str, receiving: IncomingObject, index: int, data: bytes, now: float
    ) -> None:
        is_new = receiving.decoder.add(index, data)
        receiving.note_arrival(now)
        if not is_new:
            return
        if not receiving.decoder.is_complete:
            self._events.append(events.SymbolHeld(peer, receiving.offer, index, data))
            return
        offer, payload = receiving.offer, receiving.decoder.data()
        self._drop((peer, offer.slot))
        if object_name(offer.number, payload) != offer.name:
            self._events.append(events.LinkRefused(peer, "damaged object"))
            return
        self._remember(peer, offer.name)
        self._end((peer, offer.slot), offer.name, now)
        self._events.append(events.ObjectArrived(peer, offer.name, payload))

    def _keep_early(self, slot: Slot, symbol: Symbol, now: float) -> None:
        if slot not in self._early and len(self._early) >= PEERS_MAX:
            del self._early[next(iter(self._early))]
        self._finished.pop(slot, None)
        early = self._early.setdefault(slot, Early())
        held = sum(receiving.memory_bytes for receiving in self._incoming.values())
        held += sum(other.memory_bytes for other in self._early.values())
        if held + len(symbol.data) + SYMBOL_COST <= self._settings.incoming_bytes_max:
            early.keep(symbol.index, symbol.data, now)

    # Timers

    def _pending(self) -> Iterator[tuple[Slot, IncomingObject | _Finished | Early]]:
        return chain(self._incoming.items(), self._finished.items(), self._early.items())

    def next_timeout(self) -> float | None:
        """Return the time when `handle_timeout` is due; None if it is not needed."""
        return earliest(*(item.at for _, item in self._pending()))

    def handle_timeout(self, now: float) -> None:
        """Send the answers that are due, with longer and longer pauses while nothing follows."""
        due = [(slot, i) for slot, i in self._pending() if i.at is not None and now >= i.at]
        for slot, item in due:
            match item:
                case IncomingObject() if now - item.moved_at >= self._settings.give_up_s:
                    self._drop(slot)
                case IncomingObject():
                    self._queue_answer(slot[0], Status(item.offer.name, item.decoder.missing))
                    end = item.moved_at + self._settings.give_up_s
                    self._wait(item, now, self._quiet_s(item), end)
                case _Finished():
                    self._queue_answer(slot[0], Status(item.name, ()))
                    item.at = None
                case Early() if item.attempts >= SILENCES_MAX:
                    del self._early[slot]
                case Early():
                    self._queue_answer(slot[0], Question(slot[1]))
                    end = now + self._settings.longest_s
                    self._wait(item, now, self._settings.idle_s, end)

    def _answer_at(self, slot: Slot, at: float) -> None:
        for item in (self._incoming.get(slot), self._finished.get(slot), self._early.get(slot)):
            if item is not None:
                item.at = at

    def _wait(self, item: IncomingObject | Early, now: float, quiet_s: float, end: float) -> None:
        pause_s = backoff_s(item.attempts, quiet_s, self._settings.longest_s, self._rng)
        item.attempts += 1
        item.at = end if item.attempts >= SILENCES_MAX else now + pause_s

    def _quiet_s(self, receiving: IncomingObject) -> float:
        """Return how long a pause must be to end a burst."""
        return max(self._settings.idle_s, GAPS * receiving.gap_s)

    def _spread_s(self, is_broadcast: bool) -> float:
        """A random pause before the answer to a broadcast: receivers must not answer at once."""
        return self._settings.spread_s * self._rng.random() if is_broadcast else 0.0

    # Answers

    @property
    def has_frames(self) -> bool:
        return bool(self._answers)

    def bodies(self, room: int) -> list[tuple[str, bytes]]:
        """Return at most `room` answers."""
        keys = list(islice(self._answers, max(0, room)))
        return [(key[0], self._answers.pop(key)) for key in keys]

    def _queue_answer(self, peer: str, answer: Status | Question) -> None:
        if len(self._answers) >= PEERS_MAX:  # its sender asks again
            del self._answers[next(iter(self._answers))]
        about = answer.name if isinstance(answer, Status) else bytes((answer.slot,))
        self._answers[peer, about] = write_message(answer, self._settings.mtu - FRAME_OVERHEAD)

    # Begin and end

    def _open(self, peer: str, offer: Offer, now: float) -> IncomingObject:
        """Make room and begin. Raises WireError if the object is too large for the room."""
        layout = Layout(offer.size, offer.symbol_bytes)
        # The decoder keeps the coefficients behind each symbol.
        memory_bytes = layout.count * (layout.symbol_bytes + GENERATION_MAX)
        room = self._settings.incoming_bytes_max - memory_bytes
        if offer.size > self._settings.object_max or room < 0:
            raise WireError("link", f"an object of {offer.size} bytes is too large here")
        slot = (peer, offer.slot)
        self._make_room(slot, memory_bytes, now)
        decoder = Decoder(layout, offer.name)
        at = now + self._settings.idle_s
        self._finished.pop(slot, None)
        self._incoming[slot] = IncomingObject(offer, decoder, memory_bytes, at, moved_at=now)
        return self._incoming[slot]

    def _make_room(self, slot: Slot, memory_bytes: int, now: float) -> None:
        """Empty the slot, and others as far as needed; on WireError none is emptied.

        EARLY slots go first: their symbols cost a hostile sender nothing.
        """
        left = self._settings.incoming_bytes_max - memory_bytes
        kept = [key for key in self._incoming if key != slot]
        if len(kept) >= PEERS_MAX:
            kept.remove(self._slot_to_empty(slot[0], 1, dict.fromkeys(kept, 1), now))
        costs = {key: self._incoming[key].memory_bytes for key in kept}
        left -= sum(costs.values())
        while left < 0:
            left += costs.pop(self._slot_to_empty(slot[0], memory_bytes, costs, now))
        for key in (slot, *(key for key in tuple(self._incoming) if key not in costs)):
            self._drop(key)
        left -= sum(early.memory_bytes for early in self._early.values())
        for key in sorted(self._early, key=lambda key: self._early[key].moved_at):
            if left >= 0:
                break
            left += self._early[key].memory_bytes
            self._drop(key)

    def _slot_to_empty(self, peer: str, cost: int, costs: dict[Slot, int], now: float) -> Slot:
        """Of the peer that uses most memory, the slot whose last symbol is the oldest.

        If `peer` itself would use most, a slot without a symbol for `make_way_s`, or WireError.
        """
        claims: Counter[str] = Counter({peer: cost})
        for (sender, _), each in costs.items():
            claims[sender] += each
        moved = {slot: self._incoming[slot].moved_at for slot in costs}
        most = max(claims[sender] for sender, _ in costs)
        slots = [slot for slot in costs if claims[slot[0]] == most >= claims[peer]]
        if not slots:
            end = now - self._settings.make_way_s
            slots = [slot for slot in costs if moved[slot] <= end]
        if not slots:
            raise WireError("link", "other transfers fill the memory: offer it later")
        return min(slots, key=lambda slot: moved[slot])

    def _drop(self, slot: Slot) -> None:
        self._early.pop(slot, None)
        self._answers.pop((slot[0], bytes((slot[1],))), None)  # the question about it
        receiving = self._incoming.pop(slot, None)
        if receiving is not None:
            self._answers.pop((slot[0], receiving.offer.name), None)
            self._events.append(events.IncomingDropped(slot[0], receiving.offer))

    def _end(self, slot: Slot, name: bytes, now: float) -> None:
        self._early.pop(slot, None)
        self._finished.pop(slot, None)
        if len(self._finished) >= PEERS_MAX:
            del self._finished[next(iter(self._finished))]
        self._finished[slot] = _Finished(name, now + REST_IDLES * self._settings.idle_s)

    def _remember(self, peer: str, name: bytes) -> None:
        names = self._arrived.pop(peer, deque(maxlen=events.ARRIVED_MAX))
        if len(self._arrived) >= PEERS_MAX:  # the peer without an object for longest
            del self._arrived[next(iter(self._arrived))]
        self._arrived[peer] = names
        names.append(name)
