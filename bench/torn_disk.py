"""What a power cut may leave on a disk, at every write of a host and a node in a scripted run.

A SQLite VFS notes each write, sync, truncation and deletion of a state file. At each of them the
power of one end fails. The disk has what was synced, and of the rest nothing, all, all but parts of
the last write, or any sectors. The end opens this image, one of both ends soon fails again, and
they run to the end.
"""

import ctypes
import hashlib
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from bench import promises
from bench.result import Figure, Result
from ternmesh.federated.coordinator import Coordinator
from ternmesh.federated.events import WorkReady
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import CoordinatorSettings
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

NODE, MODEL, DIMENSION, ROUNDS = "theo", bytes(32), 2000, 4
PLAN = make_plan(DIMENSION, rounds=ROUNDS, local_steps=1, learning_rate=0.01, up_zeros=0.5)
SETTINGS = CoordinatorSettings(min_peers=1, deadline_s=60.0)
LEFT = ("nothing", "all", "torn", "sectors")  # of what was not synced
SECTOR, CHECKPOINT_PAGES = 512, 60  # the latter is 1000 by default: no short run would reach it
AGAIN_MAX = 80  # the second cut comes after so many operations at most
STEP_QUICK, LYING, LYING_QUICK = 40, 200, 20
TURNS_MAX = 5000
MEMORY = Path("/dev/shm")
OK, IO_ERROR = 0, 10  # codes of SQLite
NOTES = (
    "simulated: disk, time and transport; real: SQLite of this machine, stores, keys, ciphers and "
    f"state machines; {ROUNDS} rounds, a checkpoint every {CHECKPOINT_PAGES} pages, so that there "
    "are some; sectors of 512 bytes are written whole or not at all",
    "disk violations: a state that is neither that of the last commit nor that of the one under "
    "way, a file that does not open, a receipt or a global update that was taken back, a nonce "
    "that a key meets twice (all processes have the same random bytes here), a run without an end",
    "lying disk: it drops what it called synced. The broken promises must show, or nothing was "
    "measured; with real random bytes still no nonce repeats, with the same ones some do",
)


class Operation(NamedTuple):
    """A change of a file that no sync has made durable."""

    name: str
    offset: int  # -1: the file is deleted; else it is written there, or cut (`data` is None)
    data: bytes | None = None


@dataclass(slots=True)
class Disk:
    """The state files of one end: what is durable, and what is not yet, in order."""

    durable: dict[str, bytes]
    committed: str  # digest of all rows after the last commit
    under_way: str  # and after the commit that was begun last
    faults: Counter[str] | None = (
        None  # where the next commit must say whether it found one of both
    )
    pending: list[Operation] = field(default_factory=list)
    count: int = 0  # operations
    cut_at: int = 0  # the operation that the power fails in; 0 for none
    is_lying: bool = False

    def take(self, operation: Operation | None, synced: str = "") -> bool:
        """Note an operation, or the sync of a file; False when there is no power any more."""
        self.count += 1
        if self.is_dead and self.count > self.cut_at:
            return False
        if operation is not None:
            self.pending.append(operation)
        elif not self.is_dead and not self.is_lying:
            mine = [item for item in self.pending if item.name == synced]
            self.durable = _applied(self.durable, mine)
            self.pending = [item for item in self.pending if item.name != synced]
        return not self.is_dead

    @property
    def is_dead(self) -> bool:
        """Whether the power has failed."""
        return 0 < self.cut_at <= self.count

    def image(self, left: str, rng: np.random.Generator) -> dict[str, bytes]:
        """The files that are found after the cut."""
        kept = self.pending if left in ("all", "torn") else []
        if left == "torn" and kept:
            kept = [*kept[:-1], *_sectors(kept[-1], rng)]
        elif left == "sectors":
            kept = [part for item in self.pending for part in _sectors(item, rng)]
        return _applied(self.durable, kept)


def _applied(files: dict[str, bytes], operations: list[Operation]) -> dict[str, bytes]:
    found = {name: bytearray(content) for name, content in files.items()}
    for name, offset, data in operations:
        if offset < 0:
            found.pop(name, None)
            continue
        content = found.setdefault(name, bytearray())
        size = offset + len(data or b"")
        content.extend(bytes(max(0, size - len(content))))
        if data is None:
            del content[offset:]
        content[offset:size] = data or b""
    return {name: bytes(content) for name, content in found.items()}


def _sectors(item: Operation, rng: np.random.Generator) -> Iterator[Operation]:
    """The parts of an operation that reach the disk."""
    data = item.data or b""
    first = 0
    while first < len(data) or not first:
        last = SECTOR - (item.offset + first) % SECTOR + first if data else 1
        if rng.random() < 0.5:
            yield item if not data else Operation(item.name, item.offset + first, data[first:last])
        first = last


_WRITE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
_OPEN = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_int, POINTER(c_int))
_DELETE = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods: what comes before, the three that change a file, and the rest."""

    _fields_ = [
        ("before", c_void_p * 3),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        ("rest", c_void_p * 13),
    ]


class _Vfs(ctypes.Structure):
    """sqlite3_vfs."""

    _fields_ = [
        ("version", c_int),
        ("file_size", c_int),
        ("path_max", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        ("rest", c_void_p * 14),
    ]


class NoVfs(Exception):
    """SQLite is a part of this Python and not a library."""


def _library() -> ctypes.CDLL:
    """The SQLite that Python's sqlite3 uses."""
    assert sqlite3.sqlite_version
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libsqlite3" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[5])
    raise NoVfs("this Python has a SQLite of its own: use one that links libsqlite3 (Debian's)")


@contextmanager
def watching(disks: dict[Path, Disk]) -> Iterator[None]:
    """Let the disk of a folder take all operations on its state file; it may refuse them."""
    library = _library()
    library.sqlite3_vfs_find.restype = POINTER(_Vfs)
    usual = library.sqlite3_vfs_find(None)
    vfs = _Vfs.from_buffer_copy(usual.contents)
    names: dict[int, Path] = {}  # of open files, by address
    copies: dict[int, tuple[_Methods, _Methods]] = {}  # the usual methods, and ours

    def disk_of(path: Path) -> Disk:
        return disks[path.parent]

    def open_file(this: int, name: bytes, file: int, flags: int, out: Any) -> int:
        code: int = usual.contents.open(this, name, file, flags, out)
        path = Path((name or b"").decode())
        if code == OK and path.parent in disks:
            names[file] = path
            slot = c_void_p.from_address(file)
            address = slot.value or 0
            if address not in copies:
                methods = _Methods.from_address(address)
                mine = _Methods.from_buffer_copy(methods)
                mine.write, mine.truncate, mine.sync = write, truncate, sync
                copies[address] = methods, mine
            slot.value = ctypes.addressof(copies[address][1])
        return code

    def usual_of(file: int) -> _Methods:
        own = c_void_p.from_address(file).value
        return next(usual for usual, mine in copies.values() if ctypes.addressof(mine) == own)

    def take(file: int, offset: int, data: bytes | None) -> bool:
        path = names[file]
        return disk_of(path).take(Operation(path.name, offset, data))

    @_WRITE
    def write(file: int, data: int, size: int, offset: int) -> int:
        is_done = take(file, offset, ctypes.string_at(data, size))
        return int(usual_of(file).write(file, data, size, offset)) if is_done else IO_ERROR

    @_TRUNCATE
    def truncate(file: int, size: int) -> int:
        return int(usual_of(file).truncate(file, size)) if take(file, size, None) else IO_ERROR

    @_SYNC
    def sync(file: int, flags: int) -> int:  # noqa: ARG001  (nothing waits for a real disk)
        return OK if disk_of(names[file]).take(None, names[file].name) else IO_ERROR

    @_DELETE
    def delete(this: int, name: bytes, is_durable: int) -> int:
        path = Path(name.decode())
        if (disk := disks.get(path.parent)) is not None:
            is_done = disk.take(Operation(path.name, -1))
            if not is_done or (is_durable and not disk.take(None, path.name)):
                return IO_ERROR
        return int(usual.contents.delete(this, name, is_durable))

    vfs.name, vfs.open, vfs.delete = b"watched", _OPEN(open_file), delete
    library.sqlite3_vfs_register(ctypes.byref(vfs), 1)
    try:
        yield
    finally:
        library.sqlite3_vfs_unregister(ctypes.byref(vfs))
        library.sqlite3_vfs_register(usual, 1)


class Process(LoopbackTransport):
    """A process of the host or the node with its files and its transport."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world.hub, name)
        self._world = world
        self._round: int | None = None  # the round to train for
        self._state = StateFile(world.folder / name)
        self._state.open()
        self._state.rows(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._keyring = Keyring(self._state, SecurityConfig())
        self._keyring.open()
        self.store: Any = HostStore(self._state) if name == HOST else NodeStore(self._state)
        self.endpoint: Any = self._host() if name == HOST else self._node()
        self._driver: Driver[Any] = Driver(self.endpoint, self, lambda: world.now)
        self.open()
        self.endpoint.start(world.now)

    def _host(self) -> Coordinator:
        stored = self.store.load(MODEL)
        if stored is None:
            stored = self.store.begin(self._world.rng.bytes(8), PLAN, MODEL)
        security = self._keyring.security(HOST, MODEL, stored.state.counter)
        return Coordinator(PLAN, SETTINGS, MODEL, stored.run, stored.state, security)

    def _node(self) -> NodeProtocol:
        state, world_rng = self.store.load(MODEL, DIMENSION), self._world.rng
        rng = np.random.default_rng(world_rng.integers(1 << 32))
        security = self._keyring.security(NODE, MODEL, state.counter)
        return NodeProtocol(NODE, MODEL, 100, world_rng.bytes(8), state, rng, security=security)

    def turn(self) -> bool:
        """Serve once, and train; whether anything happened."""
        moved = self._driver.poll(0.0, self._record, self.store.commit)
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
        self.store.record(event)
        self._keyring.record(event)
        if isinstance(event, WorkReady):
            self._round = event.round


class World:
    """A host and a node on the disks in `disks`; `template` has their folders and their rows."""

    def __init__(
        self, template: "Template", disks: dict[Path, Disk], seed: tuple[int, ...]
    ) -> None:
        self.folder, self._disks = template.folder.with_name("world"), disks
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(template.folder, self.folder)
        self.hub, self.now = LoopbackHub(), 0.0
        self.rng = np.random.default_rng(seed)
        self.ends: dict[str, Process] = {}
        self.faults: Counter[str] = Counter()
        for name, rows in template.rows.items():
            folder = self.folder / name
            disks[folder] = Disk({STATE: (folder / STATE).read_bytes()}, rows, rows)

    def disk(self, name: str) -> Disk:
        """The disk of an end."""
        return self._disks[self.folder / name]

    def serve(self) -> bool:
        """Start who does not run, and serve until an end has no power; False at the run's end."""
        try:
            for name in (HOST, NODE):
                if name not in self.ends:
                    self.ends[name] = Process(self, name)
            for _ in range(TURNS_MAX):
                if not any([end.turn() for end in self.ends.values()]):
                    endpoints = [end.endpoint for end in self.ends.values()]
                    if all(endpoint.version == ROUNDS for endpoint in endpoints):
                        return False
                    due = [endpoint.next_timeout() for endpoint in endpoints]
                    self.now = min(time_s for time_s in due if time_s is not None)
            self.faults["the run does not end"] += 1
        except StoreError as error:
            if not any(self.disk(name).is_dead for name in (HOST, NODE)):
                self.faults[f"a state is refused: {error}"] += 1
        return True

    def restart(self, name: str, left: str) -> None:
        """Give an end its power back, with the disk that the cut has left."""
        if name in self.ends:
            self.ends.pop(name).end()
        old, folder = self.disk(name), self.folder / name
        files = old.image(left, self.rng)
        for path in folder.glob(f"{STATE}*"):
            path.unlink()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        found = Disk(files, old.committed, old.under_way, self.faults)
        self._disks[folder] = found

    def check(self) -> Counter[str]:
        """All that broke, at the end of the run."""
        stores = [self.ends[name].store for name in (HOST, NODE)]
        host, node = stores[0].load(MODEL).state, stores[1].load(MODEL, DIMENSION)
        broken = promises.broken(self.folder / HOST, {NODE: self.folder / NODE})
        return self.faults + broken + promises.differing(host, [node], ROUNDS)

    def end(self) -> None:
        """Close all files."""
        for end in self.ends.values():
            end.end()


@dataclass(frozen=True, slots=True)
class Template:
    """The folders of a host and a node with keys, and a digest of the rows that each has."""

    folder: Path
    rows: dict[str, str]


def _template(folder: Path) -> Template:
    enrol_fleet("cuts", folder / HOST, {NODE: folder / NODE})
    rows = {}
    for name in (HOST, NODE):
        state = StateFile(folder / name)
        state.open()
        rows[name] = _digest(state)
        state.close()
    return Template(folder, rows)


def _digest(database: Database) -> str:
    """The hash of all rows."""
    names = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    rows = [database.rows(f"SELECT * FROM {name}") for (name,) in names]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@contextmanager
def commits_watched(disks: dict[Path, Disk]) -> Iterator[None]:
    """Keep what each commit promises, and compare the first after a cut, when nothing changed."""
    commit = Database.commit

    def watched(database: Database) -> None:
        disk = disks.get(database.path.parent)
        if disk is None or not database.changed:
            commit(database)
            return
        rows = _digest(database)
        if disk.faults is not None:
            disk.faults["a state that no commit made"] += rows not in (
                disk.committed,
                disk.under_way,
            )
            disk.faults = None
        disk.under_way = rows
        commit(database)
        disk.committed = rows

    with mock.patch.object(Database, "commit", watched):
        yield


@contextmanager
def nonces_watched(sealed: Counter[tuple[bytes, bytes]]) -> Iterator[None]:
    """Count frames by key and nonce."""

    class WatchedCipher(Ccm):
        """The real cipher; it also counts keys and nonces."""

        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self._key = key

        def seal(self, nonce: bytes, head: bytes, body: bytes) -> bytes:
            sealed[self._key, nonce] += 1
            return super().seal(nonce, head, body)

    with (
        mock.patch.object(peer_session, "Ccm", WatchedCipher),
        mock.patch.object(group_keys, "Ccm", WatchedCipher),
    ):
        yield


class Bench:
    """The place of all cases; `with` prepares it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._disks: dict[Path, Disk] = {}

    def __enter__(self) -> "Bench":
        memory = MEMORY if MEMORY.is_dir() else None
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir=memory))
        self._template = _template(Path(folder, "template"))
        self._stack.enter_context(watching(self._disks))
        self._stack.enter_context(commits_watched(self._disks))
        self._stack.enter_context(promises.watched())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def operations(self) -> dict[str, int]:
        """How many operations each end makes in the script."""
        world = World(self._template, self._disks, (0,))
        assert not world.serve()
        assert not world.check(), f"the script fails without a cut: {world.check()}"
        world.end()
        return {name: world.disk(name).count for name in (HOST, NODE)}

    def cut(
        self, name: str, number: int, left: str, *, is_lying: bool = False, is_random: bool = False
    ) -> Counter[str]:
        """Cut the power of an end in an operation, and soon again; what broke until the end."""
        sealed: Counter[tuple[bytes, bytes]] = Counter()
        seed = (number, LEFT.index(left), name == HOST)
        with (
            nonces_watched(sealed),
            nullcontext() if is_random else mock.patch("os.urandom", bytes),
        ):
            world = World(self._template, self._disks, seed)
            disk = world.disk(name)
            disk.cut_at, disk.is_lying = number, is_lying
            if not world.serve():
                world.faults["no such operation"] += 1
            world.restart(name, left)
            if not is_lying:
                other = (HOST, NODE)[world.rng.integers(2)]
                disk = world.disk(other)
                disk.cut_at = disk.count + int(world.rng.integers(1, AGAIN_MAX + 1))
                if world.serve():
                    world.restart(other, LEFT[world.rng.integers(len(LEFT))])
            has_ended = not world.serve()
            faults = world.check() if has_ended else world.faults
            world.end()
        faults["a nonce twice"] = sealed.total() - len(sealed)
        return faults


def measure(*, quick: bool) -> Result:
    """All cases of an honest disk, and some of one that lies."""
    faults: Counter[str] = Counter()
    lies = {True: Counter[str](), False: Counter[str]()}
    cases = 0
    with Bench() as bench:
        operations = bench.operations()
        begun = time.monotonic()
        for name, count in operations.items():
            for number in range(1, count + 1, STEP_QUICK if quick else 1):
                for left in LEFT:
                    found = bench.cut(name, number, left)
                    cases += 1
                    faults += found
                    if +found:
                        print(f"{name}, operation {number}, {left}: {dict(+found)}", flush=True)
                    if cases % 500 == 0:
                        print(f"{time.monotonic() - begun:.0f} s: {cases} disks", flush=True)
        for case in range(LYING_QUICK if quick else LYING):
            name = (HOST, NODE)[case % 2]
            number = operations[name] - 1 - case // 2
            for is_random, total in lies.items():
                total += bench.cut(name, number, "nothing", is_lying=True, is_random=is_random)
    return _result(operations, cases, faults, lies, quick=quick)


def _result(
    operations: dict[str, int],
    cases: int,
    faults: Counter[str],
    lies: dict[bool, Counter[str]],
    *,
    quick: bool,
) -> Result:
    figures = {
        "disks": Figure(cases, None if quick else ">=1000"),
        "disk_violations": Figure(faults.total(), "<=0"),
        "disk_operations": Figure(sum(operations.values())),
        "lying_disk_violations": Figure(lies[True].total(), ">=1"),
        "lying_disk_nonces_repeated": Figure(lies[True]["a nonce twice"], "<=0"),
        "lying_disk_nonces_repeated_without_random": Figure(lies[False]["a nonce twice"], ">=1"),
    }
    details = {
        "operations": operations,
        "disk_faults": dict(faults),
        "lying_disk_faults": dict(lies[True]),
    }
    return Result("torn_disk", figures, notes=NOTES, details=details, quick=quick)
