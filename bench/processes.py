"""A fleet of real processes on a broker: a host and three boards with keys."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from models.zoo import fsdd_path
from ternmesh_cli.demo.fleet import BOARDS, HOST
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python

FLEET, MODEL, CONFIG = "ternmesh", "keyword", "config.toml"
PATIENCE_S = 180.0
POLL_S = 0.05
# All boards are counted in every round, so that the result does not depend on their speed.
RUN: Mapping[str, Any] = {"min_peers": len(BOARDS), "deadline_s": 3600.0, "announce_s": 1}
# The shipped clips as they are: bytes of 0 to 255, all speakers in one file.
CLIPS: Mapping[str, Any] = {"arrays": {"features": "x", "target": "y"}, "divide_by": 255.0}

Table = Mapping[str, Any]
Status = Mapping[str, Any]


class ProcessFleet:
    """Host and boards with keys, each in a folder of its own below `folder`; not started yet.

    `run` is the host's [run] table, `tables` are further tables of the boards' configuration.
    """

    def __init__(
        self, folder: Path, url: str, run: Table, *, tables: Mapping[str, Table] | None = None
    ) -> None:
        self.folder = folder
        enrol_fleet(FLEET, folder / HOST, {name: folder / name for name in BOARDS})
        own = {"state_dir": ".", "model": MODEL}
        link = {"url": url}
        self.host = self._worker("host", HOST, {"": own, "link": link, "run": {**RUN, **run}})
        self.boards = {}
        for name in BOARDS:
            data = {**CLIPS, "where": {"speaker": name}}
            board = {
                "": {"name": name, **own},
                "link": link,
                "data": {"path": str(fsdd_path("train")), **data},
                "evaluate": {"path": str(fsdd_path("dev")), **data, "samples_max": 32},
            }
            self.boards[name] = self._worker("node", name, {**board, **(tables or {})})

    def _worker(self, command: str, name: str, tables: Mapping[str, Table]) -> Worker:
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG).write_text(write_toml(tables))
        config = ("--config", str(path / CONFIG))
        return Worker(name, path, python("ternmesh_cli.main", command, *config))

    @property
    def everyone(self) -> dict[str, Worker]:
        """Host and boards by name."""
        return {HOST: self.host, **self.boards}

    def wait_version(self, version: int, workers: Sequence[Worker] = ()) -> None:
        """Wait until the host (or all of `workers`) has this global adapter."""
        for worker in workers or (self.host,):
            wait(worker, lambda now: now["version"] >= version, f"version {version}")

    def hold_open(self, name: str, version: int = 1) -> Status:
        """Stop a board at that version; returns the host's status once all others have sent."""
        self.wait_version(version)
        send_signal(self.boards[name], signal.SIGSTOP)
        others = set(self.boards) - {name}
        found = wait(self.host, lambda now: others <= delivered(now), "all other updates")
        if found["phase"] != "open" or name in delivered(found):
            raise RuntimeError("the round is closed already: stop the board earlier")
        return found


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
    """Send a signal to a running process; RuntimeError with the end of its log otherwise."""
    if worker.process is None or worker.process.poll() is not None:
        raise RuntimeError(f"{worker.name} has ended: {worker.last_line()} ({worker.log})")
    worker.process.send_signal(number)


def kill9(worker: Worker) -> None:
    """End a process as a power cut does."""
    send_signal(worker, signal.SIGKILL)
    assert worker.process is not None
    worker.process.wait(PATIENCE_S)


def wait(worker: Worker, condition: Callable[[Status], object], what: str) -> Status:
    """The first status of a process that meets the condition; RuntimeError where none comes."""
    found: list[Status] = []

    def is_met() -> bool:
        now = worker.status()
        if now is None and worker.process is not None and worker.process.poll() is not None:
            raise RuntimeError(f"{worker.name} has ended: {worker.last_line()}")
        if now is not None and condition(now):
            found.append(now)
        return bool(found)

    until(is_met, f"{worker.name}: {what}")
    return found[0]


def status_of(worker: Worker) -> Status:
    """The status of a process, once it answers."""
    return wait(worker, lambda _: True, "a status")


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; RuntimeError where it takes too long."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(POLL_S)


def delivered(status: Status) -> set[str]:
    """The boards whose update the host has as a whole."""
    return {node["name"] for node in status["nodes"] if node["delivered"] == "whole"}
