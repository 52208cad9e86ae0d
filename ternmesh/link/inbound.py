"""The receiving half of a link: objects on their way in, and what to say about them."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ternmesh.errors import WireError
from ternmesh.link.code import Layout
from ternmesh.link.coder import Coder
from ternmesh.link.frames import Offer, Question, Status, Symbol, write
from ternmesh.link.outbound import object_name
from ternmesh.link.receiving import GAPS, Early, Receiving
from ternmesh.link.records import (
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

PEERS_MAX = 1024
OF_PEER_MAX = 4  # objects on their way in from one peer
ARRIVED_MAX = 64  # names that are remembered of each peer
REST = 8  # times `idle_s`: so long after its last symbol a slot is taken to be empty
SILENCES_MAX = 12  # answers in a row without effect; then the peer must speak first
Slot = tuple[str, int]


@dataclass(slots=True)
class _Finished:
    name: bytes
    until: float


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
        self._incoming: OrderedDict[Slot, Receiving] = OrderedDict()
        self._early: dict[Slot, Early] = {}
        self._finished: dict[Slot, _Finished] = {}
        self._answers: dict[tuple[str, bytes], bytes] = {}

    def start(self, now: float) -> None:
        """Take up what was held before a restart."""
        for record in self._resumed:
            receiving = self._open(record.peer, record.offer, self._layout(record.offer), now)
            for index, data in record.symbols:
                receiving.decoder.add(index, data)
            receiving.at = now + self._settings.idle_s
        self._resumed = ()

    # What senders say

    def offered(self, peer: str, offer: Offer, is_broadcast: bool, now: float) -> None:
        """An object begins, or its sender wants to know."""
        slot = (peer, offer.slot)
        if offer.name in self._arrived.get(peer, ()):
            self._drop(slot)
            self._end(slot, offer.name, now)
            self._say(peer, Status(offer.name, ()))
            return
        receiving = self._incoming.get(slot)
        if receiving is not None and receiving.offer == offer:
            receiving.at = now + self._spread_s(is_broadcast)
            return
        layout = self._layout(offer)
        self._drop(slot)
        receiving = self._open(peer, offer, layout, now)
        early = self._early.pop(slot, Early())
        for index, data in early.symbols:
            self._add(peer, receiving, index, data, now)
        if slot in self._incoming and early.symbols:
            receiving.at = now + self._spread_s(is_broadcast)

    def symbol(self, peer: str, symbol: Symbol, is_broadcast: bool, now: float) -> None:
        """A symbol of an object under way, of one that is there, or of one not offered."""
        slot = (peer, symbol.slot)
        receiving, finished = self._incoming.get(slot), self._finished.get(slot)
        if receiving is not None:
            self._add(peer, receiving, symbol.index, symbol.data, now)
            if slot in self._incoming:
                quiet_s = max(self._settings.idle_s, GAPS * receiving.gap_s)
                wait_s = self._spread_s(is_broadcast) if symbol.is_last else quiet_s
                receiving.at = now + wait_s
        elif finished is not None and now < finished.until:
            self._end(slot, finished.name, now)
            if symbol.is_last:
                self._say(peer, Status(finished.name, ()))
        else:
            self._keep_early(slot, symbol, now)

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
        self._say(peer, Status(offer.name, ()))

    def _keep_early(self, slot: Slot, symbol: Symbol, now: float) -> None:
        if slot not in self._early and len(self._early) >= PEERS_MAX:
            raise WireError("link", "symbols of too many objects that nobody has offered")
        self._finished.pop(slot, None)
        early = self._early.setdefault(slot, Early(at=now))
        held = sum(early.size for early in self._early.values())
        if held + len(symbol.data) <= self._settings.incoming_bytes_max:
            early.keep(symbol.index, symbol.data)
        if symbol.is_last:
            early.at = now

    # Timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        pending: list[Receiving | Early] = [*self._incoming.values(), *self._early.values()]
        return min((item.at for item in pending if item.at is not None), default=None)

    def handle_timeout(self, now: float) -> None:
        """Say what is lacking, ever more seldom while nothing comes of it."""
        for (peer, _), receiving in self._incoming.items():
            if receiving.at is not None and now >= receiving.at:
                self._say(peer, Status(receiving.offer.name, receiving.decoder.missing))
                self._wait(receiving, now, receiving.gap_s)
        for (peer, slot), early in list(self._early.items()):
            if early.at is not None and now >= early.at:
                self._answers[peer, bytes((slot,))] = write(Question(slot))
                self._wait(early, now, 0.0)
                if early.at is None:
                    del self._early[peer, slot]

    def _wait(self, item: Receiving | Early, now: float, gap_s: float) -> None:
        item.attempts += 1
        quiet_s = max(self._settings.idle_s, GAPS * gap_s) * 2.0 ** (item.attempts - 1)
        jitter = 0.75 + 0.5 * self._rng.random()
        is_over = item.attempts >= SILENCES_MAX
        item.at = None if is_over else now + min(self._settings.longest_s, quiet_s) * jitter

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
        keys = list(self._answers)[: max(0, room)]
        return [(peer, self._answers.pop((peer, name))) for peer, name in keys]

    def _say(self, peer: str, status: Status) -> None:
        self._answers[peer, status.name] = write(status, self._settings.mtu - seal.OVERHEAD)

    # Begin and end

    def _layout(self, offer: Offer) -> Layout:
        most = self._settings.object_max
        if offer.size > most:
            raise WireError("link", f"an object of {offer.size} bytes: at most {most} are taken")
        return Layout(offer.size, offer.symbol_bytes)

    def _open(self, peer: str, offer: Offer, layout: Layout, now: float) -> Receiving:
        """Make room, and begin."""
        held = [slot for slot in self._incoming if slot[0] == peer]
        if len(held) >= OF_PEER_MAX:
            self._drop(held[0])
        room = self._settings.incoming_bytes_max - offer.size
        while self._incoming and sum(r.offer.size for r in self._incoming.values()) > room:
            self._drop(next(iter(self._incoming)))
        decoder = self._coder.decoder(layout, offer.name)
        receiving = Receiving(offer, decoder, now + self._settings.idle_s, moved_at=now)
        self._finished.pop((peer, offer.slot), None)
        self._incoming[peer, offer.slot] = receiving
        return receiving

    def _drop(self, slot: Slot) -> None:
        receiving = self._incoming.pop(slot, None)
        if receiving is not None:
            self._events.append(IncomingDropped(slot[0], receiving.offer))

    def _end(self, slot: Slot, name: bytes, now: float) -> None:
        if len(self._finished) >= PEERS_MAX:
            del self._finished[next(iter(self._finished))]
        self._early.pop(slot, None)
        self._finished[slot] = _Finished(name, now + REST * self._settings.idle_s)

    def _remember(self, peer: str, name: bytes) -> None:
        if peer not in self._arrived and len(self._arrived) >= PEERS_MAX:
            del self._arrived[next(iter(self._arrived))]
        self._arrived.setdefault(peer, deque(maxlen=ARRIVED_MAX)).append(name)
