"""A LoRa channel that many nodes share: a seeded simulation without I/O, driven by events.

Modelled: exact time on air, who hears whom how well, collisions with capture, half duplex, listen
before talk with random backoff, random loss per link, and a budget such as a duty cycle.

Simplified: one channel and one setting for all; no fading, a link's SNR stays what it is; a frame
survives another that overlaps it, however shortly, if it is stronger by `capture_db`, whichever
came first; several weaker ones do not add up; a radio that listens is never in any other state;
sensing never errs, and hears only what a receiver could decode; signals need no time to travel.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from ternmesh.link.airtime import LoraSetting, airtime_us

Position = tuple[float, float]  # metres
# (name, airtime_s, now) -> seconds to wait before it is asked again; 0.0 grants and spends it.
Budget = Callable[[str, float, float], float]

# The weakest SNR that is decoded at spreading factor 7 to 12 (SX1276 data sheet).
SNR_MIN_DB = {7: -7.5, 8: -10.0, 9: -12.5, 10: -15.0, 11: -17.5, 12: -20.0}
QUEUE_MAX = 16  # frames that wait in one radio; more are refused
SENSE_SYMBOLS = 2  # channel activity detection; who starts within it is not noticed
WINDOW_SYMBOLS = 32  # the first backoff is at most this long, and doubles with every busy channel
DOUBLINGS_MAX = 5
# Log-distance path loss as measured at 868 MHz in a built-up area (Bor et al., MSWiM 2016).
LOSS_AT_40_M_DB, PATH_EXPONENT = 127.41, 2.08
NOISE_FIGURE_DB = 6.0


@dataclass(frozen=True, slots=True)
class Link:
    """How one node hears another: SNR in dB, and the probability that a frame is lost anyway."""

    snr_db: float = 10.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.loss <= 1:
            raise ValueError(f"a link's loss must be 0 to 1, not {self.loss:g}")


@dataclass(frozen=True, slots=True)
class Delivery:
    """`frame` of `sender`, as `name` has received it at `at`, the end of its transmission."""

    at: float
    name: str
    sender: str
    frame: bytes
    snr_db: float


@dataclass(slots=True)
class RadioCounters:
    """What became of one node's frames; the last four count receivers within reach, per frame."""

    sent: int = 0
    refused: int = 0
    airtime_s: float = 0.0
    delivered: int = 0
    collided: int = 0
    deaf: int = 0  # the receiver was transmitting itself
    lost: int = 0


@dataclass(slots=True)
class _Node:
    name: str
    position: Position | None
    queue: deque[bytes] = field(default_factory=deque)
    tries: int = 0  # how often the channel was busy for the first frame of the queue


@dataclass(slots=True, eq=False)
class _Transmission:
    node: _Node
    frame: bytes
    others: set[str] = field(default_factory=set)  # who transmitted during any of it


@dataclass(frozen=True, slots=True, order=True)
class _Event:
    at: float
    order: int  # at one moment what was planned first comes first
    action: Callable[[float], None] = field(compare=False)


def snr_db(distance_m: float, setting: LoraSetting, power_dbm: float = 14.0) -> float:
    """The SNR at `distance_m` by the path loss above and thermal noise."""
    path_db = LOSS_AT_40_M_DB + 10 * PATH_EXPONENT * math.log10(max(distance_m, 1.0) / 40.0)
    noise_dbm = -174.0 + 10 * math.log10(setting.bandwidth_khz * 1e3) + NOISE_FIGURE_DB
    return power_dbm - path_db - noise_dbm


class RadioChannel:
    """The channel; `now` is seconds of any clock that never runs backwards.

    `links` says who hears whom, by (sender, receiver): pairs that it lacks do not. Without it nodes
    with positions hear each other by distance, and all others by `link`. `capture_db` may be
    infinite: then every overlap destroys both frames.
    """

    def __init__(
        self,
        setting: LoraSetting,
        rng: np.random.Generator,
        *,
        links: Mapping[tuple[str, str], Link] | None = None,
        link: Link | None = None,
        csma: bool = True,
        capture_db: float = 6.0,
        budget: Budget | None = None,
    ) -> None:
        self.setting = setting
        self.counters: dict[str, RadioCounters] = {}
        self._rng = rng
        self._links = links
        self._link = link or Link()
        self._csma = csma
        self._capture_db = capture_db
        self._budget = budget
        self._nodes: dict[str, _Node] = {}
        self._on_air: list[_Transmission] = []
        self._events: list[_Event] = []
        self._order = 0
        self._now = -math.inf
        self._deliveries: list[Delivery] = []

    def attach(self, name: str, position: Position | None = None) -> None:
        """Add a node; ValueError if it is there already."""
        if name in self._nodes:
            raise ValueError(f"node {name!r} is attached already")
        self._nodes[name] = _Node(name, position)
        self.counters[name] = RadioCounters()

    def transmit(self, name: str, frame: bytes, now: float) -> bool:
        """Queue `frame` at `name` to be sent as soon as it may; False if its queue is full."""
        node = self._nodes.get(name)
        if node is None:
            raise ValueError(f"no node {name!r} is attached")
        self._run(now)
        airtime_us(self.setting, len(frame))  # ValueError for a frame that no radio sends
        if len(node.queue) >= QUEUE_MAX:
            self.counters[name].refused += 1
            return False
        node.queue.append(frame)
        if len(node.queue) == 1:
            self._contend(node, now)
        return True

    def waiting(self, name: str) -> int:
        """The frames of `name` that are not sent yet, the one that is on the air included."""
        return len(self._nodes[name].queue)

    def next_time(self) -> float | None:
        """When something happens next, or None; to react in time, `advance` no further."""
        return self._events[0].at if self._events else None

    def advance(self, now: float) -> list[Delivery]:
        """Let everything happen that is due at `now`; what was received by then, in order."""
        self._run(now)
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def total(self) -> RadioCounters:
        """The counters of all nodes together."""
        names = [item.name for item in fields(RadioCounters)]
        return RadioCounters(
            *(sum(getattr(each, name) for each in self.counters.values()) for name in names)
        )

    def _run(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"the channel is at {self._now:g} s already, not at {now:g} s")
        self._now = now
        while self._events and self._events[0].at <= now:
            event = heapq.heappop(self._events)
            event.action(event.at)

    def _at(self, at: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, _Event(at, self._order, action))

    def _contend(self, node: _Node, now: float) -> None:
        """Look at the channel for the first frame of the queue, with CSMA after a random time."""
        wait_s = 0.0
        if self._csma:
            window = WINDOW_SYMBOLS << min(node.tries, DOUBLINGS_MAX)
            wait_s = self._rng.uniform(0.0, window * self._symbol_s)
        self._at(now + wait_s, lambda at: self._sense(node, at))

    def _sense(self, node: _Node, now: float) -> None:
        if self._csma and any(self._hears(each.node, node) for each in self._on_air):
            node.tries += 1
            self._contend(node, now)
            return
        wait_s = self._budget(node.name, self._airtime_s(node), now) if self._budget else 0.0
        if wait_s > 0:
            self._at(now + wait_s, lambda at: self._sense(node, at))
            return
        start_s = now + SENSE_SYMBOLS * self._symbol_s if self._csma else now
        self._at(start_s, lambda at: self._start(node, at))

    def _start(self, node: _Node, now: float) -> None:
        transmission = _Transmission(node, node.queue[0])
        for other in self._on_air:
            other.others.add(node.name)
            transmission.others.add(other.node.name)
        self._on_air.append(transmission)
        airtime_s = self._airtime_s(node)
        counters = self.counters[node.name]
        counters.sent += 1
        counters.airtime_s += airtime_s
        self._at(now + airtime_s, lambda at: self._end(transmission, at))

    def _end(self, transmission: _Transmission, now: float) -> None:
        self._on_air.remove(transmission)
        sender = transmission.node
        for receiver in self._nodes.values():
            if self._hears(sender, receiver):
                self._receive(transmission, receiver, now)
        sender.queue.popleft()
        sender.tries = 0
        if sender.queue:
            self._contend(sender, now)

    def _receive(self, transmission: _Transmission, receiver: _Node, now: float) -> None:
        sender, counters = transmission.node, self.counters[transmission.node.name]
        link = self._link_of(sender, receiver)
        assert link is not None
        if receiver.name in transmission.others:
            counters.deaf += 1
        elif self._rival_db(transmission, receiver) > link.snr_db - self._capture_db:
            counters.collided += 1
        elif link.loss > 0 and self._rng.random() < link.loss:
            counters.lost += 1
        else:
            counters.delivered += 1
            self._deliveries.append(
                Delivery(now, receiver.name, sender.name, transmission.frame, link.snr_db)
            )

    def _rival_db(self, transmission: _Transmission, receiver: _Node) -> float:
        """The strongest of what overlapped, as SNR at `receiver`; minus infinity for nothing."""
        links = (self._link_of(self._nodes[name], receiver) for name in transmission.others)
        return max((link.snr_db for link in links if link is not None), default=-math.inf)

    def _hears(self, sender: _Node, receiver: _Node) -> bool:
        link = self._link_of(sender, receiver)
        return link is not None and link.snr_db >= SNR_MIN_DB[self.setting.spreading_factor]

    def _link_of(self, sender: _Node, receiver: _Node) -> Link | None:
        if sender is receiver:
            return None
        if self._links is not None:
            return self._links.get((sender.name, receiver.name))
        if sender.position is None or receiver.position is None:
            return self._link
        distance_m = math.dist(sender.position, receiver.position)
        return Link(snr_db(distance_m, self.setting), self._link.loss)

    def _airtime_s(self, node: _Node) -> float:
        return airtime_us(self.setting, len(node.queue[0])) / 1e6

    @property
    def _symbol_s(self) -> float:
        return self.setting.symbol_us / 1e6
