"""What a power cut may leave on a disk, at every write of a host and a node in a scripted run.

A SQLite VFS notes each write, sync, truncation and deletion of a state file. At each of them the
power of one end fails. The disk has what was synced, and of the rest nothing, all, all but parts of
the last write, or any sectors. The end opens this image, soon that of an end fails again,
and all run to the end.
"""

import hashlib
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bench import promises
from bench.result import Figure, Result
from bench.watched_disk import LEFT, SECTOR, Disk, watching
from ternmesh.federated.events import WorkReady
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings
from ternmesh.plan import make_plan
from ternmesh.security import group_keys, peer_session
from ternmesh.security.primitives import Ccm
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_store.database import Database, StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import STATE, StateFile
from transports.base import HOST
from transports.driver import Driver
from transports.loopback import LoopbackHub, LoopbackTransport

MODEL, DIMENSION, ROUNDS = bytes(32), 2000, 4
NODES = ("theo", "nicolas", "yweweler")
ENDS = (HOST, *NODES)
CUT = ENDS[:2]  # the nodes are alike
TRAINING = 0.8  # the chance that training is not done with a turn, so the nodes send one by one
PLAN = make_plan(DIMENSION, rounds=ROUNDS, local_steps=1, learning_rate=0.01, up_zeros=0.5)
SETTINGS = HostSettings(min_peers=2, deadline_s=5.0)  # it does not wait for who forgets
CHECKPOINT_PAGES = 60  # 1000 by default: no short run would reach it
AGAIN_MAX = 80  # the second cut comes after so many operations at most
STEP_QUICK, LYING, LYING_QUICK = 40, 100, 10
TURNS_MAX, SHOWN = 5000, 500
MEMORY = Path("/dev/shm")
NOTES = (
    "simulated: disk, time and transport; real: SQLite of this machine, stores, keys, ciphers and "
    f"state machines; {ROUNDS} rounds, a checkpoint every {CHECKPOINT_PAGES} pages, so that there "
    f"are some; sectors of {SECTOR} bytes are written whole or not at all",
    "disk violations: those above, a state that is neither that of the last commit nor that of the "
    "one under way, a file that does not open, a nonce that a key meets twice (all processes have "
    "the same random bytes, so that only the reserved counters guard it)",
    "lying disk: it loses what it called synced; that must show, or nothing was measured. Random "
    "bytes then still keep each nonce apart, and without both guards some repeat",
)


class Process(LoopbackTransport):
    """A process of the host or the node with its files and its transport."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world.hub, name)
        self._world = world
        self._round: int | None = None  # the round to train for
        self.state = StateFile(world.folder / name)
        self.state.open()
        self.state.rows(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._keyring = Keyring(self.state, SecurityConfig())
        self._keyring.open()
        self.store: Any = HostStore(self.state) if name == HOST else NodeStore(self.state)
        self.endpoint: Any = self._host() if name == HOST else self._node()
        self._driver: Driver[Any] = Driver(self.endpoint, self, lambda: world.now)
        self.open()
        self.endpoint.start(world.now)

    def _host(self) -> HostProtocol:
        stored = self.store.load(MODEL)
        if stored is None:
            stored = self.store.begin(self._world.rng.bytes(8), PLAN, MODEL)
        security = self._keyring.security(HOST, MODEL, stored.state.counter)
        return HostProtocol(PLAN, SETTINGS, MODEL, stored.run, stored.state, security)

    def _node(self) -> NodeProtocol:
        state, world_rng = self.store.load(MODEL, DIMENSION), self._world.rng
        rng = np.random.default_rng(world_rng.integers(1 << 32))
        security = self._keyring.security(self._name, MODEL, state.counter)
        instance = world_rng.bytes(8)
        return NodeProtocol(self._name, MODEL, 100, instance, state, rng, security=security)

    def turn(self) -> bool:
        """Serve once, and train; whether anything happened."""
        moved = self._driver.poll(0.0, self._record, self.store.commit)
        if self._round is None:
            return moved
        if self._world.rng.random() < TRAINING:
            return True
        number, self._round = self._round, None
        delta = self._world.rng.standard_normal(DIMENSION).astype(np.float32) * 0.01
        self.endpoint.submit(number, delta, self._world.now)
        return True

    def _record(self, event: object) -> None:
        self.store.record(event)
        self._keyring.record(event)
        if isinstance(event, WorkReady):
            self._round = event.round


class World:
    """A host and three nodes. `with` prepares the place of all cases; `begin` begins one."""

    def __init__(self) -> None:
        self.disks: dict[Path, Disk] = {}
        self.faults: Counter[str] = Counter()
        self.sealed: Counter[tuple[bytes, bytes]] = Counter()  # frames by key and nonce
        self._stack = ExitStack()
        self._rows: dict[str, str] = {}  # digests of the states before the start

    def __enter__(self) -> "World":
        memory = MEMORY if MEMORY.is_dir() else None
        place = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        self._template, self.folder = place / "template", place / "world"
        enrol_fleet("cuts", self._template / HOST, {name: self._template / name for name in NODES})
        for name in ENDS:
            state = StateFile(self._template / name)
            state.open()
            self._rows[name] = _digest(state)
            state.close()
        self._stack.enter_context(watching(self.disks))
        self._stack.enter_context(promises.watched())
        self._stack.enter_context(_patched(self))
        logger = logging.getLogger("ternmesh_store")  # it tells of each image
        self._stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, seed: tuple[int, ...]) -> None:
        """Begin a case: all ends have keys and nothing else."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._template, self.folder)
        self.hub, self.now, self.rng = LoopbackHub(), 0.0, np.random.default_rng(seed)
        self.ends: dict[str, Process] = {}
        self.faults.clear()
        self.sealed.clear()
        for name, rows in self._rows.items():
            content = {STATE: (self.folder / name / STATE).read_bytes()}
            self.disks[self.folder / name] = Disk(content, rows, rows)

    @property
    def is_dark(self) -> bool:
        """Whether an end has no power."""
        return any(disk.is_dead for disk in self.disks.values())

    def serve(self) -> bool:
        """Start who does not run, and serve until an end has no power; False at the run's end."""
        try:
            for name in ENDS:
                if name not in self.ends:
                    self.ends[name] = Process(self, name)
            for _ in range(TURNS_MAX):
                if self.is_dark:  # SQLite passes over an error in a checkpoint
                    return True
                if not any([end.turn() for end in self.ends.values()]):
                    endpoints = [end.endpoint for end in self.ends.values()]
                    if all(endpoint.version == ROUNDS for endpoint in endpoints):
                        return False
                    due = [endpoint.next_timeout() for endpoint in endpoints]
                    self.now = min(time_s for time_s in due if time_s is not None)
            self.faults["the run does not end"] += 1
        except StoreError as error:
            if not self.is_dark:
                self.faults[f"a state is refused: {error}"] += 1
        return True

    def cut(self, name: str, number: int, left: str) -> None:
        """Serve until the power of an end fails in an operation; then give it what is left.

        Where the run ends before, nothing happens.
        """
        disk, folder = self.disks[self.folder / name], self.folder / name
        disk.cut_at = number
        if name in self.ends:
            disk.committed = disk.under_way = _digest(self.ends[name].state)
        if not self.serve():
            disk.cut_at = 0
            return
        if name in self.ends:
            self.ends[name].close()
            self.ends.pop(name).state.close()
        files = disk.image(left, self.rng)
        for path in folder.glob(f"{STATE}*"):
            path.unlink()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        self.disks[folder] = Disk(files, disk.committed, disk.under_way, is_checked=False)

    def finish(self) -> Counter[str]:
        """Serve to the end; all that broke."""
        if not self.serve():
            host, *nodes = (self.ends[name].store for name in ENDS)
            states = [node.load(MODEL, DIMENSION) for node in nodes]
            self.faults += promises.differing(host.load(MODEL).state, states, ROUNDS)
            folders = {name: self.folder / name for name in NODES}
            self.faults += promises.broken(self.folder / HOST, folders)
        for end in self.ends.values():
            end.close()
            end.state.close()
        self.faults["a nonce twice"] = self.sealed.total() - len(self.sealed)
        return +self.faults


def _digest(database: Database) -> str:
    """The hash of all rows."""
    names = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    rows = [database.rows(f"SELECT * FROM {name}") for (name,) in names]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@contextmanager
def _patched(world: World) -> Iterator[None]:
    """Note what each commit promises, check it after a cut, and count nonces."""
    real_commit = Database.commit

    def commit(database: Database) -> None:
        disk = world.disks.get(database.path.parent)
        is_noted = disk is not None and (disk.cut_at or not disk.is_checked)
        if disk is None or not is_noted or not database.changed:
            real_commit(database)
            return
        rows = _digest(database)
        if not disk.is_checked:  # in `open`, before anything is written
            is_one = rows in (disk.committed, disk.under_way)
            world.faults["a state that no commit made"] += not is_one
            disk.is_checked = True
        disk.under_way = rows
        real_commit(database)
        disk.committed = rows

    class WatchedCipher(Ccm):
        """The real cipher; it also counts keys and nonces."""

        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self._key = key

        def seal(self, nonce: bytes, head: bytes, body: bytes) -> bytes:
            world.sealed[self._key, nonce] += 1
            return super().seal(nonce, head, body)

    with (
        mock.patch.object(Database, "commit", commit),
        mock.patch.object(peer_session, "Ccm", WatchedCipher),
        mock.patch.object(group_keys, "Ccm", WatchedCipher),
    ):
        yield


def try_disk(world: World, name: str, number: int, left: str) -> Counter[str]:
    """Cut the power of an end in an operation, and soon again; what broke."""
    with mock.patch("os.urandom", bytes):  # all processes have the same random bytes
        world.begin((number, LEFT.index(left), ENDS.index(name)))
        world.cut(name, number, left)
        other = ENDS[world.rng.integers(len(ENDS))]
        soon = world.disks[world.folder / other].count + int(world.rng.integers(1, AGAIN_MAX + 1))
        world.cut(other, soon, LEFT[world.rng.integers(len(LEFT))])
        return world.finish()


def try_lying_disk(world: World, name: str, number: int, *, is_random: bool) -> Counter[str]:
    """The same with one cut, and a disk that has lost what it called synced."""
    with nullcontext() if is_random else mock.patch("os.urandom", bytes):
        world.begin((number,))
        world.disks[world.folder / name].is_lying = True
        world.cut(name, number, "nothing")
        return world.finish()


def operations(world: World) -> dict[str, int]:
    """How many operations each end makes in the script without a cut, which must break nothing."""
    world.begin((0,))
    world.serve()
    counts = {name: world.disks[world.folder / name].count for name in ENDS}
    found = world.finish()
    assert not found, f"the script fails without a cut: {dict(found)}"
    return counts


def measure(*, quick: bool) -> Result:
    """All disks that are honest, and some that lie."""
    faults = Counter[str]()
    lies = {is_random: Counter[str]() for is_random in (True, False)}
    with World() as world:
        counts, begun = operations(world), time.monotonic()
        cases = [
            (name, number, left)
            for name in CUT
            for number in range(1, counts[name] + 1, STEP_QUICK if quick else 1)
            for left in LEFT
        ]
        for place, case in enumerate(cases):
            if found := try_disk(world, *case):
                print(f"{case}: {dict(found)}", flush=True)
            faults += found
            if place % SHOWN == 0:
                print(f"{time.monotonic() - begun:.0f} s: {place} disks", flush=True)
        for back in range(LYING_QUICK if quick else LYING):
            for name in CUT:
                for is_random, total in lies.items():
                    number = counts[name] - 2 * back
                    total += try_lying_disk(world, name, number, is_random=is_random)
    figures = {
        "disks": Figure(len(cases), None if quick else ">=1000"),
        "disk_violations": Figure(faults.total(), "<=0"),
        "disk_operations": Figure(sum(counts[name] for name in CUT)),
        "lying_disk_violations": Figure(lies[True].total(), ">=1"),
        "lying_disk_nonces_repeated": Figure(lies[True]["a nonce twice"], "<=0"),
        "lying_disk_nonces_repeated_without_random": Figure(lies[False]["a nonce twice"], ">=1"),
    }
    details = {
        "operations": counts,
        "disk_faults": dict(faults),
        "lying_disk_faults": dict(lies[True]),
    }
    return Result("torn_disk", figures, notes=NOTES, details=details, quick=quick)
