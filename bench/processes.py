"""A fleet of real processes with keys for benchmarks: a host and boards on a broker."""

import hashlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from host.config import load_bundle
from models.zoo import fsdd_path
from ternmesh_cli.demo.fleet import BOARDS, HOST
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.toml import write_toml
from ternmesh_cli.workers import Worker, python
from ternmesh_store.host_store import HostStore

FLEET, MODEL, CONFIG = "ternmesh", "keyword", "config.toml"
PATIENCE_S = 180.0
LOOK_S = 0.05
# All boards are counted in every round, so that what a run learns does not hang on who was quick.
RUN: Mapping[str, Any] = {"min_peers": len(BOARDS), "deadline_s": 3600.0, "announce_s": 1}

Table = Mapping[str, Any]
Status = Mapping[str, Any]


class ProcessFleet:
    """Host and boards in folders of their own below `folder`; `link` is the `[link]` of a role.

    `members` are enrolled beside the boards and not started; `tables` are further ones of boards,
    `options` those of every command line.
    """

    def __init__(
        self,
        folder: Path,
        link: Callable[[str], Table],
        run: Table,
        *,
        members: Sequence[str] = (),
        tables: Mapping[str, Table] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.folder, self._link, self._tables = folder, link, dict(tables or {})
        everyone = (*BOARDS, *members)
        enrol_fleet(FLEET, folder / HOST, {name: folder / name for name in everyone})
        own = {"state_dir": ".", "bundle": MODEL}
        tables = {"": own, "link": link(HOST), "run": {**RUN, **run}}
        self.host = self._worker(HOST, HOST, tables, *options)
        self.boards = {name: self.board(name, name, None, *options) for name in BOARDS}

    def board(self, folder: str, name: str, link: Table | None = None, *options: str) -> Worker:
        """A board called `name` in the folder called `folder`, which has its keys; not started."""
        # The shipped clips as they are: bytes of 0 to 255, all speakers in one file.
        speaker = name if name in BOARDS else BOARDS[0]
        data = {"arrays": {"features": "x", "target": "y"}, "divide_by": 255.0}
        data |= {"where": {"speaker": speaker}}
        tables = {
            "": {"name": name, "state_dir": ".", "bundle": MODEL},
            "link": link or self._link(name),
            "data": {"path": str(fsdd_path("train")), **data},
            "evaluate": {"path": str(fsdd_path("dev")), **data, "samples_max": 32},
            **self._tables,
        }
        return self._worker("node", folder, tables, *options)

    def _worker(self, command: str, folder: str, tables: Table, *options: str) -> Worker:
        path = self.folder / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG).write_text(write_toml(tables))
        arguments = python("ternmesh_cli.main", command, "--config", str(path / CONFIG), *options)
        return Worker(folder, path, arguments)

    @property
    def everyone(self) -> dict[str, Worker]:
        """Host and boards by name."""
        return {HOST: self.host, **self.boards}

    def wait_version(self, version: int, workers: Sequence[Worker] = ()) -> None:
        """Until the host (or all of `workers`) has this reference."""
        for worker in workers or (self.host,):
            wait(worker, lambda now: now["version"] >= version, f"reference {version}")

    def hold_open(self, name: str, version: int = 1) -> Status:
        """Stop a board at that reference; what the host says once it has all other packets."""
        self.wait_version(version)
        send_signal(self.boards[name], signal.SIGSTOP)
        others = set(self.boards) - {name}
        found = wait(self.host, lambda now: others <= delivered(now), "all other packets")
        if found["phase"] != "open" or name in delivered(found):
            raise RuntimeError("the round would not stay open: stop the board earlier")
        return found

    def adapter_hash(self) -> str:
        """SHA-256 of what the ended host's file holds: all that the fleet has learned."""
        store = HostStore(self.folder / HOST / "host.sqlite")
        store.open()
        try:
            stored = store.load(load_bundle(MODEL).model_hash())
        finally:
            store.close()
        assert stored is not None
        return hashlib.sha256(stored.state.fixed.tobytes()).hexdigest()


@contextmanager
def started(fleet: ProcessFleet) -> Iterator[ProcessFleet]:
    """The fleet while it runs."""
    with ExitStack() as stack:
        for worker in fleet.everyone.values():
            stack.callback(end, worker)
            worker.start()
        yield fleet


def end(worker: Worker) -> None:
    """End a process, also one that is stopped."""
    if worker.process is not None and worker.process.poll() is None:
        worker.process.send_signal(signal.SIGCONT)
        worker.stop()


def send_signal(worker: Worker, number: int) -> None:
    """Send a signal to a process that runs; RuntimeError with the end of its log otherwise."""
    if worker.process is None or worker.process.poll() is not None:
        raise RuntimeError(f"{worker.name} has ended: {worker.last_line()} ({worker.log})")
    worker.process.send_signal(number)


def kill9(worker: Worker) -> None:
    """End a process as a power cut does."""
    send_signal(worker, signal.SIGKILL)
    assert worker.process is not None
    worker.process.wait(PATIENCE_S)


def wait(
    worker: Worker, condition: Callable[[Status], object], what: str, *, timeout_s: float = 0.0
) -> Status:
    """The first status of a process that is so; RuntimeError where it ends or takes too long."""
    found: list[Status] = []

    def is_so() -> bool:
        now = worker.status()
        if now is None and worker.process is not None and worker.process.poll() is not None:
            raise RuntimeError(f"{worker.name} has ended: {worker.last_line()}")
        if now is not None and condition(now):
            found.append(now)
        return bool(found)

    until(is_so, f"{worker.name}: {what}", timeout_s or PATIENCE_S)
    return found[0]


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition; RuntimeError where it takes too long."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"not so within {timeout_s:.0f} s: {what}")
        time.sleep(LOOK_S)


def delivered(status: Status) -> set[str]:
    """Whose packets the host has."""
    return {node["name"] for node in status["nodes"] if node["delivered"] == "whole"}


def shown_status(worker: Worker) -> Status:
    """What `ternmesh status --json` prints."""
    command = python(
        "ternmesh_cli.main", "status", "--json", "--config", str(worker.folder / CONFIG)
    )
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    content: Status = json.loads(answer.stdout)
    return content
