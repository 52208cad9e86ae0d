"""Whole messages over a bearer of small frames that get lost, with keys and without.

Real stores of both ends, a real loopback hub, a clock that stands still, and crashes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from bench.loopback import LoopbackHub
from ternmesh.federated.refusals import why
from ternmesh.link.settings import LinkSettings
from ternmesh.security.identity import Role
from ternmesh.security.membership import found_fleet
from ternmesh.wire.frame import BROADCAST, Header, seal_open, suite_of
from ternmesh_service.identity_file import IDENTITY, make_identity_file
from ternmesh_service.keyring import Keyring, SecurityConfig, hop_keys
from ternmesh_store.link_store import LinkStore
from ternmesh_store.state_file import StateFile
from tests.faulty import Faults, FaultyTransport
from transports import reliable
from transports.base import ALL, HOST, Arrival, Busy, LinkStatus, Transport, UnknownPeer
from transports.reliable import REFUSED_PEERS_MAX, ReliableTransport


class Air(FaultyTransport):
    """Keeps every frame that an end sends; for those of `gone` its bearer has no address."""

    def __init__(self, raw: Transport, fleet: "Linked", rng: np.random.Generator) -> None:
        super().__init__(raw, fleet.faults, rng, lambda: fleet.now)
        self.sent: list[bytes] = []
        self.gone: set[str] = set()

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        if peer in self.gone:
            raise UnknownPeer(f"addresses has no entry for {peer!r}")
        self.sent += frames
        return super().send(peer, frames)


class Linked:
    """A host and nodes on one hub; with `is_keyed` they seal the link."""

    def __init__(
        self,
        folder: Path,
        faults: Faults,
        names: tuple[str, ...] = ("theo",),
        *,
        is_unreliable: bool = False,
        is_keyed: bool = False,
        is_named: bool = True,
        **limits: float,
    ) -> None:
        self.faults = faults
        self.names = names
        self.receivers = names if is_named else ()
        self.is_unreliable = is_unreliable
        self.limits: dict[str, Any] = {"idle_s": 1.0, "longest_s": 30.0, **limits}
        self.now = 0.0
        self.lives = 0
        self.hub = LoopbackHub(mtu=120 if is_keyed else 64)
        self.states = {name: StateFile(folder / name) for name in (HOST, *names)}
        self.rings: dict[str, Keyring] = {}
        self.stores: dict[str, LinkStore] = {}
        self.air: dict[str, Air] = {}
        self.ends: dict[str, ReliableTransport] = {}
        for state in self.states.values():
            state.open()
        if is_keyed:
            self._make_keys(folder)
        for name in self.states:
            self.open(name)

    def _make_keys(self, folder: Path) -> None:
        for name, state in self.states.items():
            role = Role.HOST if name == HOST else Role.NODE
            make_identity_file(folder / name / IDENTITY, name, role)
            self.rings[name] = Keyring(state, SecurityConfig())
            self.rings[name].open()
        host = self.rings[HOST]
        for ring in self.rings.values():
            ring.adopt(found_fleet("garden", host.own.public))
        for name in self.names:
            host.member_list.enrol(self.rings[name].own.public)
        host.keep_member_list()

    def open(self, name: str, *, has_keys: bool = True) -> ReliableTransport:
        self.lives += 1
        rng = np.random.default_rng(self.lives)
        raw = self.hub.host() if name == HOST else self.hub.node(name)
        self.stores[name] = self.states[name].link()
        self.air[name] = Air(raw, self, rng)
        end = self.ends[name] = ReliableTransport(
            self.air[name],
            LinkSettings(mtu=self.hub.mtu, addresses={ALL: BROADCAST}, **self.limits),
            self.stores[name],
            lambda: self.now,
            rng,
            self.receivers,
            unreliable=self.is_unreliable,
            keys=hop_keys(self.rings[name], name) if self.rings and has_keys else None,
        )
        end.open()
        return end

    def crash(self, name: str, *, has_keys: bool = True) -> None:
        """End and begin again: what was not committed is lost."""
        self.ends[name].close()
        self.states[name].close()
        self.states[name].open()
        if self.rings:
            self.rings[name].open()
        self.open(name, has_keys=has_keys)

    def run(self, seconds: float) -> dict[str, list[Arrival]]:
        """What arrives at each end in this time."""
        arrived: dict[str, list[Arrival]] = {name: [] for name in self.ends}
        until = self.now + seconds
        while self.now < until:
            for name, end in self.ends.items():
                while (arrival := end.receive(0.0)) is not None:
                    arrived[name].append(arrival)
            self.now += 0.05
        return arrived

    def close(self) -> None:
        for end in self.ends.values():
            end.close()
        for state in self.states.values():
            state.close()


def frames(count: int, counter: int = 0, size: int = 100, suite: int = 0) -> list[bytes]:
    """Frames as the layer above seals them."""
    rng = np.random.default_rng(count)
    return [
        seal_open(Header(3, counter + index, suite=suite), b"\x02" + rng.bytes(size))
        for index in range(count)
    ]


def reports(end: ReliableTransport) -> list[tuple[str, str]]:
    return [(delivery.peer, delivery.state.name) for delivery in end.deliveries()]


def link_status(end: ReliableTransport) -> LinkStatus:
    found = end.status().link
    assert found is not None
    return found


LOSSY = Faults(drop=0.2, duplicate=0.2, reorder=0.2, flip=0.1)


@pytest.fixture
def new_fleet(tmp_path: Path) -> Iterator[Callable[..., Linked]]:
    """A function that makes a fleet and closes it after the test."""
    made: list[Linked] = []

    def make(*names: str, faults: Faults = Faults(), **options: Any) -> Linked:  # noqa: B008
        made.append(Linked(tmp_path, faults, names or ("theo",), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("is_keyed", [False, True])
def test_objects_arrive_whole_through_losses_for_one_and_for_all(
    new_fleet, is_keyed: bool
) -> None:  # R8.2-29
    air = new_fleet("theo", "nora", faults=LOSSY, is_keyed=is_keyed)
    air.ends["theo"].send(HOST, frames(9, suite=1))
    air.ends[HOST].send("nora", frames(5, suite=1))
    air.ends[HOST].send(ALL, frames(6, suite=1))
    found = air.run(300.0)
    assert [a.frames for a in found[HOST]] == [tuple(frames(9, suite=1))]
    wanted = [tuple(frames(5, suite=1)), tuple(frames(6, suite=1))]
    assert sorted(a.frames for a in found["nora"]) == sorted(wanted)
    assert [a.frames for a in found["theo"]] == wanted[1:]
    assert air.ends[HOST].objects_sent == 2
    suites = {suite_of(frame) for one in air.air.values() for frame in one.sent}
    assert suites == {2 if is_keyed else 0}


@pytest.mark.parametrize("name", [HOST, "theo"])
def test_a_transfer_goes_on_after_a_crash_of_either_end(new_fleet, name: str) -> None:
    air = new_fleet(faults=LOSSY, is_keyed=True)
    air.run(20.0)
    sent = frames(40, suite=1)
    air.ends["theo"].send(HOST, sent)
    early: list[Arrival] = []
    while not air.stores[HOST].load().incoming:
        early += air.run(0.1)[HOST]
        assert air.now < 300.0
    assert early == []
    air.crash(name)
    assert [a.frames for a in air.run(600.0)[HOST]] == [tuple(sent)]
    assert [ring.status().clones for ring in air.rings.values()] == [{}, {}]


def test_an_object_is_reported_as_held_and_then_as_delivered(new_fleet) -> None:  # R8.2-38
    air = new_fleet(faults=Faults(drop=0.1))
    air.ends["theo"].send(HOST, frames(1, size=20))
    joining = [seal_open(Header(0, number, suite=1), bytes(9)) for number in range(3)]
    air.ends["theo"].send(HOST, joining)
    assert reports(air.ends["theo"]) == [], "a frame that its sender repeats is no object"
    air.ends["theo"].send(HOST, frames(4))
    assert reports(air.ends["theo"]) == [(HOST, "HELD")]
    air.crash("theo")
    assert reports(air.ends["theo"]) == [(HOST, "HELD")]
    found = air.run(20.0)[HOST]
    assert [a.frames for a in found if len(a.frames) > 1] == [tuple(frames(4))]
    assert reports(air.ends["theo"]) == [(HOST, "DELIVERED")]
    air.crash("theo")
    assert reports(air.ends["theo"]) == []


def test_a_broadcast_is_reported_for_each_receiver(new_fleet) -> None:  # R8.2-38
    air = new_fleet("theo", "nora", faults=Faults(drop=0.1), give_up_s=100.0)
    host = air.ends[HOST]
    air.ends.pop("nora").close()
    host.send(ALL, frames(4))
    assert reports(host) == [("theo", "HELD"), ("nora", "HELD")]
    air.run(20.0)
    assert reports(host) == [("theo", "DELIVERED")]
    air.run(300.0)  # nora takes nothing for so long that it is given up
    assert reports(host) == [("nora", "LOST")]
    assert link_status(host).objects_under_way == 0


def test_a_restart_hands_out_the_last_minute_again_and_no_more(new_fleet) -> None:
    air = new_fleet()
    air.ends["theo"].send(HOST, frames(4))
    assert len(air.run(5.0)[HOST]) == 1
    air.crash(HOST)
    assert len(air.run(reliable.KEEP_S + 1.0)[HOST]) == 1
    air.crash(HOST)
    assert air.run(5.0)[HOST] == []


def test_a_full_link_is_busy(new_fleet) -> None:
    air = new_fleet(faults=Faults(drop=1.0), object_max=1000)
    theo = air.ends["theo"]
    with pytest.raises(Busy):  # noqa: PT012
        for counter in range(300):
            theo.send(HOST, frames(2, size=100 + counter))
    held = link_status(theo).objects_under_way
    with pytest.raises(Busy):
        theo.send(HOST, frames(8, size=300))  # several objects: all of them or none
    theo.receive(0.0)
    assert link_status(theo).objects_under_way == held
    assert len(air.stores["theo"].load().outgoing) == held


def test_a_node_that_takes_nothing_is_busy_for_nobody(new_fleet) -> None:
    air = new_fleet("theo", "mallory")
    host = air.ends[HOST]
    air.ends.pop("mallory").close()
    for counter in range(300):  # each sealed anew, so that none is known
        host.send("mallory", frames(2, size=100 + counter))
    assert link_status(host).objects_under_way <= reliable.UNSENT_MAX + 4
    assert host.objects_lost >= 280
    host.send("theo", frames(3))
    host.send(ALL, frames(4))
    found = air.run(60.0)["theo"]
    assert {a.frames for a in found} == {tuple(frames(3)), tuple(frames(4))}


def test_as_is_each_frame_travels_once_and_what_is_long_is_an_object(new_fleet) -> None:  # R8.2-31
    air = new_fleet(faults=Faults(drop=0.2), is_unreliable=True)
    theo = air.ends["theo"]
    packet = frames(30, size=40)
    theo.send(HOST, packet)
    theo.send(HOST, packet[:1])  # a question may be repeated
    found = [frame for arrival in air.run(20.0)[HOST] for frame in arrival.frames]
    assert air.air["theo"].sent == packet + packet[:1]
    assert set(found) < set(packet)
    assert len(found) > 15
    assert reports(theo) == [(HOST, "HELD"), (HOST, "DELIVERED")]
    theo.send(HOST, frames(4))
    assert [len(arrival.frames) for arrival in air.run(20.0)[HOST]] == [4]
    assert theo.objects_sent == 1


def test_what_is_longer_than_the_longest_object_travels_as_several(new_fleet) -> None:  # R8.2-29
    most = 3000
    air = new_fleet(faults=Faults(drop=0.1), object_max=most)
    many = frames(9, size=900)
    air.ends["theo"].send(HOST, many)
    assert reports(air.ends["theo"]) == [(HOST, "HELD")] * 3
    found = air.run(300.0)[HOST]
    assert len(found) == 3
    assert all(arrival.wire_bytes <= most for arrival in found)
    assert sorted(frame for arrival in found for frame in arrival.frames) == sorted(many)


def test_what_was_handed_out_is_neither_read_again_nor_kept_without_a_limit(
    new_fleet, monkeypatch
) -> None:
    air = new_fleet()
    monkeypatch.setattr(reliable, "KEEP_BYTES_MAX", 3000)
    read: list[int] = []
    plain = air.stores[HOST].inbox

    def inbox(after: int = 0) -> list[tuple[int, str, bytes]]:
        rows = plain(after)
        read.append(len(rows))
        return rows

    air.stores[HOST].inbox = inbox
    for counter in range(9):
        air.ends["theo"].send(HOST, frames(3, size=300 + counter))
    assert len(air.run(30.0)[HOST]) == 9
    assert sum(read) == 9
    kept = [payload for _, _, payload in plain()]
    assert 1000 < sum(map(len, kept)) <= 3000
    air.run(reliable.KEEP_S)
    assert plain() == []
    air.ends["theo"].send(HOST, frames(4))  # in the first place again
    assert len(air.run(30.0)[HOST]) == 1


def test_what_is_under_way_for_a_board_that_has_left_the_configuration_ends_nothing(
    new_fleet,
) -> None:
    air = new_fleet("theo", "dora")
    air.ends[HOST].send("dora", frames(4))
    air.crash(HOST)
    host = air.ends[HOST]
    air.air[HOST].gone.add("dora")
    air.run(2.0)
    host.send("theo", frames(5))
    [arrival] = air.run(5.0)["theo"]
    assert len(arrival.frames) == 5
    assert host.frames_refused > 0


def test_a_broadcast_is_for_nodes_that_nobody_has_named_but_that_were_heard(new_fleet) -> None:
    """Of brokers a host's configuration names no boards."""
    air = new_fleet(faults=Faults(drop=0.3), is_named=False)
    host = air.ends[HOST]
    host.send(ALL, frames(5))
    assert link_status(host).objects_under_way == 0, "nobody is there"
    air.ends["theo"].send(HOST, frames(1, size=20))
    while not air.run(1.0)[HOST]:
        air.ends["theo"].send(HOST, frames(1, size=20))
    host.send(ALL, frames(6))
    [arrival] = air.run(60.0)["theo"]
    assert len(arrival.frames) == 6
    assert host.objects_sent == 1


def test_a_mismatch_is_told_on_both_sides_and_its_end_lets_everything_through(
    new_fleet, caplog: pytest.LogCaptureFixture
) -> None:
    air = new_fleet(is_keyed=True)
    air.crash("theo", has_keys=False)
    air.ends["theo"].send(HOST, frames(4, suite=1))
    air.ends[HOST].send("theo", frames(5, suite=1))
    found = air.run(100.0)
    assert found == {HOST: [], "theo": []}
    for name, peer in ((HOST, "theo"), ("theo", HOST)):
        link = link_status(air.ends[name])
        assert link.sealed is (name == HOST)
        assert set(link.refused[peer]) == {"suite"}
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert sorted(warnings) == [
        f"the link refuses frames from or for host: suite: {why('suite', on_host=False)}",
        f"the link refuses frames from or for theo: suite: {why('suite', on_host=True)}",
    ]
    air.crash("theo")
    found = air.run(200.0)
    assert [a.frames for a in found[HOST]] == [tuple(frames(4, suite=1))]
    assert [a.frames for a in found["theo"]] == [tuple(frames(5, suite=1))]


def test_what_is_counted_by_name_is_bounded(new_fleet) -> None:
    air = new_fleet()
    for number in range(REFUSED_PEERS_MAX + 50):
        stranger = air.hub.node(f"peer-{number}")
        stranger.open()
        stranger.send(HOST, [bytes(20)])
    air.run(20.0)
    assert len(air.ends[HOST].refused) == REFUSED_PEERS_MAX + 1
    assert air.ends[HOST].frames_refused == REFUSED_PEERS_MAX + 50


@pytest.mark.parametrize("is_up", [True, False])
def test_a_bearer_that_takes_nothing_is_not_asked_without_end(tmp_path, monkeypatch, is_up) -> None:
    fleet = Linked(tmp_path, Faults(), is_keyed=True)
    waits: list[float] = []

    def wait(timeout_s: float) -> None:
        waits.append(timeout_s)
        fleet.now += timeout_s + 1e-4

    monkeypatch.setattr(fleet.air["theo"], "receive", wait)
    monkeypatch.setattr(fleet.air["theo"], "send", Mock(side_effect=Busy("it is full")))
    fleet.hub.up = is_up
    end = fleet.ends["theo"]
    end.send(HOST, frames(3))
    waits.clear()
    assert end.receive(10.0) is None
    assert 10.0 / reliable.WAIT_MAX_S <= len(waits) <= 10.0 / reliable.BUSY_WAIT_S
    fleet.close()
