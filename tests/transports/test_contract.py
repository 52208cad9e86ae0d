"""What `transports/base.py` promises, asked of every transport over the bearer that it is made for.

What is special to a transport stands in its own tests.
"""

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paho.mqtt.client import Client

from bench.loopback import LoopbackHub, LoopbackTransport
from ternmesh.link.airtime import LoraSetting
from ternmesh.link.settings import LinkSettings
from ternmesh.wire.frame import FRAME_OVERHEAD, Header, seal_open
from ternmesh_store.state_file import StateFile
from tests.faulty_radios import FaultyRadios
from tests.virtual_ble import VirtualBle
from transports import loop_thread
from transports.base import (
    ALL,
    HOST,
    Arrival,
    Busy,
    FrameTooLarge,
    NotConnected,
    StatusTransport,
    Transport,
    TransportStatus,
)
from transports.ble.config import BleSettings
from transports.ble.transport import BleTransport
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.mqtt.settings import MqttSettings
from transports.mqtt.transport import MqttTransport
from transports.multipath import Bearer, MultipathTransport
from transports.reliable import ReliableTransport
from transports.serial_lora.emulator.radios import LONG_FAST, new_modem
from transports.serial_lora.port import SerialPort
from transports.serial_lora.settings import DIALECTS, SerialLoraSettings
from transports.serial_lora.transport import SerialLoraTransport

WAIT_S = 20.0
HUNG_S = 2.5
SPEED = 400.0  # of radio time
ROLES = (HOST, "ada", "bob")
FAST: dict[str, Any] = {"reconnect_min_s": 0.02, "reconnect_max_s": 0.2}
EVERY_BYTE = bytes(range(256)) * 17
TEASING = b"\xc0\xdb\x94\xc3+OK\r\n+RCV=1,5,a,b,c,-1,2\r\n,,,\0\r"  # what modems and framings mark


def ignore() -> None: ...


@dataclass
class Fleet:
    """Ends by role, what can be done to their bearer, and what has arrived where."""

    ends: dict[str, Any]
    cut: Callable[[], object] = ignore  # the bearer goes down
    mend: Callable[[], object] = ignore
    hang: Callable[[pytest.MonkeyPatch, threading.Event], object] | None = None  # ada's thread
    arrived: dict[str, list[Arrival]] = field(default_factory=lambda: defaultdict(list))

    def open(self, eventually) -> "Fleet":
        for end in self.ends.values():
            end.open()
        eventually(lambda: self.connected)
        return self

    @property
    def connected(self) -> bool:
        return all(end.connected for end in self.ends.values())

    @property
    def boards(self) -> list[str]:
        return [role for role in self.ends if role != HOST]

    def listen(self, wait_s: float = 0.0) -> None:
        """Let every end take what is there: some work only while they are asked."""
        for role, end in self.ends.items():
            while (arrival := end.receive(wait_s)) is not None:
                self.arrived[role].append(arrival)

    def take(self, role: str, count: int) -> list[tuple[str, bytes]]:
        """The next `count` frames at an end, with their senders; there may not be more."""
        deadline = time.monotonic() + WAIT_S
        while True:
            self.listen(0.002)
            found = [(a.peer, f) for a in self.arrived[role] for f in a.frames]
            if len(found) >= count:
                break
            assert time.monotonic() < deadline, f"{len(found)} of {count} frames came to {role}"
        self.arrived[role] = []
        assert len(found) == count
        return found

    def frames(self, role: str, count: int) -> list[bytes]:
        return [frame for _, frame in self.take(role, count)]


def frame(number: int, content: bytes = b"", size: int = 0) -> bytes:
    """A frame that every transport carries, filled up to `size` bytes."""
    body = (b"\x02" + content).ljust(max(0, size - FRAME_OVERHEAD), b"\0")
    return seal_open(Header(3, number), body)


def loopback(stack: ExitStack, request: pytest.FixtureRequest) -> Fleet:
    hub = LoopbackHub(mtu=200, message_max=500)
    ends = {role: hub.host() if role == HOST else hub.node(role) for role in ROLES}
    return Fleet(ends, lambda: setattr(hub, "up", False), lambda: setattr(hub, "up", True))


def mqtt(protocol: str) -> Callable[[ExitStack, pytest.FixtureRequest], Fleet]:
    def make(stack: ExitStack, request: pytest.FixtureRequest) -> Fleet:
        broker = request.getfixturevalue("mosquitto")
        return mqtt_fleet(broker.url, broker.kill9, broker.start, protocol=protocol)

    return make


def embedded_broker(stack: ExitStack, request: pytest.FixtureRequest) -> Fleet:
    running = ExitStack()
    stack.callback(running.close)
    broker = running.enter_context(EmbeddedBroker())

    def mend() -> None:
        running.enter_context(EmbeddedBroker(broker.port))

    # The long patience shows that MQTT 5 is refused at once, and not left without an answer.
    return mqtt_fleet(broker.url, running.close, mend, connect_timeout_s=300.0)


def mqtt_fleet(url: str, cut: Callable, mend: Callable, **options: Any) -> Fleet:
    options = FAST | {"inflight_max": 2, "queue_max": 3} | options
    ends = {role: MqttTransport(MqttSettings(url, "barn", role, **options)) for role in ROLES}
    return Fleet(
        ends, cut, mend, lambda patch, hang: patch.setattr(Client, "loop", lambda *_: hang.wait())
    )


def serial(dialect: str) -> Callable[[ExitStack, pytest.FixtureRequest], Fleet]:
    def make(stack: ExitStack, request: pytest.FixtureRequest) -> Fleet:
        radios = FaultyRadios([new_modem(dialect, i) for i in range(3)], speed=SPEED, seed=7)
        stack.callback(radios.close)
        radios.start()
        radio = LONG_FAST if dialect in ("meshtastic", "meshcore") else LoraSetting(7, 125, 1, 12)
        shared = {"queue_max": 3, "answer_margin_s": 1.0, "speed": SPEED, **FAST}
        shared |= {"radio": radio, "frequency_hz": 869_525_000, "addresses": {"ada": 1, "bob": 2}}
        ends = {
            role: SerialLoraTransport(SerialLoraSettings(path, dialect, role, **shared))
            for role, path in zip(ROLES, radios.paths, strict=True)
        }

        def all_modems(act: Callable[[int], None]) -> None:
            for index in range(3):
                act(index)

        def hang(patch: pytest.MonkeyPatch, event: threading.Event) -> None:
            patch.setattr(SerialPort, "read", lambda *_: event.wait() and b"")

        return Fleet(
            ends, lambda: all_modems(radios.unplug), lambda: all_modems(radios.replug), hang
        )

    return make


def ble(stack: ExitStack, request: pytest.FixtureRequest) -> Fleet:
    virtual = stack.enter_context(VirtualBle(random.Random(1)))
    few: dict[str, Any] = FAST | {"unread_max": 4, "queue_max": 4096}
    host = BleTransport(BleSettings(HOST, "ada", **few), virtual.bridge, virtual.loop)
    ada = BleTransport(BleSettings("ada", HOST, **few), virtual.central, virtual.loop)
    return Fleet(
        {HOST: host, "ada": ada},
        virtual.break_connection,
        hang=lambda _, event: virtual.loop.call(event.wait),
    )


class ShownLoopback(LoopbackTransport):
    def status(self) -> TransportStatus:
        return TransportStatus(connected=self.connected, last_error="unplugged")


def multipath(stack: ExitStack, request: pytest.FixtureRequest) -> Fleet:
    hubs = [LoopbackHub(mtu=200), LoopbackHub(mtu=300)]
    ends = {
        role: MultipathTransport(
            [Bearer(str(i), ShownLoopback(hub, role)) for i, hub in enumerate(hubs)], ROLES[1:]
        )
        for role in ROLES
    }

    def switch(up: bool) -> None:
        for hub in hubs:
            hub.up = up

    return Fleet(ends, lambda: switch(False), lambda: switch(True))


def reliable(
    inner: Callable[[ExitStack, pytest.FixtureRequest], Fleet],
) -> Callable[[ExitStack, pytest.FixtureRequest], Fleet]:
    def make(stack: ExitStack, request: pytest.FixtureRequest) -> Fleet:
        fleet, folder = inner(stack, request), request.getfixturevalue("tmp_path")

        def wrap(role: str, end: Transport) -> ReliableTransport:
            state = StateFile(Path(folder) / role)
            state.open()
            stack.callback(state.close)
            settings = LinkSettings(mtu=min(1024, end.mtu), idle_s=0.2, longest_s=1.0)
            rng = np.random.default_rng(len(role))
            store, clock = state.link(), time.monotonic
            return ReliableTransport(end, settings, store, clock, rng, fleet.boards)

        fleet.ends = {role: wrap(role, end) for role, end in fleet.ends.items()}
        return fleet

    return make


PLAIN = {
    "loopback": loopback,
    "mqtt 5": mqtt("5"),
    "mqtt 3.1.1": mqtt("3.1.1"),
    "embedded broker": embedded_broker,
    **{dialect: serial(dialect) for dialect in DIALECTS},
    "ble": ble,
    "multipath": multipath,
}
RELIABLE = {
    f"reliable over {name}": reliable(PLAIN[name])
    for name in ("loopback", "mqtt 5", "rnode", "meshcore", "ble", "multipath")
}
EVERY = PLAIN | RELIABLE


@pytest.fixture
def new_fleet(request, eventually) -> Iterator[Callable[[str], Fleet]]:
    """A function that makes the ends on a bearer; they are closed after the test."""
    with ExitStack() as stack:

        def make(name: str) -> Fleet:
            fleet = EVERY[name](stack, request)
            for end in fleet.ends.values():
                stack.callback(end.close)
            return fleet

        yield make


@pytest.mark.parametrize("name", EVERY)
def test_frames_reach_whom_they_are_for_in_order_and_tell_their_cost(
    new_fleet, eventually, name: str
) -> None:
    fleet = new_fleet(name).open(eventually)
    host = fleet.ends[HOST]
    for number, board in enumerate(fleet.boards):
        sent = [frame(2 * number, b"one"), frame(2 * number + 1, b"two")]
        cost = fleet.ends[board].send(HOST, sent)
        assert cost >= sum(map(len, sent))
        eventually(lambda: fleet.listen() or sum(len(a.frames) for a in fleet.arrived[HOST]) == 2)
        counted = sum(arrival.wire_bytes for arrival in fleet.arrived[HOST])
        assert counted == cost or name in (
            "ble",
            *RELIABLE,
        )  # what a link needs beside is not known
        assert fleet.take(HOST, 2) == [(board, each) for each in sent]
    for number, board in enumerate(fleet.boards):
        host.send(board, [frame(10 + number)])
        assert fleet.take(board, 1) == [(HOST, frame(10 + number))]
    host.send(ALL, [frame(20), frame(21)])
    for board in fleet.boards:
        assert fleet.take(board, 2) == [(HOST, frame(20)), (HOST, frame(21))]
    assert not any(fleet.arrived.values())
    if isinstance(host, StatusTransport):
        assert host.status().connected


@pytest.mark.parametrize("name", EVERY)
def test_a_frame_may_be_as_long_as_the_mtu_and_hold_any_bytes(
    new_fleet, eventually, name: str
) -> None:
    fleet = new_fleet(name).open(eventually)
    ada, mtu = fleet.ends["ada"], fleet.ends["ada"].mtu
    room = mtu - FRAME_OVERHEAD - 1
    contents = [EVERY_BYTE[:room], EVERY_BYTE[-room:], TEASING, b"\r", b""]
    each_size = enumerate(itertools.product(contents, (0, mtu)))
    sent = [frame(i, content, size) for i, (content, size) in each_size]
    for each in sent:
        ada.send(HOST, [each])
        assert fleet.frames(HOST, 1) == [each]
    for wrong in ([frame(0), bytes(mtu + 1)], [bytes(mtu + 1)]):
        with pytest.raises(FrameTooLarge):
            ada.send(HOST, wrong)
    fleet.listen(0.05)
    assert not fleet.arrived[HOST], "nothing of the call was sent"


@pytest.mark.parametrize("name", PLAIN)
def test_nobody_sends_where_the_fleet_has_no_path_or_after_the_close(
    new_fleet, eventually, name: str
) -> None:
    fleet = new_fleet(name)
    host, ada = fleet.ends[HOST], fleet.ends["ada"]
    assert not ada.connected
    with pytest.raises(NotConnected):
        ada.send(HOST, [frame(0)])
    fleet.open(eventually)
    for end, peer in ((ada, "bob"), (ada, ALL), (host, HOST), (host, "a/b"), (host, "")):
        with pytest.raises(ValueError, match=r"node|name|leads to"):
            end.send(peer, [frame(0)])
    ada.close()
    ada.close()
    assert not ada.connected
    with pytest.raises(NotConnected):
        ada.send(HOST, [frame(0)])
    assert host.receive(0) is None


@pytest.mark.parametrize("name", sorted(PLAIN.keys() - {"loopback", "multipath"}))
def test_a_bearer_that_is_full_is_busy_and_keeps_what_it_has_taken(
    new_fleet, eventually, name: str
) -> None:
    fleet = new_fleet(name).open(eventually)
    ada, taken = fleet.ends["ada"], list[bytes]()
    with pytest.raises(Busy, match="wait for"):  # noqa: PT012
        for number in range(10_000):
            each = frame(number, size=100)
            ada.send(HOST, [each])
            taken.append(each)
    assert fleet.frames(HOST, len(taken)) == taken
    eventually(lambda: ada.status().numbers["queued"] == 0)
    ada.send(HOST, [frame(1, b"after")])
    assert fleet.frames(HOST, 1) == [frame(1, b"after")]


@pytest.mark.parametrize("name", sorted(PLAIN.keys() - {"ble"}))
def test_a_bearer_may_come_late_and_go_and_come_back(new_fleet, eventually, name: str) -> None:
    fleet = new_fleet(name)
    fleet.cut()
    for end in fleet.ends.values():
        end.open()
    for count in (1, 2):
        eventually(lambda: not any(end.connected for end in fleet.ends.values()))
        for end, peer in ((fleet.ends["ada"], HOST), (fleet.ends[HOST], "ada")):
            with pytest.raises(NotConnected):
                end.send(peer, [frame(0, b"lost")])
        if isinstance(end, StatusTransport):
            assert isinstance(end.status().last_error, str)
        fleet.mend()
        eventually(lambda: fleet.connected)
        if isinstance(end, StatusTransport):
            assert end.status().numbers.get("reconnects", count - 1) == count - 1
        fleet.ends["ada"].send(HOST, [frame(count, b"up")])
        fleet.ends[HOST].send("ada", [frame(count, b"down")])
        assert fleet.frames(HOST, 1) == [frame(count, b"up")]
        assert fleet.frames("ada", 1) == [frame(count, b"down")]
        fleet.cut()


@pytest.mark.parametrize("name", ["ble", *RELIABLE])
def test_what_was_taken_arrives_whole_and_once_though_the_bearer_breaks(
    new_fleet, eventually, name: str
) -> None:
    fleet = new_fleet(name).open(eventually)
    ada = fleet.ends["ada"]
    sent = [frame(number, EVERY_BYTE[number:][:300]) for number in range(12)]
    ada.send(HOST, sent[:6])
    fleet.cut()
    if name in RELIABLE:
        ada.send(HOST, sent[6:])
    fleet.listen()
    fleet.mend()
    eventually(lambda: fleet.connected)
    if name not in RELIABLE:
        ada.send(HOST, sent[6:])
    found = fleet.frames(HOST, 12)
    if name not in RELIABLE:
        assert found == sent
        return
    assert sorted(found) == sorted(sent)
    assert found[:6] in (sent[:6], sent[6:])
    reports: list[tuple[str, str]] = []

    def is_delivered() -> bool:
        fleet.listen()
        reports.extend((delivery.peer, delivery.state.name) for delivery in ada.deliveries())
        return len(reports) == 4

    eventually(is_delivered)
    assert reports == [(HOST, "HELD")] * 2 + [(HOST, "DELIVERED")] * 2


@pytest.mark.parametrize("name", ["mqtt 5", "rnode", "ble"])
def test_status_tells_when_the_thread_last_turned_so_that_a_hang_can_be_seen(
    new_fleet, eventually, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(loop_thread, "TURN_S", 1.0)  # the other threads turn once a second, too
    fleet, released = new_fleet(name).open(eventually), threading.Event()
    assert fleet.hang is not None
    threading.Event().wait(HUNG_S)  # it turns without any traffic
    ada = fleet.ends["ada"]
    assert ada.status().turned_s_ago < HUNG_S
    fleet.hang(monkeypatch, released)
    eventually(lambda: ada.status().turned_s_ago > HUNG_S)
    released.set()
