"""The link with keys over a lossy hub: real stores of both ends, restarts, and liars on the air."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ternmesh.federated.refusals import why
from ternmesh.link.settings import LinkSettings
from ternmesh.security.identity import Role
from ternmesh.security.membership import found_fleet
from ternmesh.security.notices import REVOKED, write_notice
from ternmesh.wire.frame import BROADCAST, Header, seal_open, suite_of
from ternmesh_service.identity_file import IDENTITY, make_identity_file
from ternmesh_service.keyring import Keyring, SecurityConfig, hop_keys
from ternmesh_store.state_file import StateFile
from tests.faulty import Faults, FaultyTransport
from transports.base import ALL, HOST, Arrival
from transports.loopback import LoopbackHub
from transports.reliable import REASONS_MAX, REFUSED_PEERS_MAX, ReliableTransport

MTU = 120
LOSSY = Faults(drop=0.2, duplicate=0.2, reorder=0.2, flip=0.1)


class Fleet:
    """A host and nodes with keys; `liar` may put frames of its own before anybody's ears."""

    def __init__(self, folder: Path, names: tuple[str, ...], faults: Faults = LOSSY) -> None:
        self.folder, self.names, self.faults = folder, names, faults
        self.now, self.lives, self.hub = 0.0, 0, LoopbackHub(mtu=MTU)
        self.rings: dict[str, Keyring] = {}
        self.ends: dict[str, ReliableTransport] = {}
        for name in (HOST, *names):
            role = Role.HOST if name == HOST else Role.NODE
            make_identity_file(folder / name / IDENTITY, name, role)
            self.rings[name] = Keyring(StateFile(folder / name), SecurityConfig())
            self.rings[name].state.open()
            self.rings[name].open()
        host = self.rings[HOST]
        for ring in self.rings.values():
            ring.adopt(found_fleet("garden", host.own.public))
        for name in names:
            host.member_list.enrol(self.rings[name].own.public)
        host.keep_member_list()

    def open(self, name: str, *, is_keyed: bool = True) -> ReliableTransport:
        self.lives += 1
        rng = np.random.default_rng(self.lives)
        raw = self.hub.host() if name == HOST else self.hub.node(name)
        inner = FaultyTransport(raw, self.faults, rng, lambda: self.now)
        settings = LinkSettings(mtu=MTU, idle_s=1.0, longest_s=30.0, addresses={ALL: BROADCAST})
        store = self.rings[name].state.link()
        keys = hop_keys(self.rings[name], name) if is_keyed else None
        end = self.ends[name] = ReliableTransport(
            inner, settings, store, lambda: self.now, rng, self.names, keys=keys
        )
        end.open()
        return end

    def open_all(self) -> None:
        for name in (HOST, *self.names):
            self.open(name)

    def crash(self, name: str) -> None:
        """What was not committed is lost."""
        self.ends[name].close()
        self.rings[name].state.close()
        self.rings[name].state.open()
        self.rings[name].open()
        self.open(name)

    def run(self, seconds: float) -> dict[str, list[Arrival]]:
        found: dict[str, list[Arrival]] = {name: [] for name in self.ends}
        until = self.now + seconds
        while self.now < until:
            for name, end in self.ends.items():
                while (arrival := end.receive(0.0)) is not None:
                    found[name].append(arrival)
            self.now += 0.05
        return found

    def close(self) -> None:
        for end in self.ends.values():
            end.close()
        for ring in self.rings.values():
            ring.state.close()


@pytest.fixture
def fleet(tmp_path: Path):
    made: list[Fleet] = []

    def make(*names: str, **options: Faults) -> Fleet:
        made.append(Fleet(tmp_path, names or ("theo",), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def frames(count: int, size: int = 100) -> list[bytes]:
    """As the layer above seals them: suite 1."""
    rng = np.random.default_rng(count)
    return [
        seal_open(Header(3, index, suite=1), b"\x02" + rng.bytes(size)) for index in range(count)
    ]


def note_frames(end: ReliableTransport, sent: list[bytes]) -> None:
    """Keep a copy of every frame that this end hands to its bearer."""
    pass_on = end._inner.send

    def note(peer: str, frames: Sequence[bytes]) -> int:
        sent.extend(frames)
        return pass_on(peer, frames)

    end._inner.send = note  # type: ignore[method-assign]


def test_objects_arrive_through_losses_and_no_frame_of_the_link_is_open(fleet) -> None:
    air = fleet("theo", "nora")
    air.open_all()
    sent: list[bytes] = []
    for end in air.ends.values():
        note_frames(end, sent)
    air.ends["theo"].send(HOST, frames(9))
    air.ends[HOST].send("nora", frames(5))
    air.ends[HOST].send(ALL, frames(6))
    found = air.run(300.0)
    assert [a.frames for a in found[HOST]] == [tuple(frames(9))]
    assert sorted(a.frames for a in found["nora"]) == sorted([tuple(frames(5)), tuple(frames(6))])
    assert [a.frames for a in found["theo"]] == [tuple(frames(6))]
    assert {suite_of(frame) for frame in sent} == {2}


@pytest.mark.parametrize("name", [HOST, "theo"])
def test_a_transfer_goes_on_after_a_crash_of_either_end(fleet, name: str) -> None:
    air = fleet("theo")
    air.open_all()
    air.run(20.0)
    sent = frames(40)
    air.ends["theo"].send(HOST, sent)
    early: list[Arrival] = []
    while not air.ends[HOST]._log.load().incoming:
        early += air.run(0.1)[HOST]
        assert air.now < 300.0
    assert early == []
    air.crash(name)
    assert [a.frames for a in air.run(600.0)[HOST]] == [tuple(sent)]
    assert air.rings[HOST].status()["clones"] == air.rings["theo"].status()["clones"] == {}


def test_what_was_on_the_air_is_refused_after_a_restart(fleet) -> None:
    air = fleet("theo", faults=Faults())
    air.open_all()
    heard: list[bytes] = []
    take = air.ends[HOST]._inner.receive

    def listen(timeout_s: float) -> Arrival | None:
        arrival = take(timeout_s)
        heard.extend(() if arrival is None else arrival.frames)
        return arrival

    air.ends[HOST]._inner.receive = listen
    air.ends["theo"].send(HOST, frames(9))
    air.run(30.0)
    air.crash(HOST)
    air.run(60.0)
    raw = air.hub.node("theo")
    raw.open()
    before = air.ends[HOST].frames_refused
    for frame in heard:
        raw.send(HOST, [frame])
    assert air.run(5.0)[HOST] == []
    assert air.ends[HOST].frames_refused == before + len(heard)


def test_a_mismatch_is_told_on_both_sides_and_its_end_lets_everything_through(
    fleet, caplog: pytest.LogCaptureFixture
) -> None:
    air = fleet("theo", faults=Faults())
    air.open(HOST)
    air.open("theo", is_keyed=False)
    air.ends["theo"].send(HOST, frames(4))
    air.ends[HOST].send("theo", frames(5))
    found = air.run(100.0)
    assert found == {HOST: [], "theo": []}
    for name, peer in ((HOST, "theo"), ("theo", HOST)):
        link = air.ends[name].status()["link"]
        assert link["sealed"] is (name == HOST)
        assert set(link["refused"][peer]) == {"suite"}
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert sorted(told) == [
        f"the link refuses frames from or for host: suite: {why('suite', on_host=False)}",
        f"the link refuses frames from or for theo: suite: {why('suite', on_host=True)}",
    ]
    air.crash("theo")
    found = air.run(200.0)
    assert [a.frames for a in found[HOST]] == [tuple(frames(4))]
    assert [a.frames for a in found["theo"]] == [tuple(frames(5))]


def test_what_is_counted_by_name_is_bounded(fleet) -> None:
    air = fleet("theo")
    end = air.open("theo")
    for number in range(REFUSED_PEERS_MAX + 50):
        end._count_refusal(f"peer {number}", "seal")
    for number in range(REASONS_MAX + 50):
        end._count_refusal("peer 0", f"reason {number}")
    assert len(end.refused) == REFUSED_PEERS_MAX + 1
    assert len(end.refused["peer 0"]) == REASONS_MAX + 1
    assert end.frames_refused == REFUSED_PEERS_MAX + REASONS_MAX + 100


def test_a_sealed_link_carries_the_notice_of_a_revocation(fleet) -> None:  # R3-12, R3-13
    air = fleet("theo", faults=Faults())
    air.open_all()
    ring = air.rings[HOST]
    notice = write_notice(REVOKED, ring.own, ring.member_list.fleet, bytes(16))
    air.ends[HOST].send("theo", [notice])
    assert [arrival.frames for arrival in air.run(5.0)["theo"]] == [(notice,)]
