"""Several bearers as one: each frame leaves over the first bearer that reaches its receivers.

Bearers are tried in order; one that is down or busy is skipped. Neighbouring radios in this order
take turns, so that each uses its own airtime. A bearer over which a peer has not answered for
`patience_s` is skipped for this peer for a while, unless there is no other: it may be up at this
end and down at the other. A broadcast is sent over as many bearers as it takes to reach all.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from transports.base import (
    ALL,
    Arrival,
    Busy,
    NotConnected,
    Spare,
    SpareTransport,
    StatusTransport,
    TransportStatus,
)

SLICE_S = 0.02  # how long one bearer is listened to before the next
REST = 20  # after so many times `patience_s` a silent bearer is tried again
NOTES_MAX = 4096  # pairs of peer and bearer that are remembered; a bearer can bring any name


@dataclass(frozen=True, slots=True)
class Bearer:
    name: str
    transport: StatusTransport
    peers: frozenset[str] | None = None  # that it reaches; None: all
    metered: bool = False  # its airtime is limited by law

    def reaches(self, peer: str) -> bool:
        """Whether `peer` may be there; ALL stands for peers that no configuration names."""
        return self.peers is None or peer in self.peers


class MultipathTransport:
    """See `transports.base.Transport`. `receivers` are the peers that a broadcast must reach.

    A frame for a peer whose bearers are all down, or take nothing for `patience_s`, is lost and
    counted: it must not hold up the others.
    """

    def __init__(
        self,
        bearers: Sequence[Bearer],
        receivers: Collection[str] = (),
        patience_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bearers = tuple(bearers)
        self._patience_s = patience_s
        self._clock = clock
        self._receivers = frozenset(receivers)
        self._turns = dict.fromkeys((b.name for b in bearers), 0)  # by bearer; the lowest is next
        self._sent = dict.fromkeys(self._turns, 0)  # frames, by bearer
        self._unanswered: dict[tuple[str, str], float] = {}  # since when, by peer and bearer
        self._heard: dict[tuple[str, str], float] = {}  # when, by peer and bearer
        self._busy: dict[str, float] = {}  # since when a bearer has taken nothing
        self._begun: tuple[str, tuple[bytes, ...]] = ("", ())  # the call that ended in Busy
        self._left: frozenset[str] = frozenset()  # receivers that it has not reached
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
        for bearer in self._bearers:
            bearer.transport.open()

    def close(self) -> None:
        for bearer in self._bearers:
            bearer.transport.close()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """See `Transport.send`; Busy until the same call has reached all receivers that it can."""
        up = [bearer for bearer in self._bearers if bearer.transport.connected]
        if not up:
            raise NotConnected(f"not connected: {self._troubles()}")
        call = peer, tuple(frames)
        left = self._left if call == self._begun else self._receivers_of(peer)
        routes = {name: self._routes(peer, name, up) for name in left}
        size = 0
        is_busy = False
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
                    is_busy = True
            except NotConnected:
                self._busy.pop(bearer.name, None)
                routes = _without(bearer, routes)
            else:
                left -= here
                self._note_sent(bearer, here, len(frames))
        self._begun, self._left = call, frozenset(name for name in left if routes[name])
        if is_busy and self._left:
            raise Busy("a bearer still works on earlier frames: try again soon")
        self._begun = ("", ())
        self.frames_dropped += len(frames) if left else 0
        return size

    def receive(self, timeout_s: float) -> Arrival | None:
        until = time.monotonic() + timeout_s
        for bearer in self._bearers:
            if arrival := self._listen(bearer, 0.0):
                return arrival
        while (left_s := until - time.monotonic()) > 0:
            if arrival := self._listen(next(self._listening), min(left_s, SLICE_S)):
                return arrival
        return None

    def spare(self) -> Spare | None:
        """What the slowest bearer has to spare; None while one of them has frames that wait."""
        spares = [
            one.spare() if isinstance(one, SpareTransport) else Spare(one.mtu)
            for one in (bearer.transport for bearer in self._bearers)
            if one.connected
        ]
        free = [spare for spare in spares if spare is not None]
        if not free or len(free) < len(spares):
            return None
        return Spare(min(self.mtu, *(s.frame_max for s in free)), max(s.cost_s for s in free))

    def status(self) -> TransportStatus:
        each = {bearer.name: bearer.transport.status() for bearer in self._bearers}
        return TransportStatus(
            connected=self.connected,
            last_error=None if self.connected else self._troubles(),
            bytes_out=sum(status.bytes_out for status in each.values()),
            airtime_us=_sum(status.airtime_us for status in each.values()),
            airtime_left_us=_sum(status.airtime_left_us for status in each.values()),
            numbers={"frames_dropped": self.frames_dropped},
            bearers={
                name: replace(one, numbers={**one.numbers, "frames_sent": self._sent[name]})
                for name, one in each.items()
            },
        )

    def _receivers_of(self, peer: str) -> frozenset[str]:
        if peer != ALL:
            return frozenset((peer,))
        unnamed = any(bearer.peers is None for bearer in self._bearers)
        return self._receivers | ({ALL} if unnamed else set())

    def _routes(self, peer: str, name: str, up: Sequence[Bearer]) -> list[Bearer]:
        """The bearers that reach `name` with a frame for `peer`."""
        ways = [bearer for bearer in up if bearer.reaches(name)]
        now = self._clock()
        return [b for b in ways if not self._is_doubted(b, name, peer == ALL, now)] or ways

    def _is_doubted(self, bearer: Bearer, name: str, is_broadcast: bool, now: float) -> bool:
        """Whether frames over `bearer` do not seem to arrive at `name`.

        Many broadcasts have no answer: after one, silence counts only where the peer was heard over
        another bearer since.
        """
        since = self._unanswered.get((name, bearer.name))
        if since is None or not 1 <= (now - since) / self._patience_s < REST:
            return False
        others = (b.name for b in self._bearers if b != bearer)
        return not is_broadcast or any(self._heard.get((name, o), since) > since for o in others)

    def _in_order(self, up: Sequence[Bearer], routes: dict[str, list[Bearer]]) -> list[Bearer]:
        """The bearers `up` in the order to try them: neighbouring radios take turns."""
        now = self._clock()
        if routes and all(
            self._is_doubted(bearer, name, False, now) for name in routes for bearer in up
        ):
            return sorted(up, key=lambda bearer: self._turns[bearer.name])
        ranks = {}
        rank = 0
        for before, bearer in zip((None, *self._bearers), self._bearers, strict=False):
            rank += not (bearer.metered and before is not None and before.metered)
            ranks[bearer.name] = rank
        return sorted(up, key=lambda bearer: (ranks[bearer.name], self._turns[bearer.name]))

    def _is_stuck(self, bearer: Bearer) -> bool:
        """Whether a busy bearer counts as down, because it has taken nothing for long.

        A radio does not: it works off its queue, however long its duty cycle makes that.
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
        each = ((bearer.name, bearer.transport.status()) for bearer in self._bearers)
        return "; ".join(f"{name}: {status.last_error}" for name, status in each)


def _sum(values: Iterable[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _without(bearer: Bearer, routes: dict[str, list[Bearer]]) -> dict[str, list[Bearer]]:
    return {name: [other for other in way if other != bearer] for name, way in routes.items()}
