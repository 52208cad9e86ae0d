"""A fleet whose processes die at every moment ends where one ends that never dies, bit for bit."""

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.codec.scale import to_float
from ternmesh.federated.events import WorkReady
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings
from ternmesh.plan import make_plan
from ternmesh.wire.control import FINISHED
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile

MODEL = bytes(range(32))
DIMENSION = 3000
RUN = b"test-run"
NAMES = ("ada", "bob", "cleo")
STEPS_MAX = 20_000

# What may happen at a boundary, between handling events and sending what they allow.
GO_ON, BEFORE_COMMIT, AFTER_COMMIT = range(3)
Fate = Callable[[int], int]


class Fleet:
    """One host and its nodes on real stores; time is a number, and messages arrive at once."""

    def __init__(self, folder: Path, rounds: int, names: tuple[str, ...], fate: Fate) -> None:
        self.folder, self.names, self.fate = folder, names, fate
        self.plan = make_plan(DIMENSION, rounds=rounds, local_steps=1, learning_rate=0.1)
        self.settings = HostSettings(min_peers=len(names), deadline_s=1e9, chain_max=2)
        self.now = 0.0
        self.boundaries = 0
        self.wire: deque[tuple[str, str, list[bytes]]] = deque()
        self.files: dict[str, StateFile] = {}
        self.stores: dict[str, HostStore | NodeStore] = {}
        self.ends: dict[str, HostProtocol | NodeProtocol] = {}
        for name in ("host", *names):
            self._boot(name)

    def run(self) -> "Fleet":
        """Until every end has the last reference; both sides of each link may die on the way."""
        for _ in range(STEPS_MAX):
            if all(self._is_done(end) for end in self.ends.values()):
                break
            self._step()
        else:
            pytest.fail("the fleet does not finish")
        for file in self.files.values():
            file.close()
        return self

    def result(self) -> list[tuple[bytes, bytes]]:
        return [(end.model_q24.tobytes(), end.residual.tobytes()) for end in self.ends.values()]

    def _is_done(self, end: HostProtocol | NodeProtocol) -> bool:
        finished = end.phase == FINISHED if isinstance(end, HostProtocol) else end.finished
        return finished and end.version == self.plan.rounds

    def _boot(self, name: str) -> None:
        file = self.files.setdefault(name, StateFile(self.folder / name))
        file.close()  # It forgets what was not committed, as a kill does.
        file.open()
        store: Any
        end: Any
        if name == "host":
            store = HostStore(file, self.settings.chain_max)
            run = store.load(MODEL) or store.begin(RUN, self.plan, MODEL)
            end = HostProtocol(
                plan=run.plan,
                settings=self.settings,
                model_hash=MODEL,
                run=run.run,
                state=run.state,
            )
        else:
            store = NodeStore(file)
            samples = 10 + len(name)
            instance = self.boundaries.to_bytes(8, "big")
            rng = np.random.default_rng(self.boundaries)
            end = NodeProtocol(
                NodeSettings(name, MODEL, instance),
                store.load(MODEL, DIMENSION),
                samples=samples,
                rng=rng,
            )
        self.stores[name], self.ends[name] = store, end
        end.start(self.now)
        self._settle(name)

    def _step(self) -> None:
        if self.wire:
            receiver, sender, frames = self.wire.popleft()
            self.ends[receiver].receive_frames(sender, frames, self.now)
            self._settle(receiver)
            return
        due = {n: at for n, end in self.ends.items() if (at := end.next_timeout()) is not None}
        name = min(due, key=lambda n: due[n])
        self.now = max(self.now, due[name])
        self.ends[name].handle_timeout(self.now)
        self._settle(name)

    def _settle(self, name: str) -> None:
        end: Any = self.ends[name]
        store: Any = self.stores[name]
        while True:
            work = None
            while (event := end.next_event()) is not None:
                store.record(event)
                work = event if isinstance(event, WorkReady) else work
            fate = GO_ON
            if store.changed:
                fate = self.fate(self.boundaries)
                self.boundaries += 1
            if fate != BEFORE_COMMIT:
                store.commit()
            if fate != GO_ON:
                self._boot(name)
                return
            if work is None:
                break
            end.submit(work.round, self._delta(name, work.round), self.now)
        for peer, frames in end.frames_to_send(self.now):
            for receiver in self.names if peer == "all" else (peer,):
                self.wire.append((receiver, name, frames))

    def _delta(self, name: str, round_number: int) -> np.ndarray:
        """Training: it depends on the reference and the round, and on nothing that a kill loses."""
        rng = np.random.default_rng([self.names.index(name), round_number])
        noise = rng.standard_normal(DIMENSION).astype(np.float32)
        return 0.05 * noise - 0.1 * to_float(self.ends[name].model_q24)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: these tests commit thousands of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def one_death(at: int, kind: int, boundary: int) -> int:
    return kind if boundary == at else GO_ON


@pytest.mark.nightly
def test_one_death_at_any_boundary_changes_nothing(folder):
    rounds, names = 2, NAMES[:2]

    def run(number: int, fate: Fate) -> Fleet:
        return Fleet(folder / str(number), rounds, names, fate).run()

    peaceful = run(0, lambda boundary: GO_ON)
    assert len(set(model_q24 for model_q24, _ in peaceful.result())) == 1, "all agree"
    assert np.any(peaceful.ends["host"].model_q24)
    for boundary in range(peaceful.boundaries):
        for kind in (BEFORE_COMMIT, AFTER_COMMIT):
            fate = partial(one_death, boundary, kind)
            survivor = run(2 * boundary + kind, fate)
            assert survivor.result() == peaceful.result(), (boundary, kind)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_many_deaths_change_nothing(folder, seed):
    rng = np.random.default_rng(seed)
    fates = rng.choice([GO_ON, BEFORE_COMMIT, AFTER_COMMIT], 5000, p=[0.6, 0.2, 0.2])
    peaceful = Fleet(folder / "peaceful", 4, NAMES, lambda boundary: GO_ON).run()
    killed = Fleet(folder / "killed", 4, NAMES, lambda boundary: int(fates[boundary])).run()
    assert killed.boundaries > 1.3 * peaceful.boundaries
    assert killed.result() == peaceful.result()
