"""The receiving half of a link: objects on their way in, and what to say about them."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from ternmesh.errors import WireError
from ternmesh.link.code import GENERATION_MAX, Layout
from ternmesh.link.coder import Coder
from ternmesh.link.frames import Offer, Question, Status, Symbol, write
from ternmesh.link.outbound import object_name
from ternmesh.link.receiving import GAPS, SYMBOL_COST, Early, Receiving
from ternmesh.link.records import (
    ARRIVED_MAX,
    IncomingDropped,
    LinkEvent,
    LinkRefused,
    LinkState,
    ObjectArrived,
    SymbolHeld,
)
from ternmesh.wire import seal

if TYPE_CHECKING:
    from ternmesh.link.link import LinkSettings

PEERS_MAX = 1024  # also of objects, and of answers that wait
REST = 8  # times `idle_s`: so long after its last symbol a slot is taken to be empty
SILENCES_MAX = 6  # answers in a row without effect; then the peer must speak first
Slot = tuple[str, int]


@dataclass(slots=True)
class _Finished:
    name: bytes
    until: float
    at: float | None = None


class Inbound:
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
        self._resumed = state.incoming
        self._arrived = {peer: deque(n, ARRIVED_MAX) for peer, n in state.arrived.items()}
        # A slot of a peer is in one of these three at most.
        self._incoming: dict[Slot, Receiving] = {}
        self._early: dict[Slot, Early] = {}
        self._finished: dict[Slot, _Finished] = {}
        self._answers: dict[tuple[str, bytes], bytes] = {}

    def start(self, now: float) -> None:
        """Take up what was held before a restart."""
        for record in self._resumed:
            try:
                receiving = self._open(record.peer, record.offer, now)
            except WireError:  # the settings were others
                self._events.append(IncomingDropped(record.peer, record.offer))
                continue
            for index, data in record.symbols:
                receiving.decoder.add(index, data)
        self._resumed = ()

    # What senders say

    def offered(self, peer: str, offer: Offer, is_broadcast: bool, now: float) -> None:
        """An object begins, or its sender wants to know."""
        slot, answer_at = (peer, offer.slot), now + self._spread_s(is_broadcast)
        if offer.name in self._arrived.get(peer, ()):
            self._drop(slot)
            self._end(slot, offer.name, now)
            self._speak(slot, answer_at)
            return
        receiving = self._incoming.get(slot)
        if receiving is not None and receiving.offer == offer:
            # Within a burst another receiver has asked for it: this is no time to speak.
            is_over = now - receiving.moved_at >= self._settings.idle_s
            self._speak(slot, answer_at + (0.0 if is_over else self._quiet_s(receiving)))
            return
        early = self._early.get(slot)
        receiving = self._open(peer, offer, now)
        if early is None:
            self._speak(slot, answer_at + self._settings.idle_s)
            return
        for index, data in early.symbols.items():
            if len(data) == offer.symbol_bytes:
                self._add(peer, receiving, index, data, now)
        self._speak(slot, answer_at)

    def symbol(self, peer: str, symbol: Symbol, is_broadcast: bool, now: float) -> None:
        """A symbol of an object under way, of one that is there, or of one not offered.

        Whatever there is to say waits for the end of the burst: the sender does not listen before.
        """
        slot, quiet_s = (peer, symbol.slot), self._settings.idle_s
        receiving, finished = self._incoming.get(slot), self._finished.get(slot)
        if receiving is not None:
            self._add(peer, receiving, symbol.index, symbol.data, now)
            self._answers.pop((peer, receiving.offer.name), None)  # it is out of date
            quiet_s = self._quiet_s(receiving)
        elif finished is not None and now < finished.until:
            self._end(slot, finished.name, now)
        else:
            self._keep_early(slot, symbol, now)
        wait_s = 0.0 if symbol.is_last else quiet_s
        self._speak(slot, now + wait_s + self._spread_s(is_broadcast))

    def _add(self, peer: str, receiving: Receiving, index: int, data: bytes, now: float) -> None:
        is_new = receiving.decoder.add(index, data)
        receiving.note_arrival(now)
        if not is_new:
            return
        if not receiving.decoder.is_complete:
            self._events.append(SymbolHeld(peer, receiving.offer, index, data))
            return
        offer, payload = receiving.offer, receiving.decoder.data()
        self._drop((peer, offer.slot))
        if object_name(offer.number, payload) != offer.name:
            self._events.append(LinkRefused(peer, "damaged object"))
            return
        self._remember(peer, offer.name)
        self._end((peer, offer.slot), offer.name, now)
        self._events.append(ObjectArrived(peer, offer.name, payload))

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

    def _pending(self) -> Iterator[tuple[Slot, Receiving | _Finished | Early]]:
        return chain(self._incoming.items(), self._finished.items(), self._early.items())

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        return min((item.at for _, item in self._pending() if item.at is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Say what is lacking, ever more seldom while nothing comes of it."""
        due = [(slot, i) for slot, i in self._pending() if i.at is not None and now >= i.at]
        for slot, item in due:
            match item:
                case Receiving() if now - item.moved_at >= self._settings.give_up_s:
                    self._drop(slot)
                case Receiving():
                    self._say(slot[0], Status(item.offer.name, item.decoder.missing))
                    end = item.moved_at + self._settings.give_up_s
                    self._wait(item, now, self._quiet_s(item), end)
                case _Finished():
                    self._say(slot[0], Status(item.name, ()))
                    item.at = None
                case Early() if item.attempts >= SILENCES_MAX:
                    del self._early[slot]
                case Early():
                    self._say(slot[0], Question(slot[1]))
                    end = now + self._settings.longest_s
                    self._wait(item, now, self._settings.idle_s, end)

    def _speak(self, slot: Slot, at: float) -> None:
        """Say at this time what there is to say of a slot."""
        for item in (self._incoming.get(slot), self._finished.get(slot), self._early.get(slot)):
            if item is not None:
                item.at = at

    def _wait(self, item: Receiving | Early, now: float, quiet_s: float, end: float) -> None:
        item.attempts += 1
        doublings = min(item.attempts - 1, SILENCES_MAX)  # offers may come without an end
        delay_s = min(self._settings.longest_s, quiet_s * 2.0**doublings)
        jitter = 0.75 + 0.5 * self._rng.random()
        item.at = end if item.attempts >= SILENCES_MAX else now + delay_s * jitter

    def _quiet_s(self, receiving: Receiving) -> float:
        """So long a silence is the end of a burst."""
        return max(self._settings.idle_s, GAPS * receiving.gap_s)

    def _spread_s(self, is_broadcast: bool) -> float:
        """Receivers of a broadcast must not answer all at once."""
        spread_s: float = self._settings.spread_s * self._rng.random() if is_broadcast else 0.0
        return spread_s

    # Answers

    @property
    def has_frames(self) -> bool:
        """Whether there is an answer to send."""
        return bool(self._answers)

    def bodies(self, room: int) -> list[tuple[str, bytes]]:
        """At most `room` answers."""
        keys = list(islice(self._answers, max(0, room)))
        return [(key[0], self._answers.pop(key)) for key in keys]

    def _say(self, peer: str, answer: Status | Question) -> None:
        if len(self._answers) >= PEERS_MAX:  # who misses it will ask again
            del self._answers[next(iter(self._answers))]
        about = answer.name if isinstance(answer, Status) else bytes((answer.slot,))
        self._answers[peer, about] = write(answer, self._settings.mtu - seal.OVERHEAD)

    # Begin and end

    def _open(self, peer: str, offer: Offer, now: float) -> Receiving:
        """Make room, and begin; WireError where an object is too large, or has no room now."""
        layout = Layout(offer.size, offer.symbol_bytes)
        # Behind each symbol stand its coefficients.
        memory_bytes = layout.count * (layout.symbol_bytes + GENERATION_MAX)
        room = self._settings.incoming_bytes_max - memory_bytes
        if offer.size > self._settings.object_max or room < 0:
            raise WireError("link", f"an object of {offer.size} bytes is too large here")
        slot = (peer, offer.slot)
        self._make_room(slot, memory_bytes, now)
        decoder = self._coder.decoder(layout, offer.name)
        at = now + self._settings.idle_s
        self._finished.pop(slot, None)
        self._incoming[slot] = Receiving(offer, decoder, memory_bytes, at, moved_at=now)
        return self._incoming[slot]

    def _make_room(self, slot: Slot, memory_bytes: int, now: float) -> None:
        """Forget what the slot holds, and others as far as needed; WireError forgets nothing.

        What nobody has offered is the first to go, as it cost its sender nothing.
        """
        left = self._settings.incoming_bytes_max - memory_bytes
        kept = [key for key in self._incoming if key != slot]
        if len(kept) >= PEERS_MAX:
            kept.remove(self._who_makes_way(slot[0], 1, dict.fromkeys(kept, 1), now))
        costs = {key: self._incoming[key].memory_bytes for key in kept}
        left -= sum(costs.values())
        while left < 0:
            left += costs.pop(self._who_makes_way(slot[0], memory_bytes, costs, now))
        for key in (slot, *(key for key in tuple(self._incoming) if key not in costs)):
            self._drop(key)
        left -= sum(early.memory_bytes for early in self._early.values())
        for key in sorted(self._early, key=lambda key: self._early[key].moved_at):
            if left >= 0:
                break
            left += self._early[key].memory_bytes
            self._drop(key)

    def _who_makes_way(self, peer: str, cost: int, costs: dict[Slot, int], now: float) -> Slot:
        """Of the peer that claims most, what moved longest ago: an offer is cheap, symbols not.

        Who would claim most and has nothing takes the place of what moves no longer, or none.
        """
        claims: Counter[str] = Counter({peer: cost})
        for (sender, _), each in costs.items():
            claims[sender] += each
        moved = {slot: self._incoming[slot].moved_at for slot in costs}
        most = max(claims[sender] for sender, _ in costs)
        found = [slot for slot in costs if claims[slot[0]] == most >= claims[peer]]
        if not found:
            end = now - self._settings.make_way_s
            found = [slot for slot in costs if moved[slot] <= end]
        if not found:
            raise WireError("link", "others are sending what fills the memory: offer it later")
        return min(found, key=lambda slot: moved[slot])

    def _drop(self, slot: Slot) -> None:
        self._early.pop(slot, None)
        self._answers.pop((slot[0], bytes((slot[1],))), None)  # the question about it
        receiving = self._incoming.pop(slot, None)
        if receiving is not None:
            self._answers.pop((slot[0], receiving.offer.name), None)
            self._events.append(IncomingDropped(slot[0], receiving.offer))

    def _end(self, slot: Slot, name: bytes, now: float) -> None:
        self._early.pop(slot, None)
        self._finished.pop(slot, None)
        if len(self._finished) >= PEERS_MAX:
            del self._finished[next(iter(self._finished))]
        self._finished[slot] = _Finished(name, now + REST * self._settings.idle_s)

    def _remember(self, peer: str, name: bytes) -> None:
        names = self._arrived.pop(peer, deque(maxlen=ARRIVED_MAX))
        if len(self._arrived) >= PEERS_MAX:  # the peer of whom nothing came for longest
            del self._arrived[next(iter(self._arrived))]
        self._arrived[peer] = names
        names.append(name)
