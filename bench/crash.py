"""A fleet whose processes are killed all the time: no promise breaks.

Host, boards and mosquitto are real processes; seeded SIGKILLs hit several at once, also while they
start. An end is a fork of a process with all imports done, so that it serves soon.
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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import edge.service
import host.service
from bench import promises
from bench.processes import CLIPS, CONFIG, MODEL
from bench.result import Figure, Result
from models.zoo import fsdd_path
from ternmesh_cli.demo.fleet import BOARDS, HOST
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_cli.process import write_toml
from ternmesh_service.config_file import load_model_package
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from tests.mosquitto import Mosquitto

IMPORTED = (edge.service, host.service)  # before the forks
KILLS, KILLS_QUICK = 1000, 40
ROUNDS, ROUNDS_QUICK = 30, 8  # of one run; then all stores are checked, and the next run begins
NODES = 4
RUN: Mapping[str, Any] = {"local_steps": 1, "min_peers": 2, "deadline_s": 2.0, "announce_s": 1}
AT_ONCE = (1, 1, 2, 3, NODES + 2)  # ends that are killed at the same moment
PAUSES_S = (0.02, 0.1, 0.4, 1.5)  # about so long nobody is killed
DOWN_S = 0.5  # the longest time before a killed end is started again
ENDED_MAX = 20  # ends that may end by themselves before a run is given up
PATIENCE_S, POLL_S = 180.0, 0.01
MEMORY = Path("/dev/shm")
# What no log may say
SAID = ("is damaged", "Traceback", "should not happen")
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

    def __init__(
        self,
        name: str,
        folder: Path,
        tables: Mapping[str, Mapping[str, Any]],
        changed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        (folder / CONFIG).write_text(write_toml(tables))
        self.name, self.folder = name, folder
        self._changed = changed  # what makes it another program: a liar
        self.pid = 0  # while it lives
        self.starts_s: list[float] = []  # from each start until it served
        self._started_at = 0.0
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # in place of systemd
        self._address = f"ternmesh-{os.getpid()}-{id(self)}"
        self._manager.bind(f"\0{self._address}")
        self._manager.setblocking(False)

    @property
    def log(self) -> Path:
        """The file that collects its output."""
        return self.folder / "log.txt"

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
        log = os.open(self.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.dup2(log, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)  # where a test has put another one in its place
        logging.getLogger().handlers.clear()
        os.environ["NOTIFY_SOCKET"] = f"@{self._address}"
        command = "host" if self.name == HOST else "node"
        with promises.watched(), self._changed():
            return main([command, "--config", str(self.folder / CONFIG)])

    def poll(self) -> int | None:
        """Note when it serves. Its exit status, negative for a signal; None while it lives."""
        try:
            while message := self._manager.recv(4096):
                if message == b"READY=1":
                    self.starts_s.append(time.monotonic() - self._started_at)
        except BlockingIOError:
            pass  # there is no further message
        pid, status = os.waitpid(self.pid, os.WNOHANG) if self.pid else (0, 0)
        self.pid = 0 if pid else self.pid
        return os.waitstatus_to_exitcode(status) if pid else None

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send it a signal, and wait for its end; its exit status."""
        assert self.pid, f"{self.name} does not run"  # 0 would be all of us
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
        self.folders = {name: folder / name for name in names}  # of the boards
        enrol_fleet("ternmesh", folder / HOST, self.folders)
        own = {"state_dir": ".", "model": MODEL}
        common = {"link": {"url": url}}
        self.host = End(HOST, folder / HOST, {"": own, **common, "run": run})
        self.nodes = {}
        for number, name in enumerate(names):
            where = {"where": {"speaker": BOARDS[number % len(BOARDS)]}}
            data = {"path": str(fsdd_path("train")), **CLIPS, **where}
            tables = {"": {"name": name, **own}, **common, "data": data}
            self.nodes[name] = End(name, folder / name, tables)

    @property
    def ends(self) -> list[End]:
        """Host and boards."""
        return [self.host, *self.nodes.values()]

    @property
    def version(self) -> int:
        """The newest version that the host has made."""
        return promises.version_of(self.host.folder)

    def finish(self) -> Counter[str]:
        """Wait until all have the last version, and stop all; what broke."""
        faults, give_up_at = Counter[str](), time.monotonic() + PATIENCE_S
        last = f'"version": {self.rounds},'
        events = [folder / promises.EVENTS for folder in self.folders.values()]
        while time.monotonic() < give_up_at:
            if all(path.exists() and last in path.read_text() for path in events):
                break
            faults["ended by itself"] += sum(end.poll() is not None for end in self.ends)
            if faults.total():
                break
            time.sleep(10 * POLL_S)
        time.sleep(10 * POLL_S)  # for the commit that follows
        faults += self.stop()
        model = load_model_package(MODEL)
        nodes = []
        for folder in self.folders.values():
            with opened(folder) as state:
                nodes.append(NodeStore(state).load(model.model_hash(), model.dimension))
        with opened(self.host.folder) as state:
            stored = HostStore(state).load(model.model_hash())
        assert stored is not None
        return faults + promises.differing(stored.state, nodes, self.rounds)

    def stop(self) -> Counter[str]:
        """Stop all with SIGTERM; what broke so far, by events and logs."""
        faults: Counter[str] = Counter()
        for end in self.ends:
            faults["ended by itself"] += end.poll() is not None
            faults["ended with an error"] += end.pid > 0 and end.end(signal.SIGTERM) != 0
            text = end.log.read_text(errors="replace")
            faults.update({f"log: {words}": text.count(words) for words in SAID})
        return faults + promises.broken([self.host.folder], self.folders)


@contextmanager
def opened(folder: Path) -> Iterator[StateFile]:
    """The state of an end that does not run."""
    state = StateFile(folder)
    state.open()
    try:
        yield state
    finally:
        state.close()


def measure(*, quick: bool) -> Result:
    """Runs of a fleet until so many processes were killed; prints a line for each."""
    kills, rounds = (KILLS_QUICK, ROUNDS_QUICK) if quick else (KILLS, ROUNDS)
    found, faults = Counter[str](), Counter[str]()
    starts_s: list[float] = []
    begun = time.monotonic()
    while found["kills"] < kills:
        counts, broken = kill_fleet(found["runs"], rounds, kills - found["kills"], starts_s)
        found += counts
        faults += broken
        print(f"{time.monotonic() - begun:.0f} s: {dict(found)}, {dict(faults)}", flush=True)
    figures = {
        "kills": Figure(found["kills"], None if quick else ">=1000"),
        "violations": Figure(faults.total(), "<=0"),
        "acknowledged_updates": Figure(found["acknowledged"]),
        "rounds": Figure(found["rounds"]),
        "start_s_mean": Figure(float(np.mean(starts_s))),
        "start_s_p99": Figure(float(np.percentile(starts_s, 99))),
    }
    details = {"kills": dict(found), "faults": dict(faults)}
    return Result("crash", figures, {}, NOTES, details, quick)


def kill_fleet(
    seed: int, rounds: int, kills_max: int, starts_s: list[float]
) -> tuple[Counter[str], Counter[str]]:
    """One run of a fleet under kills: what happened, and what broke. Times go to `starts_s`."""
    with ExitStack() as stack:
        memory = MEMORY if MEMORY.is_dir() else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        broker = stack.enter_context(Mosquitto(folder))
        fleet = Fleet(folder, broker.url, NODES, {**RUN, "rounds": rounds})
        for end in fleet.ends:
            stack.callback(end.close)
        found, faults = _kill(fleet, broker, random.Random(seed), kills_max)
        faults += fleet.finish()
        acknowledged = promises.acknowledged(fleet.folders)
        found.update(runs=1, rounds=fleet.version, acknowledged=acknowledged)
        starts_s += [time_s for end in fleet.ends for time_s in end.starts_s]
        return found, faults


def _kill(
    fleet: Fleet, broker: Mosquitto, rng: random.Random, kills_max: int
) -> tuple[Counter[str], Counter[str]]:
    """Kill and start ends until the run is over; returns with all of them started."""
    found, faults = Counter[str](), Counter[str]()
    starts: dict[str, tuple[float, Callable[[], None]]] = {  # when who starts again
        end.name: (0.0, end.start) for end in fleet.ends
    }
    kill_at = 0.0
    while starts or (fleet.version < fleet.rounds and found["kills"] < kills_max):
        now = time.monotonic()
        for name, (start_at, start) in list(starts.items()):
            if start_at <= now:
                start()
                del starts[name]
        for end in fleet.ends:
            if end.poll() is not None:
                faults["ended by itself"] += 1
                if faults.total() > ENDED_MAX:
                    return found, faults
                starts[end.name] = now, end.start
        if now >= kill_at and found["kills"] < kills_max and fleet.version < fleet.rounds:
            ends: list[End | Mosquitto] = [broker, *fleet.ends]
            for victim in rng.sample(ends, rng.choice(AT_ONCE)):
                name = victim.name if isinstance(victim, End) else "broker"
                if name not in starts:
                    victim.end() if isinstance(victim, End) else victim.kill9()
                    found.update(("kills", f"kills of a {name.split('-')[0]}"))
                    starts[name] = now + rng.uniform(0, DOWN_S), victim.start
            kill_at = time.monotonic() + rng.expovariate(1 / rng.choice(PAUSES_S))
        time.sleep(POLL_S)
    return found, faults
