"""Whether a power cut can make a key meet one nonce twice.

A host and a node talk over a transport in memory. What SQLite had not committed is lost in a cut.
Two things guard the nonces: counters that are reserved on disk before they are used, and the random
bytes of each process. Each guard is also tried alone, and the control has neither.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bench.result import Figure, Result
from ternmesh.federated.coordinator import Coordinator
from ternmesh.federated.events import CountersReserved, WorkReady
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import CoordinatorSettings
from ternmesh.plan import make_plan
from ternmesh.security import group_keys, peer_session
from ternmesh.security.primitives import Ccm
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.base import HOST
from transports.driver import Driver
from transports.loopback import LoopbackHub, LoopbackTransport

CUTS, CUTS_QUICK, CUTS_CONTROL = 10_000, 200, 50
POINTS_MAX = 40  # the cut happens at one of so many points after a start
MEMORY = Path("/dev/shm")
NODE, MODEL, DIMENSION = "theo", bytes(32), 64
PLAN = make_plan(DIMENSION, rounds=1_000_000, local_steps=1, learning_rate=0.01)
SETTINGS = CoordinatorSettings(min_peers=1, deadline_s=60.0)
NOTES = (
    "simulated: time, transport and power cuts; real: state machines, driver, ciphers and files",
    "a cut happens at a seeded point: at a record, around each commit and each message",
    "counters alone: every process has the same random bytes; random alone: reservations never "
    "reach the disk; control: both at once, which must repeat nonces, or nothing was measured",
)


class PowerCut(Exception):
    """One end has no power."""


@dataclass(slots=True)
class World:
    """What outlives a process."""

    folder: Path
    is_kept: bool  # reserved counters go to disk
    hub: LoopbackHub
    rng: np.random.Generator
    now: float = 0.0


class Process(LoopbackTransport):
    """A process of the host or the node with its files and its transport."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.hub, name)
        self.points_left = 0  # until the cut; 0 for never
        self._world = world
        self._round: int | None = None  # the round to train for
        self._state = StateFile(world.folder / name)
        self._state.open()
        self._keyring = Keyring(self._state, SecurityConfig())
        self._keyring.open()
        self._store: Any = HostStore(self._state) if name == HOST else NodeStore(self._state)
        self.endpoint: Any = self._host() if name == HOST else self._node()
        self._driver: Driver[Any] = Driver(self.endpoint, self, lambda: world.now)
        self.open()
        self.endpoint.start(world.now)

    def _host(self) -> Coordinator:
        stored = self._store.load(MODEL)
        if stored is None:
            stored = self._store.begin(self._world.rng.bytes(8), PLAN, MODEL)
        security = self._keyring.security(HOST, MODEL, stored.state.counter)
        return Coordinator(PLAN, SETTINGS, MODEL, stored.run, stored.state, security)

    def _node(self) -> NodeProtocol:
        state, world_rng = self._store.load(MODEL, DIMENSION), self._world.rng
        rng = np.random.default_rng(world_rng.integers(1 << 32))
        security = self._keyring.security(NODE, MODEL, state.counter)
        return NodeProtocol(NODE, MODEL, 100, world_rng.bytes(8), state, rng, security=security)

    def _point(self) -> None:
        self.points_left -= 1
        if self.points_left == 0:
            raise PowerCut

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Deliver frames; the power may fail before and after it."""
        self._point()
        size = super().send(peer, frames)
        self._point()
        return size

    def turn(self) -> bool:
        """Serve once, and train; whether anything happened."""
        moved = self._driver.poll(0.0, self._record, self._commit)
        if self._round is None:
            return moved
        number, self._round = self._round, None
        delta = self._world.rng.standard_normal(DIMENSION).astype(np.float32) * 0.01
        self.endpoint.submit(number, delta, self._world.now)
        return True

    def end(self) -> None:
        """Close the files: what was not committed is lost."""
        self.close()
        self._state.close()

    def _record(self, event: object) -> None:
        self._point()
        if self._world.is_kept or not isinstance(event, CountersReserved):
            self._store.record(event)
        self._keyring.record(event)
        if isinstance(event, WorkReady):
            self._round = event.round

    def _commit(self) -> None:
        self._point()
        self._store.commit()  # everything of the process
        self._point()


def measure(*, quick: bool) -> Result:
    """The cuts with both guards, with either alone, and with none."""
    cuts = CUTS_QUICK if quick else CUTS
    repeated, sealed, version = cut(cuts)
    control, _, _ = cut(CUTS_CONTROL, is_kept=False, is_random=False)
    figures = {
        "cuts": Figure(cuts, None if quick else ">=10000"),
        "nonces_repeated": Figure(repeated, "<=0"),
        "nonces_repeated_counters_alone": Figure(cut(cuts, is_random=False)[0], "<=0"),
        "nonces_repeated_random_alone": Figure(cut(cuts, is_kept=False)[0], "<=0"),
        "frames_sealed": Figure(sealed),
        "control_nonces_repeated": Figure(control, ">=1"),
    }
    return Result("power_cut", figures, notes=NOTES, details={"version": version}, quick=quick)


def cut(cuts: int, *, is_kept: bool = True, is_random: bool = True) -> tuple[int, int, int]:
    """Cut the power at random points; returns repeated nonces, sealed frames and the version."""
    sealed: Counter[tuple[bytes, bytes]] = Counter()  # frames by key and nonce
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        world = World(Path(name), is_kept, LoopbackHub(), np.random.default_rng(0))
        enrol_fleet("cuts", world.folder / HOST, {NODE: world.folder / NODE})
        with (
            mock.patch.object(peer_session, "Ccm", cipher := _watched(sealed)),
            mock.patch.object(group_keys, "Ccm", cipher),
            nullcontext() if is_random else mock.patch("os.urandom", bytes),
        ):
            ends = {name: Process(world, name) for name in (HOST, NODE)}
            for seed in range(cuts):
                draw = np.random.default_rng(seed)
                name = (HOST, NODE)[draw.integers(2)]
                ends[name].points_left = int(draw.integers(1, POINTS_MAX + 1))
                _serve_until_cut(world, list(ends.values()))
                ends[name].end()
                ends[name] = Process(world, name)
            for end in ends.values():
                end.end()
    return sealed.total() - len(sealed), sealed.total(), ends[HOST].endpoint.version


def _watched(sealed: Counter[tuple[bytes, bytes]]) -> type[Ccm]:
    class WatchedCipher(Ccm):
        """The real cipher; it also counts keys and nonces."""

        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self._key = key

        def seal(self, nonce: bytes, head: bytes, body: bytes) -> bytes:
            sealed[self._key, nonce] += 1
            return super().seal(nonce, head, body)

    return WatchedCipher


def _serve_until_cut(world: World, ends: Sequence[Process]) -> None:
    with suppress(PowerCut):
        while True:
            if not any([end.turn() for end in ends]):
                due = [end.endpoint.next_timeout() for end in ends]
                world.now = min(time_s for time_s in due if time_s is not None)
