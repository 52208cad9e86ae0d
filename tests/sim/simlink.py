"""Links under faults, each from one seed: a host and some nodes, crashes, hostile frames, airtime.

In half of them the ends have keys, and somebody in the middle lies in their names.
Disks follow the rules of ternmesh_store, in memory: what was not committed is lost in a crash.
"""

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from ternmesh.link import events, ledger
from ternmesh.link.ledger import HOUR_S, Ledger, Moment, Record
from ternmesh.link.link import Link, LinkFull
from ternmesh.link.messages import Symbol, is_link, read_message
from ternmesh.link.settings import LinkSettings
from ternmesh.security.keyed_sealing import FRAME_MIN
from ternmesh.security.sealing import Change, CountersReserved, SecurityChanged
from ternmesh.wire.frame import BROADCAST, Header, open_seal, seal_open
from tests.faulty import Bursts, FaultModel, Faults
from tests.sim.simhop import HopKeys, Middle, key_of

HOST, ALL = "host", "all"
FRAME_US = 60_000  # one frame of these links, whatever its length
HEALED_S = 100_000.0  # after the faults: by then everything must have arrived
WRAP = 1 << 16


class Violation(AssertionError):
    """A promise of the link was broken."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one seed draws."""

    nodes: int
    objects: int
    size_max: int
    mtu: int
    faults: Faults
    faults_s: float
    crash: float  # chance of a crash at each settling, while faults last
    hostile: float  # hostile frames a second
    budget_us: int  # of air in an hour, for each end
    broadcast: bool
    number: int  # of the first object; the air has 16 bits of it
    keyed: bool


def draw(seed: int) -> Options:
    """Each fault is on in about half of all seeds."""
    rng = random.Random(seed)

    def maybe(highest: float) -> float:
        return rng.random() * highest if rng.random() < 0.5 else 0.0

    burst = Bursts(0.05, 0.25, 0.02, 0.9) if rng.random() < 0.3 else None
    return Options(
        nodes=rng.randint(1, 4),
        objects=rng.randint(1, 12),
        size_max=rng.choice((40, 600, 3000)),
        mtu=rng.choice((51, 184, 255)),
        faults=Faults(
            drop=maybe(0.6),
            duplicate=maybe(0.4),
            reorder=maybe(0.4),
            reorder_s=rng.choice((0.5, 5.0)),
            flip=maybe(0.2),
            delay_s=rng.choice((0.0, 0.1, 2.0)),
            burst=burst,
        ),
        faults_s=rng.choice((60.0, 600.0)),
        crash=maybe(0.05),
        hostile=maybe(2.0),
        budget_us=rng.choice((9_000_000, 36_000_000_000)),
        broadcast=rng.random() < 0.5,
        number=rng.choice((0, WRAP // 2 - 2, WRAP - 2)),
        keyed=rng.random() < 0.5,
    )


@dataclass(slots=True)
class Disk:
    """The state of one end as the last commit left it, and as this process has written it."""

    committed: events.LinkState = field(default_factory=events.LinkState)
    working: events.LinkState = field(default_factory=events.LinkState)
    inbox: list[tuple[str, bytes]] = field(default_factory=list)
    fresh: list[tuple[str, bytes]] = field(default_factory=list)
    seals: dict[str, Change] = field(default_factory=dict)
    fresh_seals: dict[str, Change] = field(default_factory=dict)

    def record(self, event: events.LinkEvent) -> None:
        state = self.working
        match event:
            case CountersReserved(limit):
                state = replace(state, counter=limit)
            case SecurityChanged(changes):
                self.fresh_seals |= {key_of(change): change for change in changes}
            case events.Queued():
                out = (*state.outgoing, events.OutRecord(event))
                state = replace(state, outgoing=out, number=event.number + 1)
            case events.TransferBegun(number, slot):
                state = _noted(state, number, slot=slot)
            case events.RepairsReserved(number, limit):
                state = _noted(state, number, repairs=limit)
            case events.Delivered() | events.GaveUp():
                out = tuple(r for r in state.outgoing if r.queued.number != event.number)
                state = replace(state, outgoing=out)
            case events.SymbolHeld():
                state = replace(state, incoming=_hold(state.incoming, event))
            case events.IncomingDropped(peer, offer):
                kept = (r for r in state.incoming if (r.peer, r.offer.slot) != (peer, offer.slot))
                state = replace(state, incoming=tuple(kept))
            case events.ObjectArrived(peer, name, payload):
                names = (*state.arrived.get(peer, ()), name)[-64:]
                state = replace(state, arrived={**state.arrived, peer: names})
                self.fresh.append((peer, payload))
        self.working = state

    def commit(self) -> None:
        self.committed = self.working
        self.inbox += self.fresh
        self.seals |= self.fresh_seals
        self.fresh, self.fresh_seals = [], {}

    def crash(self) -> None:
        self.working, self.fresh, self.fresh_seals = self.committed, [], {}


def _noted(state: events.LinkState, number: int, **known: Any) -> events.LinkState:
    out = (replace(r, **known) if r.queued.number == number else r for r in state.outgoing)
    return replace(state, outgoing=tuple(out))


def _hold(
    records: tuple[events.InRecord, ...], event: events.SymbolHeld
) -> tuple[events.InRecord, ...]:
    others: list[events.InRecord] = []
    symbols: tuple[tuple[int, bytes], ...] = ()
    for record in records:
        if (record.peer, record.offer) == (event.peer, event.offer):
            symbols = record.symbols
        else:
            others.append(record)
    symbols = (*symbols, (event.index, event.data))
    return (*others, events.InRecord(event.peer, event.offer, symbols))


class End:
    """One process and its disk, radio and ledger."""

    def __init__(self, air: "Air", name: str) -> None:
        self.air, self.name = air, name
        empty = events.LinkState(number=air.options.number)
        self.disk = Disk(empty, empty)
        self.ledger = Ledger(air.options.budget_us)
        self.record: tuple[Record, Moment] = (self.ledger.settle(), Moment("boot", air.now))
        self.sent: list[float] = []
        self.repairs: set[tuple[bytes, int]] = set()
        self.counters: set[int] = set()
        self.events: Counter[str] = Counter()
        self.busy_until = 0.0
        self.begin()

    def begin(self) -> None:
        rng = np.random.default_rng(self.air.rng.getrandbits(32))
        self.sealing: Any = None
        state = self.disk.committed
        if self.air.options.keyed:
            self.sealing = self.air.keys.sealing(self.name, state.counter, self.disk.seals)
        self.link = Link(self.air.settings, state, rng, sealing=self.sealing)
        self.link.start(self.air.now)
        self.settle()

    def settle(self) -> None:
        """Events, commit, frames: a crash may come between any two of them."""
        happened = False
        while (event := self.link.next_event()) is not None:
            self.events[type(event).__name__] += 1
            self.disk.record(event)
            happened = True
        if happened and self.air.crashes(self):
            return
        self.disk.commit()
        self.air.check_memory(self)
        self.send()

    def send(self) -> None:
        """One frame when the radio is free and the ledger has room."""
        now = self.air.now
        if not self.link.has_frames or now < self.busy_until:
            return
        if not self.ledger.reserve(now, FRAME_US):
            self.busy_until = self.ledger.next_free_s(now, FRAME_US)
            self.air.at(self.busy_until, self.settle)
            return
        if (record := self.ledger.record()) is not None:
            self.record = record, Moment("boot", now)
        for peer, frame in self.link.frames_to_send(now, 1):
            self.sent.append(now)
            self.air.carry(self.name, peer, frame, self.note(peer, frame))
        self.busy_until = now + FRAME_US / 1e6
        self.air.at(self.busy_until, self.settle)

    def note(self, peer: str, frame: bytes) -> bytes:
        """No seal counter and no repair symbol is used twice, whatever crashes; the body."""
        counter = int.from_bytes(frame[3:6], "little")
        body = self.sealing.bodies[frame] if self.sealing else open_seal(frame)[1]
        if counter in self.counters:
            raise Violation(f"{self.name} uses counter {counter} twice")
        self.counters.add(counter)
        message = read_message(body) if is_link(body) else None
        if isinstance(message, Symbol):
            lane = self.link._out._lanes[None if peer == ALL else peer]
            sending = lane.active[message.slot]
            repair = sending.offer.name, message.index
            if message.index >= sending.layout.count and repair in self.repairs:
                raise Violation(f"{self.name} sends symbol {message.index} twice")
            self.repairs.add(repair)
        return body

    def receive(self, peer: str, frame: bytes) -> None:
        self.link.receive_frame(peer, frame, self.air.now)
        self.settle()

    def crash(self) -> None:
        """The process dies and begins again; the machine does not."""
        self.events["crash"] += 1
        self.disk.crash()
        self.busy_until = self.air.now
        record, then = self.record
        budget_us, now = self.air.options.budget_us, Moment("boot", self.air.now)
        self.ledger = ledger.resume(budget_us, record, then, now)
        self.record = self.ledger.settle(), now
        self.begin()


class Air:
    """The clock, the wires and the ends of one seed."""

    def __init__(self, seed: int) -> None:
        self.options = o = draw(seed)
        self.rng = random.Random(f"link {seed}")
        self.now, self.healed = 0.0, False
        self.settings = LinkSettings(
            mtu=max(o.mtu, FRAME_MIN) if o.keyed else o.mtu,
            longest_s=120.0,
            give_up_s=1e9,
            make_way_s=1e9,
            spread_s=1.0,
            addresses={ALL: BROADCAST},
        )
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._models: dict[tuple[str, str], FaultModel] = {}
        self._seed = seed
        self.sent: dict[str, list[bytes]] = {}
        names = [HOST, *(f"n{i}" for i in range(o.nodes))]
        self.keys = HopKeys(random.Random(f"keys {seed}"), names)
        self.middle = Middle(random.Random(f"middle {seed}"))
        self.ends: dict[str, End] = {}
        for name in names:
            self.ends[name] = End(self, name)

    def at(self, time: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time, next(self._order), do))

    def carry(self, sender: str, peer: str, frame: bytes, body: bytes) -> None:
        names = [n for n in self.ends if n != sender] if peer == ALL else [peer]
        for name in [n for n in names if n in self.ends]:
            self.middle.hear(sender, name, frame, body)
            model = self._models.get((sender, name))
            if model is None:
                rng = np.random.default_rng((self._seed, len(self._models)))
                model = self._models[sender, name] = FaultModel(self.options.faults, rng)
            arrivals = [(self.now, frame)] if self.healed else model.apply(frame, self.now)
            for when, copy in arrivals:
                self.at(when + FRAME_US / 1e6, partial(self._arrive, name, sender, copy))

    def _arrive(self, name: str, sender: str, frame: bytes) -> None:
        self.ends[name].receive(sender, frame)

    def crashes(self, end: End) -> bool:
        if self.healed or self.rng.random() >= self.options.crash:
            return False
        self.at(self.now, end.crash)
        end.link = cast(Link, _Dead())
        return True

    def check_memory(self, end: End) -> None:
        held = sum(r.offer.size for r in end.disk.committed.incoming)
        if held > self.settings.incoming_bytes_max:
            raise Violation(f"{end.name} holds {held} bytes")

    def run(self) -> None:
        """Objects are sent while faults last; then all of them must arrive."""
        o = self.options
        for number in range(o.objects):
            self.at(self.rng.uniform(0, o.faults_s), partial(self._send, number))
        for number in range(int(o.hostile * o.faults_s) if o.hostile else 0):
            self.at(self.rng.uniform(0, o.faults_s), partial(self._attack, number))
        self.at(o.faults_s, self._heal)
        while self._heap:
            timeouts = [(e.link.next_timeout(), n) for n, e in self.ends.items()]
            due, name = min(((t, n) for t, n in timeouts if t is not None), default=(None, ""))
            if due is not None and due <= self._heap[0][0]:
                self.now = max(self.now, due)
                self.ends[name].link.handle_timeout(self.now)
                self.ends[name].settle()
                continue
            self.now, _, do = heapq.heappop(self._heap)
            do()
            if self.healed and self._is_done():
                break
        self._check()

    def _heal(self) -> None:
        self.healed = True
        self.at(self.now + HEALED_S, lambda: None)

    def _is_done(self) -> bool:
        return not any(end.disk.committed.outgoing for end in self.ends.values())

    def _send(self, number: int) -> None:
        size = self.rng.randint(1, self.options.size_max)
        payload = number.to_bytes(2, "little") + self.rng.randbytes(size)
        nodes = [name for name in self.ends if name != HOST]
        if self.options.broadcast and self.rng.random() < 0.5:
            sender, peer, receivers = HOST, ALL, nodes
        else:
            node = self.rng.choice(nodes)
            sender, peer = self.rng.choice(((HOST, node), (node, HOST)))
            receivers = [peer]
        end = self.ends[sender]
        try:
            end.link.send(peer, payload, receivers=receivers)
        except LinkFull:
            return
        before = len(end.disk.committed.outgoing)
        end.settle()
        if len(end.disk.committed.outgoing) > before or isinstance(end.link, Link):
            for name in receivers:
                self.sent.setdefault(name, []).append(payload)

    def _attack(self, number: int) -> None:
        """Bytes of anybody: noise, and sealed bodies of the link that mean nothing.

        Under keys, whatever can be made of what others have said, in their names.
        """
        if self.options.keyed and (lie := self.middle.lie()) is not None:
            sender, receiver, frame = lie
            self.ends[receiver].receive(sender, frame)
            return
        name = self.rng.choice(list(self.ends))
        body = bytes((self.rng.choice((0x06, 0x07, 0x08, 0x50, 0x5F, 0x63)),)) + self.rng.randbytes(
            self.rng.randint(0, 30)
        )
        frame = self.rng.choice((self.rng.randbytes(40), seal_open(Header(1, number), body)))
        self.ends[name].receive("stranger", frame)

    def _check(self) -> None:
        for name, end in self.ends.items():
            wanted = Counter(self.sent.get(name, ()))
            got = Counter(p for peer, p in end.disk.inbox if peer != "stranger")
            if extra := got - wanted:
                raise Violation(f"{name} got {sum(extra.values())} objects more than were sent")
            if missing := wanted - got:
                raise Violation(f"{name} lacks {sum(missing.values())} objects at {self.now}")
            if end.disk.committed.outgoing:
                raise Violation(f"{name} still waits for receipts at {self.now}")
            if end.sealing is not None and end.sealing.clones:
                raise Violation(f"{name} has heard of clones, and nobody was copied")
            self._check_air(end)

    def _check_air(self, end: End) -> None:
        window: deque[float] = deque()
        for when in end.sent:
            window.append(when)
            while window[0] + HOUR_S <= when:
                window.popleft()
            if len(window) * FRAME_US > self.options.budget_us:
                raise Violation(f"{end.name} sent {len(window)} frames within an hour")


class _Dead:
    """A process between its crash and its next start."""

    has_frames = False

    def receive_frame(self, peer: str, frame: bytes, now: float) -> None: ...

    def handle_timeout(self, now: float) -> None: ...

    def next_timeout(self) -> None: ...

    def next_event(self) -> None: ...


def run_seed(seed: int) -> Air:
    """The whole life of one seed; Violation where a promise breaks."""
    air = Air(seed)
    air.run()
    return air
