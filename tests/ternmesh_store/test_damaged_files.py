"""State files with random damage: the program goes on with all that it had, or says what is wrong.

A host and its boards are killed in the middle of a run. One of their files is damaged, and all
start again. `TERNMESH_DAMAGES=200 pytest tests/ternmesh_store/test_damaged_files.py` makes that
many trials with the host's files and that many with a board's; with `-rP` their ends are shown.
"""

import logging
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from host.runs import continue_or_begin
from host.service import HostService
from ternmesh.errors import TernmeshError
from ternmesh.federated.events import WorkReady
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings
from ternmesh.plan import make_plan
from ternmesh.wire.control import FINISHED
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.keyring import Keyring, NoKeyring, SecurityConfig, opened
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import HOST as HOST_TABLES
from ternmesh_store.state_file import STATE, StateFile
from transports.base import HOST
from transports.driver import Driver
from transports.loopback import LoopbackHub

DAMAGES = int(os.environ.get("TERNMESH_DAMAGES", "20"))
MODEL, DIMENSION, NAMES = bytes(range(32)), 1000, ("ada", "bob")
PACKAGE: Any = SimpleNamespace(model_hash=lambda: MODEL, adapter_key=lambda: bytes(96))
PLAN = make_plan(DIMENSION, rounds=8, local_steps=1, learning_rate=0.1, announce_s=5)
SETTINGS = HostSettings(min_peers=2, deadline_s=60.0)
CHECKPOINTED, KILLED = 2, 4  # versions at which all end in order, and at which they are killed
PATIENCE_S = 1000.0
WHOLE, SAID, LOGGED = "nothing lost", "refused with a sentence", "said in the log"
MEMORY = Path("/dev/shm")


class Fleet:
    """A host and boards on real files, with a number for a clock."""

    def __init__(self, folder: Path, stack: ExitStack, *, keys: bool) -> None:
        self.folder, self.stack, self.keys = folder, stack, keys
        self.now = 1000.0
        self.hub = LoopbackHub()
        self.service = self._host()
        self.boards = {name: self._board(name) for name in NAMES}

    def _opened(self, name: str, *groups: str) -> tuple[StateFile, Keyring | NoKeyring]:
        state = StateFile(self.folder / name)
        keyring = Keyring(state, SecurityConfig()) if self.keys else NoKeyring()
        self.stack.enter_context(opened(state, keyring, "garden", *groups))
        return state, keyring

    def _host(self) -> HostService:
        """As `run_host` does it."""
        state, keyring = self._opened(HOST, HOST_TABLES)
        store, transport = HostStore(state), self.hub.host()
        transport.open()
        stored = continue_or_begin(store, PLAN, PACKAGE)
        clock = lambda: self.now  # noqa: E731
        service = HostService(stored, SETTINGS, MODEL, store, transport, clock, keyring)
        service.start()
        return service

    def _board(self, name: str) -> tuple[Driver[Any], NodeStore, Keyring | NoKeyring]:
        state, keyring = self._opened(name)
        store, transport = NodeStore(state), self.hub.node(name)
        transport.open()
        loaded = store.load(MODEL, DIMENSION)
        security = keyring.security(name, MODEL, loaded.counter)
        rng = np.random.default_rng(0)
        board = NodeProtocol(
            NodeSettings(name, MODEL, os.urandom(8)), loaded, samples=9, rng=rng, security=security
        )
        board.start(self.now)
        return Driver(board, transport, lambda: self.now), store, keyring

    def run(self, version: int) -> bool:
        """Go on to a global update that all have; False where that does not come."""
        until = self.now + PATIENCE_S
        while self.now < until:
            moved = self.service.poll(0.0)
            for name, (driver, store, keyring) in self.boards.items():
                work: list[WorkReady] = []

                def handle(event, store=store, keyring=keyring, work=work) -> None:
                    store.record(event)
                    keyring.record(event)
                    work += [event] if isinstance(event, WorkReady) else []

                moved |= driver.poll(0.0, handle, store.commit)
                for wanted in work:
                    rng = np.random.default_rng([NAMES.index(name), wanted.round])
                    delta = rng.standard_normal(DIMENSION).astype(np.float32) * 0.05
                    cast(NodeProtocol, driver.endpoint).submit(wanted.round, delta, self.now)
                    moved = True
            ends: list[Any] = [self.service.protocol]
            ends += [driver.endpoint for driver, _, _ in self.boards.values()]
            if min(end.version for end in ends) >= version:
                is_over = version < PLAN.rounds or ends[0].phase == FINISHED
                return is_over and len({end.global_hash for end in ends}) == 1
            if not moved:
                due = [d.endpoint.next_timeout() for d, _, _ in self.boards.values()]
                due.append(self.service.driver.endpoint.next_timeout())
                self.now = max(self.now + 0.01, min(at for at in due if at is not None))
        return False


def contents(state: StateFile) -> dict[str, list[Any]]:
    """All rows of an open file."""
    tables = state.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return {name: sorted(state.rows(f"SELECT * FROM {name}"), key=repr) for (name,) in tables}


def started_again(folder: Path, groups: tuple[str, ...]) -> dict[str, list[Any]]:
    state = StateFile(folder)
    state.open(groups)
    try:
        return contents(state)
    finally:
        state.close()


@pytest.fixture(scope="module")
def killed() -> Iterator[dict[bool, Path]]:
    """What a fleet leaves on disk when it is killed in the middle of a round, with keys or not."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        for keys in (True, False):
            live, image = Path(name, f"live-{keys}"), Path(name, f"image-{keys}")
            if keys:
                enrol_fleet("garden", live / HOST, {board: live / board for board in NAMES})
            for version in (CHECKPOINTED, KILLED):
                with ExitStack() as stack:
                    assert Fleet(live, stack, keys=keys).run(version)
                    shutil.copytree(live, image, dirs_exist_ok=True)
        yield {keys: Path(name, f"image-{keys}") for keys in (True, False)}


def damage(folder: Path, rng: random.Random) -> str:
    """Damage a file of a state folder; returns what was done."""
    path = folder / rng.choice((STATE, STATE, f"{STATE}-wal"))
    if path.name == STATE and rng.random() < 0.5:  # as after an end in order
        sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    content = bytearray(path.read_bytes())
    kind = rng.choice(("1 byte", "8 bytes", "64 bytes", "sector", "page", "end"))
    if kind == "end":
        content = content[: rng.randrange(len(content))]
    elif kind in ("sector", "page"):
        size = {"sector": 512, "page": 4096}[kind]
        start = rng.randrange(len(content) // size) * size
        content[start : start + size] = bytes(size)
    else:
        for _ in range(int(kind.split()[0])):
            content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    path.write_bytes(content)
    return f"{path.name}: {kind}"


def trial(image: Path, name: str, seed: int, log: pytest.LogCaptureFixture) -> tuple[str, str]:
    """Damage a file of `name`, start all again, and go on; returns (what was done, the end)."""
    rng, keys = random.Random(f"{name} {seed}"), image.name.endswith("True")
    groups = (*(("security",) if keys else ()), *((HOST_TABLES,) if name == HOST else ()))
    log.clear()
    with tempfile.TemporaryDirectory(dir=image.parent) as made, ExitStack() as stack:
        folder = Path(made, "fleet")
        shutil.copytree(image, folder)
        before = started_again(shutil.copytree(folder / name, Path(made, "before")), groups)
        done = damage(folder / name, rng)
        after = None
        with suppress(StoreError):
            after = started_again(shutil.copytree(folder / name, Path(made, "after")), groups)
        log.clear()
        try:
            goes_on = Fleet(folder, stack, keys=keys).run(PLAN.rounds)
        except (StoreError, TernmeshError) as error:  # others are tracebacks
            return done, SAID if f"{folder / name / STATE} is damaged" in str(error) else str(error)
        said = [r for r in log.records if r.name.startswith("ternmesh_store")]
        if not goes_on:
            return done, f"stands still, {'said' if said else 'silent'}"
        if said:
            return done, LOGGED
        return done, WHOLE if after == before else "lost in silence"


@pytest.mark.nightly
@pytest.mark.parametrize("name", [HOST, NAMES[0]])
def test_no_damage_is_passed_over_in_silence(killed, name, caplog):
    caplog.set_level(logging.WARNING)
    log, ends = logging.getLogger(__name__), dict[str, list[str]]()
    for seed in range(DAMAGES):
        done, end = trial(killed[seed % 2 == 0], name, seed, caplog)
        ends.setdefault(end, []).append(f"{seed} {done}")
    log.warning("%s: %s", name, {end: len(damages) for end, damages in ends.items()})
    assert not {end: found for end, found in ends.items() if end not in (WHOLE, SAID, LOGGED)}
