"""Several bearers as one: each frame leaves over the first that will do for those whom it is for.

They are tried in order; one that is down or busy is passed over. Radios that stand side by side
take turns, so that each spends its own airtime. A bearer over which a peer has not answered for
`patience_s` is passed over for that peer, too, for a while, unless there is no other: it may be up
here and down there. A frame for all is sent over as many bearers as it takes to reach all.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from transports.base import ALL, Arrival, Busy, NotConnected
from transports.linked import StatusTransport

SLICE_S = 0.02  # how long one bearer is listened to while others may speak
REST = 20  # after so many times the patience a silent bearer gets another chance
NOTES_MAX = 4096  # pairs of peer and bearer that are remembered; peers' names are not ours


@dataclass(frozen=True, slots=True)
class Bearer:
    """One of several; `peers` are those whom it reaches, None where that is everybody.

    `metered`: its airtime is counted.
    """

    name: str
    transport: StatusTransport
    peers: frozenset[str] | None = None
    metered: bool = False

    def reaches(self, peer: str) -> bool:
        """Whether `peer` may be there; ALL stands for those whom nobody has named."""
        return self.peers is None or peer in self.peers


class Several:
    """See `transports.base.Transport`. `receivers` are those whom a frame for all must reach.

    What is for a peer whose bearers are all down, or take nothing for `patience_s`, is lost, as on
    each of them, and counted; it does not keep others waiting.
    """

    def __init__(
        self,
        bearers: Sequence[Bearer],
        receivers: Collection[str] = (),
        patience_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bearers, self._patience_s, self._clock = tuple(bearers), patience_s, clock
        self._receivers = frozenset(receivers)
        self._turns: dict[str, int] = dict.fromkeys((b.name for b in bearers), 0)
        self._sent: dict[str, int] = dict.fromkeys(self._turns, 0)  # frames
        self._unanswered: dict[tuple[str, str], float] = {}  # since when, by peer and bearer
        self._heard: dict[tuple[str, str], float] = {}
        self._busy: dict[str, float] = {}  # since when bearers have taken nothing
        self._begun: tuple[str, tuple[bytes, ...]] = ("", ())  # a send that some bearer broke off
        self._left: frozenset[str] = frozenset()  # whom that has not reached yet
        self._listening: Iterator[Bearer] = cycle(self._bearers)
        self.frames_dropped = 0

    @property
    def mtu(self) -> int:
        """The longest frame in bytes that all of them carry."""
        return min(bearer.transport.mtu for bearer in self._bearers)

    @property
    def connected(self) -> bool:
        """Whether one of them is up."""
        return any(bearer.transport.connected for bearer in self._bearers)

    def open(self) -> None:
        """Start all."""
        for bearer in self._bearers:
            bearer.transport.open()

    def close(self) -> None:
        """Stop all."""
        for bearer in self._bearers:
            bearer.transport.close()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """See `Transport.send`; Busy until the same call has reached everybody that it can."""
        up = [bearer for bearer in self._bearers if bearer.transport.connected]
        if not up:
            raise NotConnected(f"not connected: {self._troubles()}")
        call = peer, tuple(frames)
        left = self._left if call == self._begun else self._receivers_of(peer)
        routes = {name: self._routes(peer, name, up) for name in left}
        size, busy = 0, False
        for bearer in self._in_order(up, routes):
            here = {name for name in left if bearer in routes[name]}
            if not here:
                continue
            try:
                size += bearer.transport.send(peer, frames)
            except Busy:
                if self._is_stuck(bearer):
                    routes = _without(bearer, routes)
                else:
                    busy = True
            except NotConnected:
                self._busy.pop(bearer.name, None)
                routes = _without(bearer, routes)
            else:
                left -= here
                self._note_sent(bearer, here, len(frames))
        self._begun, self._left = call, frozenset(name for name in left if routes[name])
        if busy and self._left:
            raise Busy("a bearer still works on earlier frames: try again soon")
        self._begun = ("", ())
        self.frames_dropped += len(frames) if left else 0
        return size

    def receive(self, timeout_s: float) -> Arrival | None:
        """The next arrival of any, or None after `timeout_s`."""
        until = time.monotonic() + timeout_s
        for bearer in self._bearers:
            if arrival := self._listen(bearer, 0.0):
                return arrival
        while (left_s := until - time.monotonic()) > 0:
            if arrival := self._listen(next(self._listening), min(left_s, SLICE_S)):
                return arrival
        return None

    def status(self) -> dict[str, object]:
        """That of each, and what they are together, ready for JSON."""
        told = {bearer.name: bearer.transport.status() for bearer in self._bearers}
        airtimes = [us for one in told.values() if isinstance(us := one.get("airtime_us"), int)]
        return {
            "connected": self.connected,
            "last_error": None if self.connected else self._troubles(),
            "frames_dropped": self.frames_dropped,
            **({"airtime_us": sum(airtimes)} if airtimes else {}),
            "bearers": {name: {**told[name], "frames_sent": self._sent[name]} for name in told},
        }

    def _receivers_of(self, peer: str) -> frozenset[str]:
        if peer != ALL:
            return frozenset((peer,))
        unnamed = any(bearer.peers is None for bearer in self._bearers)
        return self._receivers | ({ALL} if unnamed else set())

    def _routes(self, peer: str, name: str, up: Sequence[Bearer]) -> list[Bearer]:
        """The bearers that will do for `name`, to whom a frame for `peer` goes."""
        ways = [bearer for bearer in up if bearer.reaches(name)]
        now = self._clock()
        return [b for b in ways if not self._is_doubted(b, name, peer == ALL, now)] or ways

    def _is_doubted(self, bearer: Bearer, name: str, is_broadcast: bool, now: float) -> bool:
        """Whether frames over `bearer` do not seem to arrive at `name`.

        Frames for all often want no answer: silence tells something only where the peer has spoken
        elsewhere.
        """
        since = self._unanswered.get((name, bearer.name))
        if since is None or not 1 <= (now - since) / self._patience_s < REST:
            return False
        others = (b.name for b in self._bearers if b != bearer)
        return not is_broadcast or any(self._heard.get((name, o), since) > since for o in others)

    def _in_order(self, up: Sequence[Bearer], routes: dict[str, list[Bearer]]) -> list[Bearer]:
        """`up` as they are to be tried: radios side by side by turns."""
        now = self._clock()
        if routes and all(
            self._is_doubted(bearer, name, False, now) for name in routes for bearer in up
        ):
            return sorted(up, key=lambda bearer: self._turns[bearer.name])
        ranks, rank = {}, 0
        for before, bearer in zip((None, *self._bearers), self._bearers, strict=False):
            rank += not (bearer.metered and before is not None and before.metered)
            ranks[bearer.name] = rank
        return sorted(up, key=lambda bearer: (ranks[bearer.name], self._turns[bearer.name]))

    def _is_stuck(self, bearer: Bearer) -> bool:
        """Whether a busy bearer is as good as down, for it has taken nothing for long.

        A radio is not: it works off what it has, however long its duty cycle makes that.
        """
        since = self._busy.setdefault(bearer.name, self._clock())
        return not bearer.metered and self._clock() >= since + self._patience_s

    def _note_sent(self, bearer: Bearer, names: Collection[str], count: int) -> None:
        self._turns[bearer.name] = max(self._turns.values()) + 1
        self._busy.pop(bearer.name, None)
        self._sent[bearer.name] += count
        now = self._clock()
        for name in names:
            since = self._unanswered.setdefault((name, bearer.name), now)
            if now >= since + REST * self._patience_s:
                self._unanswered[name, bearer.name] = now
        while len(self._unanswered) > NOTES_MAX:
            del self._unanswered[next(iter(self._unanswered))]

    def _listen(self, bearer: Bearer, wait_s: float) -> Arrival | None:
        arrival = bearer.transport.receive(wait_s)
        if arrival is not None:
            note = arrival.peer, bearer.name
            self._unanswered.pop(note, None)
            self._heard.pop(note, None)
            self._heard[note] = self._clock()
            while len(self._heard) > NOTES_MAX:
                del self._heard[next(iter(self._heard))]
        return arrival

    def _troubles(self) -> str:
        told = ((bearer.name, bearer.transport.status()) for bearer in self._bearers)
        return "; ".join(f"{name}: {status.get('last_error')}" for name, status in told)


def _without(bearer: Bearer, routes: dict[str, list[Bearer]]) -> dict[str, list[Bearer]]:
    return {name: [other for other in way if other != bearer] for name, way in routes.items()}
