"""A fleet whose processes are killed all the time, and disks that lose power at every write.

Host, boards and mosquitto are real processes; seeded SIGKILLs hit several at once, also while they
start. An end is a fork of a process that has all imports done, so that it serves soon. The second
part is `bench.torn_disk`.
"""

import logging
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import edge.service
import host.service
from bench import promises, torn_disk
from bench.processes import CLIPS, CONFIG, MODEL
from bench.result import Figure, Result
from models.zoo import fsdd_path
from ternmesh.federated.state import CoordinatorState, NodeState
from ternmesh_cli.demo.fleet import BOARDS, HOST
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_cli.process import write_toml
from ternmesh_service.config_file import load_model_package
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from tests.mosquitto import Mosquitto

KILLS, KILLS_QUICK = 1000, 40
ROUNDS, ROUNDS_QUICK = 30, 8  # of one run; then all stores are checked, and the next run begins
NODES = 4
RUN: Mapping[str, Any] = {"local_steps": 1, "min_peers": 2, "deadline_s": 2.0, "announce_s": 1}
AT_ONCE = (1, 1, 2, 3, NODES + 2)  # ends that are killed at the same moment
PAUSES_S = (0.02, 0.1, 0.4, 1.5)  # about so long nobody is killed
DOWN_S = 0.5  # the longest time before a killed end is started again
PATIENCE_S = 180.0
POLL_S = 0.01
MEMORY = Path("/dev/shm")
# What no log may say, beside an end that ends by itself.
SAID = ("is damaged", "holds something that was never written", "Traceback", "should not happen")
NOTES = (
    f"real: host, {NODES} boards with keys and training, mosquitto, SIGKILL, SQLite files (in "
    "memory: no sync is waited for); an end is a fork with all imports done, a new process takes "
    "about a second more until it serves",
    "violations: an update with a receipt that its round does not count, chunks that a board "
    "settled otherwise than the host counted them, a global update that was taken back, boards "
    "that differ from the host at the end, logs of damage, ends that end by themselves, runs that "
    "do not end",
)


class End:
    """`ternmesh host` or `node` in `folder`, as a fork of this process; it may start again."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.pid = 0  # while it lives
        self.starts_s: list[float] = []  # from each start until it served
        self._started_at = 0.0
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # in place of systemd
        self._manager.bind(f"\0ternmesh-{os.getpid()}-{id(self)}")
        self._manager.setblocking(False)

    def start(self) -> None:
        """Start it in a process of its own."""
        self._started_at = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                code = self._live()
            finally:
                os._exit(code)

    def _live(self) -> int:
        log = os.open(self.folder / "log.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        logging.getLogger().handlers.clear()
        os.environ["NOTIFY_SOCKET"] = str(self._manager.getsockname().decode().replace("\0", "@"))
        command = "host" if self.name == HOST else "node"
        with promises.watched():
            return main([command, "--config", str(self.folder / CONFIG)])

    def poll(self) -> int | None:
        """Note when it serves. Its exit status, negative for a signal; None while it lives."""
        try:
            while message := self._manager.recv(4096):
                if message == b"READY=1":
                    self.starts_s.append(time.monotonic() - self._started_at)
        except BlockingIOError:
            pass  # there is no further message
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send it a signal, and wait for its end; its exit status."""
        os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Kill it if it lives."""
        if self.pid:
            self.end()
        self._manager.close()


class Fleet:
    """A host and boards with keys, each in a folder of its own; not started yet."""

    def __init__(self, folder: Path, url: str, nodes: int, run: Mapping[str, Any]) -> None:
        names = [f"board-{number}" for number in range(nodes)]
        self.rounds = int(run["rounds"])
        self.host = End(HOST, folder / HOST)
        self.nodes = {name: End(name, folder / name) for name in names}
        enrol_fleet("ternmesh", folder / HOST, {name: folder / name for name in names})
        own = {"state_dir": ".", "model": MODEL}
        link = {"url": url}
        _configure(self.host, {"": own, "link": link, "run": run})
        for number, (name, end) in enumerate(self.nodes.items()):
            where = {"where": {"speaker": BOARDS[number % len(BOARDS)]}}
            data = {"path": str(fsdd_path("train")), **CLIPS, **where}
            _configure(end, {"": {"name": name, **own}, "link": link, "data": data})

    @property
    def ends(self) -> list[End]:
        """Host and boards."""
        return [self.host, *self.nodes.values()]

    @property
    def version(self) -> int:
        """The newest version that the host has made."""
        return promises.version_of(self.host.folder)

    @property
    def folders(self) -> dict[str, Path]:
        """The folders of the boards, by name."""
        return {name: end.folder for name, end in self.nodes.items()}

    def finish(self) -> Counter[str]:
        """Wait until all have the last version, stop all, and return what is wrong."""
        faults: Counter[str] = Counter()
        give_up_at = time.monotonic() + PATIENCE_S
        last = f'"version": {self.rounds},'
        while time.monotonic() < give_up_at:
            faults["ended by itself"] = sum(end.poll() is not None for end in self.ends if end.pid)
            texts = [end.folder / promises.EVENTS for end in self.nodes.values()]
            if faults.total() or all(path.exists() and last in path.read_text() for path in texts):
                break
            time.sleep(10 * POLL_S)
        time.sleep(10 * POLL_S)  # for the commit that follows
        for end in self.ends:
            faults["ended with an error"] += end.end(signal.SIGTERM) != 0
        for end in self.ends:
            text = (end.folder / "log.txt").read_text(errors="replace")
            faults.update({f"log: {word}": text.count(word) for word in SAID if word in text})
        faults += promises.broken(self.host.folder, self.folders)
        return +faults + promises.differing(*self._stored(), self.rounds)

    def _stored(self) -> tuple[CoordinatorState, list[NodeState]]:
        package = load_model_package(MODEL)
        nodes = []
        for end in self.nodes.values():
            with _opened(end.folder) as state:
                nodes.append(NodeStore(state).load(package.model_hash(), package.dimension))
        with _opened(self.host.folder) as state:
            stored = HostStore(state).load(package.model_hash())
        assert stored is not None
        return stored.state, nodes


def _configure(end: End, tables: Mapping[str, Mapping[str, Any]]) -> None:
    (end.folder / CONFIG).write_text(write_toml(tables))


@contextmanager
def _opened(folder: Path) -> Iterator[StateFile]:
    state = StateFile(folder)
    state.open()
    try:
        yield state
    finally:
        state.close()


def measure(*, quick: bool) -> Result:
    """Both parts; the first prints a line for each run."""
    kills_wanted, rounds = (KILLS_QUICK, ROUNDS_QUICK) if quick else (KILLS, ROUNDS)
    found: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    starts_s: list[float] = []
    begun = time.monotonic()
    while found["kills"] < kills_wanted:
        counts, broken, starts = kill_fleet(found["runs"], rounds, kills_wanted - found["kills"])
        found += counts
        faults += broken
        starts_s += starts
        print(f"{time.monotonic() - begun:.0f} s: {dict(found)}, {dict(faults)}", flush=True)
    figures = {
        "kills": Figure(found["kills"], None if quick else ">=1000"),
        "violations": Figure(faults.total(), "<=0"),
        "runs": Figure(found["runs"]),
        "rounds": Figure(found["rounds"]),
        "acknowledged_updates": Figure(found["acknowledged"]),
        "start_s_mean": Figure(float(np.mean(starts_s))),
        "start_s_p99": Figure(float(np.percentile(starts_s, 99))),
    }
    disk = torn_disk.measure(quick=quick)
    details = {"kills": dict(found), "faults": dict(faults), **disk.details}
    all_notes = (*NOTES, *disk.notes)
    return Result("crash", figures | disk.figures, (), all_notes, details, quick)


def kill_fleet(
    seed: int, rounds: int, kills_max: int
) -> tuple[Counter[str], Counter[str], list[float]]:
    """One run of a fleet under kills: what happened, what broke, and the times of all starts."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        memory = MEMORY if MEMORY.is_dir() else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        broker = stack.enter_context(Mosquitto(folder))
        fleet = Fleet(folder, broker.url, NODES, {**RUN, "rounds": rounds})
        for end in fleet.ends:
            stack.callback(end.close)
        found, faults = _kill(fleet, broker, rng, kills_max)
        faults += fleet.finish()
        found.update(
            runs=1, rounds=fleet.version, acknowledged=promises.acknowledged(fleet.folders)
        )
        if faults.total():
            print(f"seed {seed}: {dict(faults)}", flush=True)
        return found, faults, [time_s for end in fleet.ends for time_s in end.starts_s]


def _kill(
    fleet: Fleet, broker: Mosquitto, rng: random.Random, kills_max: int
) -> tuple[Counter[str], Counter[str]]:
    """Kill and start ends until the run is over; returns with all of them started."""
    found: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    starts: dict[str, tuple[float, Callable[[], None]]] = {}  # when who starts again
    for end in fleet.ends:
        starts[end.name] = 0.0, end.start
    kill_at = time.monotonic() + 1.0
    while starts or (fleet.version < fleet.rounds and found["kills"] < kills_max):
        now = time.monotonic()
        for name, (start_at, start) in list(starts.items()):
            if start_at <= now:
                start()
                del starts[name]
        for end in fleet.ends:
            if end.pid and end.poll() is not None:
                faults[f"{end.name} ended by itself"] += 1
                end.pid = 0
                starts[end.name] = now, end.start
        if now >= kill_at and found["kills"] < kills_max and fleet.version < fleet.rounds:
            for victim in rng.sample([broker, *fleet.ends], rng.choice(AT_ONCE)):
                name = victim.name if isinstance(victim, End) else "broker"
                if name not in starts:
                    victim.end() if isinstance(victim, End) else victim.kill9()
                    found.update(("kills", f"kills of the {name.split('-')[0]}"))
                    starts[name] = now + rng.uniform(0, DOWN_S), victim.start
            kill_at = time.monotonic() + rng.expovariate(1 / rng.choice(PAUSES_S))
        time.sleep(POLL_S)
    return found, faults
