"""Real stores beside the disks of the simulation: both hold the same after each commit and crash.

The simulation shows that a fleet with such disks loses nothing and counts nothing twice.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ternmesh.federated.state import HostState
from ternmesh.link.events import LinkState
from ternmesh.plan import Plan
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from tests.sim import simdisks, simfleet, simlink, simprocess
from tests.sim.simledger import MODEL
from tests.sim.simprocess import DIMENSION


class Stored:
    """Mixed into a disk of the simulation: a store in a real file, to which the same happens."""

    new_file: Callable[[], StateFile]
    make_store: Callable[[StateFile], Any]
    file: StateFile
    store: Any

    def open_store(self, file: StateFile) -> None:
        """What was not committed is gone."""
        self.file = file
        self.file.close()
        self.file.open()
        self.store = type(self).make_store(self.file)

    def record(self, event: Any) -> None:
        super().record(event)  # type: ignore[misc]
        self.store.record(event)

    def commit(self) -> Any:
        made = super().commit()  # type: ignore[misc]
        if self.store.changed:
            self.store.commit()
            self.compare()
        return made

    def forget(self) -> None:
        super().forget()  # type: ignore[misc]
        self.open_store(self.file)
        self.compare()

    def compare(self) -> None:
        stored, held = self.stored(), self.held()
        assert [name for name in held if plain(stored[name]) != plain(held[name])] == []

    def stored(self) -> dict[str, Any]:
        raise NotImplementedError

    def held(self) -> dict[str, Any]:
        raise NotImplementedError


class StoredNode(Stored, simdisks.NodeDisk):
    make_store = NodeStore

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self.open_store(type(self).new_file())
        self.stored()

    def stored(self) -> dict[str, Any]:
        return by_name(self.store.load(MODEL, DIMENSION)) | {"settings": self.store.settings()}

    def held(self) -> dict[str, Any]:
        state, settings = by_name(self.committed), (self.settings.number, self.settings.settings)
        if (pending := self.committed.pending) is not None:
            state["pending"] = replace(pending, carried=None)  # which is needed in memory only
        return state | {"settings": settings}


class StoredHost(Stored, simdisks.HostDisk):
    files: dict[int, tuple[Plan, StateFile]]  # of a fleet, whose runs all have one plan

    @staticmethod
    def make_store(file: StateFile) -> HostStore:
        return HostStore(file, chain_max=8)

    def __init__(self, run: bytes, plan: Plan, counter: int = 0) -> None:
        super().__init__(run, plan, counter)
        if id(plan) not in self.files:
            self.files[id(plan)] = plan, type(self).new_file()
        self.open_store(self.files[id(plan)][1])
        self._learned = self.store.learned()
        self.store.begin(run, plan, MODEL)

    def carry(self, before: HostState) -> None:
        super().carry(before)
        self.store.begin(self.run, self.plan, MODEL, carried=self._learned)

    def stored(self) -> dict[str, Any]:
        run, boards = self.store.load(MODEL), self.store.boards(0.0)
        reported = {name: replace(board, reported_at=0.0) for name, board in boards.items()}
        return by_name(run.state) | {"run": run.run, "boards": reported}

    def held(self) -> dict[str, Any]:
        nodes = sorted(self.committed.nodes, key=lambda node: node.address)
        own = {"run": self.run, "boards": self.load_boards(0.0)}
        return by_name(self.committed) | own | {"nodes": nodes}


class StoredLink(Stored, simlink.Disk):
    make_store = LinkStore

    def __init__(self, committed: LinkState, working: LinkState) -> None:
        super().__init__(committed, working)
        self.open_store(type(self).new_file())
        self.file.insert("link_number", self.committed.number)

    def crash(self) -> None:
        super().crash()
        self.open_store(self.file)
        self.compare()

    def stored(self) -> dict[str, Any]:
        inbox = [(peer, payload) for _, peer, payload in self.store.inbox()]
        return by_name(self.store.load()) | {"inbox": inbox}

    def held(self) -> dict[str, Any]:
        incoming = [
            replace(record, symbols=tuple(sorted(record.symbols)))
            for record in sorted(self.committed.incoming, key=lambda r: (r.peer, r.offer.slot))
        ]
        return by_name(self.committed) | {"incoming": incoming, "inbox": self.inbox}


def by_name(state: Any) -> dict[str, Any]:
    return {item.name: getattr(state, item.name) for item in fields(state)}


def plain(value: Any) -> Any:
    """A value that == compares: arrays by type and bytes."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tobytes()
    if is_dataclass(value):
        return plain(by_name(value))
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.fixture(autouse=True)
def _real_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files of the stores, in memory where there is one: these tests commit thousands of times."""
    memory, numbers, files = Path("/dev/shm"), itertools.count(), list[StateFile]()
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:

        def new_file() -> StateFile:
            files.append(StateFile(Path(folder, f"{next(numbers)}")))
            return files[-1]

        monkeypatch.setattr(Stored, "new_file", staticmethod(new_file), raising=False)
        monkeypatch.setattr(StoredHost, "files", {}, raising=False)
        monkeypatch.setattr(simprocess, "NodeDisk", StoredNode)
        monkeypatch.setattr(simprocess, "HostDisk", StoredHost)
        monkeypatch.setattr(simlink, "Disk", StoredLink)
        yield
        for file in files:
            file.close()


SEEDS = {  # in which all happens to a store that the simulation has happen
    simfleet.draw_with_late_updates: (7,),
    simfleet.draw_with_settings: (2,),
    simfleet.draw_with_carried_runs: (3, 4),
    simfleet.draw: (1, 8),
}


@pytest.mark.parametrize(
    ("draw", "seed"), [(draw, seed) for draw, seeds in SEEDS.items() for seed in seeds]
)
def test_the_stores_of_a_fleet(draw: Callable[[int], simfleet.Options], seed: int) -> None:
    simfleet.run_seed(seed, draw)


def test_the_stores_of_links() -> None:
    for seed in range(6):
        simlink.run_seed(seed)
