"""Several bearers as one: who gets what over which, and objects whose bearers die under them."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.loopback import LoopbackHub
from ternmesh.link.messages import Symbol, is_link, read_message
from ternmesh.link.settings import LinkSettings
from ternmesh.wire.frame import Header, open_seal, seal_open
from ternmesh_store.state_file import StateFile
from tests.faulty import Faults, FaultyTransport
from transports.base import ALL, HOST, Arrival, Busy, NotConnected, Transport, TransportStatus
from transports.multipath import REST, Bearer, MultipathTransport
from transports.reliable import ReliableTransport

MTU = 120
PATIENCE_S = 10.0


class Wire:
    """A bearer that takes `room` frames and keeps what it took."""

    mtu = 200

    def __init__(self) -> None:
        self.connected, self.room = True, 1000
        self.sent: list[tuple[str, bytes]] = []
        self.inbox: deque[Arrival] = deque()

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.connected = False

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        if not self.connected:
            raise NotConnected("down")
        if self.room < len(frames):
            raise Busy("full")
        self.room -= len(frames)
        self.sent += [(peer, frame) for frame in frames]
        return sum(map(len, frames))

    def receive(self, timeout_s: float) -> Arrival | None:
        return self.inbox.popleft() if self.inbox else None

    def status(self) -> TransportStatus:
        return TransportStatus(connected=self.connected, last_error="unplugged", airtime_us=5)


class Bench:
    """Some wires under one transport, and a clock that stands still."""

    def __init__(self, *bearers: tuple[str, set[str] | None, bool], receivers: str = "") -> None:
        self.now = 0.0
        self.wires = {name: Wire() for name, _, _ in bearers}
        self.multipath = MultipathTransport(
            [
                Bearer(name, self.wires[name], None if peers is None else frozenset(peers), metered)
                for name, peers, metered in bearers
            ],
            receivers.split(),
            PATIENCE_S,
            lambda: self.now,
        )

    def carried(self, peer: str, frame: bytes) -> list[str]:
        """Over which of them a frame leaves now."""
        self.multipath.send(peer, [frame])
        return [name for name, wire in self.wires.items() if (peer, frame) in wire.sent]

    def hear(self, peer: str, name: str) -> None:
        self.wires[name].inbox.append(Arrival(peer, (b"x",), 1))
        assert self.multipath.receive(0.0) == Arrival(peer, (b"x",), 1)


def radios(receivers: str = "") -> Bench:
    return Bench(("near", {"ada", "bo"}, True), ("far", {"ada"}, True), receivers=receivers)


def test_what_is_down_or_busy_is_passed_over() -> None:
    bench = Bench(("net", None, False), ("radio", None, True))
    assert bench.carried(HOST, b"1") == bench.carried(HOST, b"2") == ["net"]
    bench.wires["net"].connected = False
    assert bench.carried(HOST, b"3") == ["radio"]
    bench.wires["radio"].room = 0
    with pytest.raises(Busy):
        bench.multipath.send(HOST, [b"4"])
    bench.wires["radio"].connected = False
    assert not bench.multipath.connected
    with pytest.raises(NotConnected, match="net: unplugged; radio: unplugged"):
        bench.multipath.send(HOST, [b"4"])


def test_a_bearer_that_takes_nothing_for_long_holds_up_nobody() -> None:
    bench = Bench(("ada's", {"ada"}, False), ("bo's", {"bo"}, False), receivers="ada bo")
    bench.wires["ada's"].room = 0
    for _ in range(3):  # so long it may just be at work
        with pytest.raises(Busy):
            bench.multipath.send(ALL, [b"1"])
    bench.now += PATIENCE_S
    assert bench.carried(ALL, b"1") == ["bo's"]
    assert bench.carried(ALL, b"2") == ["bo's"]
    assert bench.multipath.frames_dropped == 2
    bench.wires["ada's"].room = 1
    assert bench.carried(ALL, b"3") == ["ada's", "bo's"]
    with pytest.raises(Busy):  # its time begins anew
        bench.multipath.send(ALL, [b"4"])
    radio = Bench(("near", {"ada"}, True), receivers="ada")  # works as long as its duty cycle takes
    radio.wires["near"].room = 0
    for _ in range(3):
        with pytest.raises(Busy):
            radio.multipath.send("ada", [b"1"])
        radio.now += 10 * PATIENCE_S


def test_radios_take_turns_and_each_reaches_its_own() -> None:
    bench = radios()
    ways = [bench.carried("ada", bytes([i])) for i in range(4)]
    assert ways == [["near"], ["far"], ["near"], ["far"]]
    assert bench.carried("bo", b"5") == bench.carried("bo", b"6") == ["near"]
    told = bench.multipath.status()
    assert told.airtime_us == 10
    assert [bearer.numbers["frames_sent"] for bearer in told.bearers.values()] == [4, 2]
    assert bench.multipath.mtu == 200


def test_a_frame_for_all_goes_where_it_takes_to_reach_all_and_nowhere_twice() -> None:  # R8.2-37
    bench = Bench(("near", {"ada"}, True), ("far", {"bo"}, True), receivers="ada bo")
    assert bench.carried(ALL, b"1") == ["near", "far"]
    bench.wires["far"].room = 0
    with pytest.raises(Busy):
        bench.multipath.send(ALL, [b"2"])
    bench.wires["far"].room = 1
    assert bench.carried(ALL, b"2") == ["near", "far"]
    assert bench.wires["near"].sent.count((ALL, b"2")) == 1
    bench.wires["far"].connected = False  # who is out of reach keeps nobody waiting
    assert bench.carried(ALL, b"3") == ["near"]
    assert bench.multipath.frames_dropped == 1
    both = radios(receivers="ada")
    assert [both.carried(ALL, bytes([i])) for i in range(2)] == [["near"], ["far"]]


def test_a_bearer_that_brings_no_answers_rests() -> None:
    bench = Bench(("net", None, False), ("radio", {"ada", "bo"}, True), receivers="ada bo")
    assert bench.carried("ada", b"1") == ["net"]
    bench.now += PATIENCE_S
    assert bench.carried("ada", b"2") == ["radio"]
    assert bench.carried("bo", b"3") == ["net"]
    bench.hear("ada", "radio")
    assert bench.carried(ALL, b"4") == ["net", "radio"]  # bo and those unnamed are on the net
    bench.hear("ada", "net")
    assert bench.carried("ada", b"5") == ["net"]
    bench.now += PATIENCE_S
    assert bench.carried("ada", b"6") == ["radio"]
    bench.now += (REST - 1) * PATIENCE_S
    assert bench.carried("ada", b"7") == ["net"]  # it gets another chance, and not for ever:
    bench.now += PATIENCE_S
    assert bench.carried("ada", b"8") == ["radio"]


def test_where_nobody_answers_anywhere_all_are_tried_by_turns() -> None:
    bench = Bench(("net", None, False), ("radio", None, True))
    for frame in (b"1", b"2"):
        bench.multipath.send(HOST, [frame])
        bench.now += PATIENCE_S
    ways = [bench.carried(HOST, bytes([i])) for i in range(4)]
    assert ways == [["net"], ["radio"], ["net"], ["radio"]]


class Modem(FaultyTransport):
    """A bearer that takes a frame each 0.05 s and notes which symbols arrive over it."""

    def __init__(self, raw: Transport, drop: float, rng: np.random.Generator, air: "Air") -> None:
        super().__init__(raw, Faults(drop=drop, direction="send"), rng, lambda: air.now)
        self.symbols: list[int] = []
        self._air, self._free_at = air, 0.0

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        if self._air.now < self._free_at:
            raise Busy("still sending")
        self._free_at = self._air.now + 0.05
        return super().send(peer, frames)

    def receive(self, timeout_s: float) -> Arrival | None:
        arrival = super().receive(timeout_s)
        for frame in arrival.frames if arrival else ():
            _, body = open_seal(frame)
            if is_link(body) and isinstance(message := read_message(body), Symbol):
                self.symbols.append(message.index)
        return arrival

    def status(self) -> TransportStatus:
        return TransportStatus(connected=self.connected, last_error=None)


class Air:
    """A host and a node with two bearers each, and a link around both."""

    def __init__(self, folder: Path, drop: float = 0.0) -> None:
        self.now = 0.0
        self.hubs = {name: LoopbackHub(mtu=MTU) for name in ("one", "two")}
        self.modems: dict[tuple[str, str], Modem] = {}
        self.ends = {role: self._linked(folder, role, drop) for role in (HOST, "ada")}
        for end in self.ends.values():
            end.open()

    def _linked(self, folder: Path, role: str, drop: float) -> ReliableTransport:
        rng = np.random.default_rng(len(role))
        bearers = []
        for name, hub in self.hubs.items():
            raw = hub.host() if role == HOST else hub.node(role)
            modem = self.modems[role, name] = Modem(raw, drop, rng, self)
            bearers.append(Bearer(name, modem, metered=True))
        several = MultipathTransport(bearers, ("ada",), 3.0, lambda: self.now)
        settings = LinkSettings(mtu=MTU, idle_s=1.0, longest_s=30.0)
        state = StateFile(folder / role)
        state.open()
        return ReliableTransport(several, settings, state.link(), lambda: self.now, rng, ("ada",))

    def run(self, seconds: float) -> list[Arrival]:
        found, until = [], self.now + seconds
        while self.now < until:
            self.ends["ada"].receive(0.0)
            while (arrival := self.ends[HOST].receive(0.0)) is not None:
                found.append(arrival)
            self.now += 0.02
        return found


def frames(count: int) -> list[bytes]:
    rng = np.random.default_rng(count)
    return [seal_open(Header(3, i), b"\x02" + rng.bytes(100)) for i in range(count)]


@pytest.mark.parametrize(("drop", "dies"), [(0.0, False), (0.0, True), (0.2, True)])
def test_the_symbols_of_one_object_travel_over_both_though_one_may_die_in_the_middle(
    tmp_path: Path, drop: float, dies: bool
) -> None:  # R8.2-36, R8.2-37
    air = Air(tmp_path, drop)
    air.ends["ada"].send(HOST, frames(40))
    assert air.run(0.4) == []
    one, two = (air.modems[HOST, name].symbols for name in ("one", "two"))
    assert one
    assert two
    before = len(one)
    air.hubs["one"].up = not dies
    assert [a.frames for a in air.run(120.0)] == [tuple(frames(40))]
    assert (len(one) == before) is dies
    assert len({*one, *two}) == len(one) + len(two) > before
