"""Whether a power cut can ever make a key meet one nonce twice.

A host and a node talk over a bearer in memory; time is simulated and power cuts are exceptions, but
the state machines, the driver, the ciphers and the files are those of real ends. A cut strikes at
any point between the reservation of counters and the use of the last one; what SQLite had not
committed is lost then. Two things guard the nonces: counters that are reserved on disk before they
are used, and the random bytes of each process. Each is also left alone, and both are taken away.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bench.fleet import Clock
from bench.result import Figure, Result
from ternmesh.plan import Plan, make_plan
from ternmesh.swarm import records
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import CountersReserved, WorkReady
from ternmesh.swarm.member import Member
from ternmesh.trust import broadcast, pair
from ternmesh.trust.notary import Trust
from ternmesh.trust.primitives import Ccm
from ternmesh_cli.keys import enrol_fleet
from ternmesh_store.host_store import HostStore
from ternmesh_store.keyring import Keyring, TrustConfig
from ternmesh_store.node_store import NodeStore
from transports.base import HOST
from transports.driver import Driver
from transports.loopback import LoopbackHub, LoopbackTransport

CUTS, CUTS_QUICK, CONTROL = 10_000, 300, 50
POINTS_MAX = 40  # the cut strikes at one of so many points after a start, unless all is quiet
TURNS_MAX = 10_000
ROUNDS = 1_000_000
NODE, MODEL, DIMENSION = "theo", bytes(32), 64
FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


class PowerCut(Exception):
    """The power of one end is gone."""


class Watched(Ccm):
    """The real cipher; it remembers every key and nonce that it sealed with."""

    used: set[tuple[bytes, bytes]] = set()  # noqa: RUF012  (a new one for each measurement)
    repeated = 0

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._key = key

    def seal(self, nonce: bytes, head: bytes, body: bytes) -> bytes:
        """See `Ccm`."""
        Watched.repeated += (self._key, nonce) in Watched.used
        Watched.used.add((self._key, nonce))
        return super().seal(nonce, head, body)


@dataclass(slots=True)
class Fuse:
    """Blows at the end that it is in after so many more points."""

    left: int = 0

    def point(self) -> None:
        """A moment in which the power may go."""
        self.left -= 1
        if self.left == 0:
            raise PowerCut


class _CutTransport(LoopbackTransport):
    """The power may go before and after a message."""

    def __init__(self, hub: LoopbackHub, name: str, fuse: Fuse) -> None:
        super().__init__(hub, name)
        self._fuse = fuse

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """See `LoopbackTransport`. Here the frames are sealed, and here they have left."""
        self._fuse.point()
        size = super().send(peer, frames)
        self._fuse.point()
        return size


@dataclass(frozen=True, slots=True)
class World:
    """What outlives a process. `is_kept`: reservations go to disk; `is_random`: `os.urandom` is."""

    folder: Path
    hub: LoopbackHub
    clock: Clock
    plan: Plan
    rng: np.random.Generator
    is_kept: bool = True
    is_random: bool = True


class Life:
    """A process of the host or the node, from its files to its end."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self.fuse = world, Fuse()
        folder = world.folder / name
        self._keyring = Keyring(folder, TrustConfig())
        path = folder / "state.sqlite"
        self._store: Any = HostStore(path) if name == HOST else NodeStore(path)
        self._keyring.open()
        self._store.open()
        self._work: int | None = None
        self.endpoint: Any = self._host() if name == HOST else self._node()
        transport = _CutTransport(world.hub, name, self.fuse)
        self.driver: Driver[Any] = Driver(self.endpoint, transport, world.clock)
        transport.open()
        self.endpoint.start(world.clock.now)

    def _trust(self, counter: int) -> Trust:
        name = self._keyring.own.public.name
        with ExitStack() as stack:
            if not self._world.is_random:
                stack.enter_context(mock.patch("os.urandom", bytes))
            return self._keyring.trust(name, MODEL, counter)

    def _host(self) -> Coordinator:
        w = self._world
        stored = self._store.load(MODEL)
        if stored is None:
            stored = self._store.begin(w.rng.bytes(8), w.plan, MODEL)
        trust = self._trust(stored.state.counter)
        settings = records.Settings(min_peers=1, deadline_s=60.0)
        return Coordinator(w.plan, settings, MODEL, stored.run, stored.state, trust)

    def _node(self) -> Member:
        w = self._world
        state = self._store.load(MODEL, DIMENSION)
        trust = self._trust(state.counter)
        rng = np.random.default_rng(w.rng.integers(1 << 32))
        return Member(NODE, MODEL, 100, w.rng.bytes(8), state, rng, trust=trust)

    def turn(self) -> bool:
        """Serve; PowerCut where the fuse blows."""
        moved = self.driver.poll(0.0, self._record, self._commit)
        if self._work is not None:
            number, self._work = self._work, None
            delta = self._world.rng.standard_normal(DIMENSION).astype(np.float32) * 0.01
            self.endpoint.submit(number, delta, self._world.clock.now)
            moved = True
        return moved

    def end(self) -> None:
        """What was not committed is lost."""
        self.driver.transport.close()
        self._keyring.close()
        self._store.close()

    def _record(self, event: object) -> None:
        self.fuse.point()
        if self._world.is_kept or not isinstance(event, CountersReserved):
            self._store.record(event)
        self._keyring.record(event)
        if isinstance(event, WorkReady):
            self._work = event.round

    def _commit(self) -> None:
        self.fuse.point()
        self._keyring.commit()
        self.fuse.point()
        self._store.commit()
        self.fuse.point()


@dataclass(frozen=True, slots=True)
class Count:
    """What so many cuts have shown."""

    cuts: int
    repeated: int
    sealed: int
    version: int  # references that the run has come to in spite of them


def measure(*, quick: bool) -> Result:
    """The cuts as fleets are, with either guard alone, and with none."""
    cuts, begun = CUTS_QUICK if quick else CUTS, time.monotonic()
    arms = {
        "both": _told("both", cut(cuts)),
        "counters alone": _told("counters alone", cut(cuts, is_random=False)),
        "random bytes alone": _told("random bytes alone", cut(cuts, is_kept=False)),
        "neither": _told("neither", cut(CONTROL, is_kept=False, is_random=False)),
    }
    figures = {
        "cuts": Figure(arms["both"].cuts, None if quick else ">=10000"),
        "nonces_repeated": Figure(arms["both"].repeated, "<=0"),
        "nonces_repeated_counters_alone": Figure(arms["counters alone"].repeated, "<=0"),
        "nonces_repeated_random_alone": Figure(arms["random bytes alone"].repeated, "<=0"),
        "frames_sealed": Figure(arms["both"].sealed),
        "control_nonces_repeated": Figure(arms["neither"].repeated, ">=1"),
    }
    notes = (
        "simulated: time, the bearer and the power cuts, after which what SQLite had not committed "
        "is lost; the disk itself loses nothing that was synced; real: state machines, driver, "
        "ciphers, files, and the order in which they are written",
        "each cut strikes host or node at a seeded point: while events are recorded, before, "
        "between and after the commits of its two files, before and after each message",
        "counters alone: every process has the same random bytes; random alone: reservations never "
        "reach the disk; control: both at once, which must repeat nonces, or nothing was measured",
    )
    details = {name: {"version": count.version} for name, count in arms.items()}
    details["seconds"] = {"all": round(time.monotonic() - begun)}
    return Result("power_cut", figures, notes=notes, details=details, quick=quick)


def _told(name: str, count: Count) -> Count:
    print(f"{name}: {count.repeated} of {count.sealed} nonces repeated in {count.cuts} cuts")
    return count


def cut(cuts: int, *, is_kept: bool = True, is_random: bool = True) -> Count:
    """Two ends that are cut so often, each time at the point that the number of the cut draws."""
    Watched.used, Watched.repeated = set(), 0
    with tempfile.TemporaryDirectory(dir=FOLDER) as place, _watched():
        enrol_fleet("cuts", Path(place) / HOST, {NODE: Path(place) / NODE})
        plan = make_plan(DIMENSION, rounds=ROUNDS, local_steps=1, learning_rate=0.01)
        hub, rng = LoopbackHub(), np.random.default_rng(0)
        world = World(Path(place), hub, Clock(), plan, rng, is_kept, is_random)
        lives = {name: Life(world, name) for name in (HOST, NODE)}
        for seed in range(cuts):
            draw = np.random.default_rng(seed)
            name = (HOST, NODE)[draw.integers(2)]
            lives[name].fuse.left = int(draw.integers(1, POINTS_MAX + 1))
            _serve_until_cut(world.clock, lives)
            lives[name].end()
            lives[name] = Life(world, name)
        version = lives[HOST].endpoint.version
        for life in lives.values():
            life.end()
    return Count(cuts, Watched.repeated, len(Watched.used) + Watched.repeated, version)


def _serve_until_cut(clock: Clock, lives: Mapping[str, Life]) -> None:
    for _ in range(TURNS_MAX):
        try:
            moved = [life.turn() for life in lives.values()]
        except PowerCut:
            return
        if not any(moved):
            due = [life.endpoint.next_timeout() for life in lives.values()]
            clock.now = min(time_s for time_s in due if time_s is not None)
    raise RuntimeError("nothing happens any more in which the power could go")


@contextmanager
def _watched() -> Iterator[None]:
    """Every cipher is watched."""
    with ExitStack() as stack:
        for module in (pair, broadcast):
            stack.enter_context(mock.patch.object(module, "Ccm", Watched))
        yield
