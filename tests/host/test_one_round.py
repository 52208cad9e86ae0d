"""One keyed round over the loopback, counted: what each side decodes, hashes and commits.

`python -m tests.host.test_one_round` prints the functions and calls of such a round.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np

from bench.loopback import LoopbackHub
from host.runs import continue_or_begin
from host.service import HostService
from ternmesh.codec.encoder import decode_slice
from ternmesh.federated.events import WorkReady
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings
from ternmesh.plan import make_plan
from ternmesh.wire.global_update import hash_adapter, hash_global_update
from ternmesh.wire.update import update_hash
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_store.database import Database
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.driver import Driver

OURS = str(Path(__file__).parents[2])
MODEL = bytes(range(32))
PACKAGE: Any = SimpleNamespace(model_hash=lambda: MODEL, adapter_key=lambda: bytes(96))
PLAN = make_plan(10_000, rounds=9, local_steps=1, learning_rate=0.1)  # 5 chunks each way


class Fleet:
    """A host and a board, both on disk; the board trains while it handles its events."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        enrol_fleet("garden", folder / "host", {"ada": folder / "ada"})
        self.files = {name: StateFile(folder / name) for name in ("host", "ada")}
        self.rings = {name: Keyring(file, SecurityConfig()) for name, file in self.files.items()}
        for name, ring in self.rings.items():
            self.files[name].open()
            stack.callback(self.files[name].close)
            ring.open()
        self.now = 0.0
        hub, store = LoopbackHub(), HostStore(self.files["host"])
        self.host = HostService(
            continue_or_begin(store, PLAN, PACKAGE),
            HostSettings(),
            MODEL,
            store,
            hub.host(),
            lambda: self.now,
            self.rings["host"],
        )
        self.store = NodeStore(self.files["ada"])
        self.node = NodeProtocol(
            NodeSettings("ada", MODEL, b"instance"),
            self.store.load(MODEL, PLAN.dimension),
            samples=100,
            rng=np.random.default_rng(0),
            security=self.rings["ada"].security("ada", MODEL, 0),
        )
        self.driver: Driver[Any] = Driver(self.node, hub.node("ada"), lambda: self.now)
        for end in (self.host.driver, self.driver):
            end.transport.open()
        self.host.start()
        self.node.start(0.0)

    def record(self, event: object) -> None:
        self.store.record(event)  # type: ignore[arg-type]
        self.rings["ada"].record(event)
        if isinstance(event, WorkReady):
            self.node.submit(event.round, np.full(PLAN.dimension, 0.01, np.float32), self.now)

    def turn(self) -> None:
        self.driver.poll(0.0, self.record, self.store.commit)
        self.host.poll(0.0)


@contextmanager
def profiled(note: Callable[[CodeType, FrameType], None]) -> Iterator[None]:
    """Tell of each call of a function of this repository."""

    def called(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(OURS) and "site-packages" not in name:
            note(frame.f_code, frame)

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def counted_round(folder: Path) -> tuple[Counter[CodeType], Counter[str]]:
    """The calls of a round by function, and the commits by side, once all have met."""
    calls, commits = Counter[CodeType](), Counter[str]()
    with ExitStack() as stack:
        fleet = Fleet(folder, stack)
        while fleet.host.protocol.version < 2:
            fleet.now += 1.0
            fleet.turn()

        def note(code: CodeType, frame: FrameType) -> None:
            calls[code] += 1
            if code is Database.commit.__code__ and frame.f_locals["self"].changed:
                commits[frame.f_locals["self"].folder.name] += 1

        with profiled(note):
            fleet.turn()
        assert (fleet.host.protocol.version, fleet.node.version) == (3, 2)
    return calls, commits


def test_a_round_decodes_hashes_and_commits_once(tmp_path: Path) -> None:
    calls, commits = counted_round(tmp_path)
    chunks = PLAN.up.count + PLAN.down.count
    assert chunks == 10
    assert calls[decode_slice.__code__] == chunks, "each end decodes what the other one coded"
    assert commits == {"host": 1, "ada": 1}
    for name in (update_hash, hash_global_update, hash_adapter):
        assert calls[name.__code__] == 2, f"{name.__name__}: once on each side"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found, _ = counted_round(Path(folder))
    files = {code.co_filename for code in found}
    sys.stdout.write(f"{len(found)} functions in {len(files)} files, {found.total()} calls\n")
