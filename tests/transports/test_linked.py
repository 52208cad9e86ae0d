"""Whole messages over a bearer of small frames that get lost; real stores, a real loopback hub."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.link.link import Link, LinkFull
from ternmesh.link.settings import LinkSettings
from ternmesh.wire.frame import Header, seal_open
from ternmesh_store.link_store import LinkStore
from ternmesh_store.state_file import StateFile
from tests.faulty import Faults, FaultyTransport
from transports import reliable
from transports.base import Busy, UnknownPeer
from transports.loopback import LoopbackHub
from transports.reliable import ReliableTransport

MTU = 64


class Clock:
    """Seconds that pass when somebody waits for nothing."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A host and nodes on one hub; the hub's waits are the clock's steps."""

    def __init__(
        self,
        folder: Path,
        faults: Faults,
        names: tuple[str, ...] = ("theo",),
        *,
        unreliable: bool = False,
    ) -> None:
        self.folder, self.faults, self.names, self.unreliable = folder, faults, names, unreliable
        self.clock, self.hub = Clock(), LoopbackHub(mtu=MTU)
        self.stores: dict[str, LinkStore] = {}
        self.ends = {name: self.open(name) for name in ("host", *names)}

    def open(self, name: str) -> ReliableTransport:
        state = StateFile(self.folder / name)
        state.open()
        store = self.stores[name] = state.link()
        rng = np.random.default_rng(len(self.stores))
        raw = self.hub.host() if name == "host" else self.hub.node(name)
        inner = FaultyTransport(raw, self.faults, rng, self.clock)
        settings = LinkSettings(mtu=MTU, idle_s=1.0, longest_s=30.0)
        end = ReliableTransport(
            inner, settings, store, self.clock, rng, self.names, unreliable=self.unreliable
        )
        end.open()
        return end

    def restart(self, name: str) -> None:
        """A crash: what was not committed is lost."""
        self.ends[name].close()
        self.stores[name]._database.close()
        self.ends[name] = self.open(name)

    def run(self, seconds: float) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in self.ends}
        until = self.clock.now + seconds
        while self.clock.now < until:
            for name, end in self.ends.items():
                while (arrival := end.receive(0.0)) is not None:
                    found[name].append(arrival)
            self.clock.now += 0.05
        return found


def frames(count: int, counter: int = 0, size: int = 100) -> list[bytes]:
    rng = np.random.default_rng(count)
    return [seal_open(Header(3, counter + i), b"\x02" + rng.bytes(size)) for i in range(count)]


def test_a_small_frame_passes_as_it_is(tmp_path: Path) -> None:  # R8.2-29
    bench = Bench(tmp_path, Faults())
    [frame] = frames(1, size=20)
    bench.ends["theo"].send("host", [frame])
    [arrival] = bench.run(1.0)["host"]
    assert (arrival.peer, arrival.frames) == ("theo", (frame,))


def test_many_frames_arrive_together_through_losses(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Faults(drop=0.3, duplicate=0.1, reorder=0.2, flip=0.05))
    up, down = frames(9), frames(5)
    bench.ends["theo"].send("host", up)
    bench.ends["host"].send("theo", down)
    found = bench.run(120.0)
    assert [a.frames for a in found["host"] if len(a.frames) > 1] == [tuple(up)]
    assert [a.frames for a in found["theo"] if len(a.frames) > 1] == [tuple(down)]
    assert bench.ends["theo"].objects_sent == bench.ends["host"].objects_sent == 1


def test_a_broadcast_reaches_every_node(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Faults(drop=0.2), ("theo", "nora", "li"))
    sent = frames(6)
    bench.ends["host"].send("all", sent)
    found = bench.run(200.0)
    assert all([a.frames for a in found[name]] == [tuple(sent)] for name in bench.names)
    assert bench.ends["host"].objects_sent == 1


def reports(end: ReliableTransport) -> list[tuple[str, str]]:
    return [(delivery.peer, delivery.state.name) for delivery in end.deliveries()]


def test_an_object_is_reported_as_held_and_then_as_delivered(tmp_path: Path) -> None:  # R8.2-38
    bench = Bench(tmp_path, Faults(drop=0.1))
    theo = bench.ends["theo"]
    theo.send("host", frames(1, size=20))
    assert reports(theo) == []
    theo.send("host", frames(4))
    assert reports(theo) == [("host", "HELD")]
    bench.run(20.0)
    assert reports(theo) == [("host", "DELIVERED")]
    assert reports(theo) == []


def test_a_broadcast_is_reported_for_each_receiver(tmp_path: Path) -> None:  # R8.2-38
    bench = Bench(tmp_path, Faults(drop=0.1), ("theo", "nora"))
    host = bench.ends["host"]
    bench.ends.pop("nora").close()
    host.send("all", frames(4))
    assert reports(host) == [("theo", "HELD"), ("nora", "HELD")]
    bench.run(20.0)
    assert reports(host) == [("theo", "DELIVERED")]
    host._link.cancel(0)
    bench.run(0.1)
    assert reports(host) == [("nora", "LOST")]
    told: dict[str, Any] = host.status()
    assert told["link"]["objects_under_way"] == 0


def test_what_was_held_is_held_again_after_a_restart(tmp_path: Path) -> None:  # R8.2-38
    bench = Bench(tmp_path, Faults(drop=0.1))
    bench.ends["theo"].send("host", frames(4))
    bench.restart("theo")
    assert reports(bench.ends["theo"]) == [("host", "HELD")]
    assert len(bench.run(20.0)["host"]) == 1
    assert reports(bench.ends["theo"]) == [("host", "DELIVERED")]
    bench.restart("theo")
    assert reports(bench.ends["theo"]) == []


@pytest.mark.parametrize("name", ["theo", "host"])
def test_a_transfer_survives_a_restart(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, Faults(drop=0.2))
    sent = frames(20)
    bench.ends["theo"].send("host", sent)
    early = bench.run(1.0)["host"]
    bench.restart(name)
    assert early == []
    assert [a.frames for a in bench.run(300.0)["host"]] == [tuple(sent)]


def test_a_restart_hands_out_the_last_minute_again_and_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Faults())
    bench.ends["theo"].send("host", frames(4))
    assert len(bench.run(5.0)["host"]) == 1
    bench.restart("host")
    assert len(bench.run(reliable.KEEP_S + 1.0)["host"]) == 1
    bench.restart("host")
    assert bench.run(5.0)["host"] == []


def test_a_bearer_that_drops_between_two_frames_keeps_them(tmp_path: Path, monkeypatch) -> None:
    bench = Bench(tmp_path, Faults())
    bench.hub.up = False
    with monkeypatch.context() as patch:
        patch.setattr(FaultyTransport, "connected", True)
        bench.ends["theo"].send("host", frames(3))  # NotConnected stays inside
    bench.hub.up = True
    assert len(bench.run(10.0)["host"]) == 1


def test_a_full_link_is_busy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Faults(drop=1.0))
    theo = bench.ends["theo"]
    with pytest.raises(Busy):  # noqa: PT012
        for counter in range(300):
            theo.send("host", frames(2, size=100 + counter))
    held = len(theo._under_way)
    theo._settings = replace(theo._settings, object_max=1000)
    with pytest.raises(Busy):
        theo.send("host", frames(8, size=300))  # several objects: all of them or none
    theo._settle()
    assert len(theo._under_way) == held == len(bench.stores["theo"].load().outgoing)


def test_a_node_that_takes_nothing_is_busy_for_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Faults(), ("theo", "mallory"))
    host = bench.ends["host"]
    bench.ends.pop("mallory").close()
    for counter in range(300):  # each sealed anew, so that none is known
        host.send("mallory", frames(2, size=100 + counter))
    assert len(host._under_way) <= reliable.UNSENT_MAX + 4
    assert host.objects_lost >= 280
    host.send("theo", frames(3))
    host.send("all", frames(4))
    found = bench.run(60.0)["theo"]
    assert {a.frames for a in found} == {tuple(frames(3)), tuple(frames(4))}


def test_where_nothing_can_make_way_a_node_misses_an_object_and_the_host_is_not_held_up(
    tmp_path: Path, monkeypatch
) -> None:
    bench = Bench(tmp_path, Faults())

    def refuse(*_: object, **__: object) -> int:
        raise LinkFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(Link, "send", refuse)
        bench.ends["host"].send("theo", frames(3))
        bench.ends["host"].send("all", frames(3))
        with pytest.raises(Busy, match="full"):
            bench.ends["theo"].send("host", frames(3))
    told: dict[str, Any] = bench.ends["host"].status()
    assert told["link"]["objects_lost"] == 2
    bench.ends["host"].send("theo", frames(3))
    assert len(bench.run(10.0)["theo"]) == 1


def test_as_is_each_frame_travels_once_and_nothing_is_asked_for(tmp_path: Path) -> None:  # R8.2-31
    bench = Bench(tmp_path, Faults(drop=0.2), unreliable=True)
    theo = bench.ends["theo"]
    sent: list[bytes] = []
    pass_on = theo._inner.send

    def note(peer: str, frames: Sequence[bytes]) -> int:
        sent.extend(frames)
        return pass_on(peer, frames)

    theo._inner.send = note  # type: ignore[method-assign]
    packet = frames(30, size=40)
    theo.send("host", packet)
    found = [frame for arrival in bench.run(20.0)["host"] for frame in arrival.frames]
    assert sent == packet
    assert set(found) < set(packet)
    assert len(found) > 15
    assert reports(theo) == [("host", "HELD"), ("host", "DELIVERED")]


def test_a_frame_that_the_bearer_takes_no_more_is_lost_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Faults())
    theo = bench.ends["theo"]
    [long, short] = [*frames(1, 0, size=40), *frames(1, 1, size=10)]
    bench.hub.up = False
    theo.send("host", [long])
    theo.send("host", [short])
    bench.hub.mtu, bench.hub.up = 40, True
    assert [arrival.frames for arrival in bench.run(1.0)["host"]] == [(short,)]
    assert theo.frames_refused == 1


def test_as_is_a_question_may_be_repeated_and_what_is_long_is_an_object(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Faults(), unreliable=True)
    theo = bench.ends["theo"]
    for counter in range(3):
        theo.send("host", frames(1, counter, size=20))
    theo.send("host", frames(2, 0, size=20) + frames(2, 2, size=20))  # one of them twice: meant so
    assert len(bench.run(5.0)["host"]) == 7
    theo.send("host", frames(4))
    assert [len(arrival.frames) for arrival in bench.run(10.0)["host"]] == [4]
    assert theo.objects_sent == 1


def test_what_is_longer_than_the_longest_object_travels_as_several(tmp_path: Path) -> None:
    # R8.2-29
    bench = Bench(tmp_path, Faults(drop=0.1))
    theo = bench.ends["theo"]
    many = frames(9, size=900)
    most = 3000
    theo._settings = replace(theo._settings, object_max=most)
    theo._link._settings = theo._settings
    theo.send("host", many)
    assert reports(theo) == [("host", "HELD")] * 3
    found = bench.run(300.0)["host"]
    assert len(found) == 3
    assert all(arrival.wire_bytes <= most for arrival in found)
    assert sorted(frame for arrival in found for frame in arrival.frames) == sorted(many)


def test_what_was_handed_out_is_neither_read_again_nor_kept_without_a_limit(
    tmp_path: Path, monkeypatch
) -> None:
    bench = Bench(tmp_path, Faults())
    monkeypatch.setattr(reliable, "KEEP_BYTES_MAX", 3000)
    read: list[int] = []
    plain = bench.stores["host"].inbox

    def inbox(after: int = 0) -> list[tuple[int, str, bytes]]:
        rows = plain(after)
        read.append(len(rows))
        return rows

    bench.stores["host"].inbox = inbox  # type: ignore[method-assign]
    for counter in range(9):
        bench.ends["theo"].send("host", frames(3, size=300 + counter))
    assert len(bench.run(30.0)["host"]) == 9
    assert sum(read) == 9
    kept = [payload for _, _, payload in plain()]
    assert 1000 < sum(map(len, kept)) <= 3000
    bench.run(reliable.KEEP_S)
    assert plain() == []
    bench.ends["theo"].send("host", frames(4))  # in the first place again
    assert len(bench.run(30.0)["host"]) == 1


def test_what_is_under_way_for_a_board_that_has_left_the_configuration_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, Faults(), ("theo", "dora"))
    bench.ends["host"].send("dora", frames(4))
    bench.restart("host")
    host = bench.ends["host"]
    send = host._inner.send

    def addressed(peer: str, sent: Any) -> int:
        if peer == "dora":
            raise UnknownPeer("addresses has no entry for 'dora'")
        return send(peer, sent)

    monkeypatch.setattr(host._inner, "send", addressed)
    bench.run(2.0)
    host.send("theo", frames(5))
    [arrival] = bench.run(5.0)["theo"]
    assert len(arrival.frames) == 5
    assert host.frames_refused > 0


def test_a_broadcast_is_for_nodes_that_nobody_has_named_but_that_were_heard(tmp_path: Path) -> None:
    """Of brokers a host's configuration names no boards."""
    bench = Bench(tmp_path, Faults(drop=0.3))
    host = bench.ends["host"]
    host._receivers = ()
    host.send("all", frames(5))
    told: dict[str, Any] = host.status()
    assert told["link"]["objects_under_way"] == 0, "nobody is there"
    bench.ends["theo"].send("host", frames(1, size=20))
    while not bench.run(1.0)["host"]:
        bench.ends["theo"].send("host", frames(1, size=20))
    host.send("all", frames(6))
    [arrival] = bench.run(60.0)["theo"]
    assert len(arrival.frames) == 6
    assert host.objects_sent == 1
