"""kill -9 at every event of a transfer over a lossy link; then another process completes it.

Two ends send each other objects. Clock and channel are simulated; files, processes and kills are
real. One process runs both ends, and logs at once what happens.
"""

import os
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from math import inf
from pathlib import Path

import numpy as np

from bench.result import Figure, Result
from ternmesh.link.link import Link
from ternmesh.link.settings import LinkSettings
from ternmesh.wire.frame import open_seal
from ternmesh_store.link_store import LinkStore
from ternmesh_store.state_file import StateFile

ENDS = ("host", "node")
LOSS, FRAME_S = 0.2, 0.1
RESTART_S, TIME_MAX_S = 1.0, 86_400.0
QUICK_STEP = 50  # every so many points
MEMORY = Path("/dev/shm")
SETTINGS = LinkSettings(mtu=51, idle_s=2.0, spread_s=5.0, give_up_s=inf)
Log = list[list[str]]  # lines of kind, end, time and counter
SCRIPT = (  # objects: time in seconds, sender, bytes, priority
    (0, 0, 4420, 2),  # two generations
    (0, 0, 600, 1),
    (0, 1, 1700, 1),
    (0, 1, 900, 0),
    *((100, 0, 20 + 60 * n, n % 3) for n in range(10)),  # more than are under way
    *((200, 1, 35 + 50 * n, 2 - n % 3) for n in range(10)),
    (1000, 1, 33, 0),
    (2000, 0, 1, 0),
)


def payload_of(end: int, size: int) -> bytes:
    """The bytes of an object; no two objects are equal."""
    return np.random.default_rng([size, end]).bytes(size)


class Life:
    """Both ends in one process from `now` on, until all is delivered or SIGKILL.

    `kill` is the number of the line of the log at which the process is killed; 0 for never.
    """

    def __init__(self, folder: Path, now: float, kill: int) -> None:
        self.now = now
        self.rng = np.random.default_rng(round(now))
        self._log = os.open(folder / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._kill = kill
        self._lines = 0
        self._ends = [_End(self, folder, number) for number in range(len(ENDS))]

    def log(self, kind: str, end: int, counter: int = -1) -> None:
        """Write that an `event` is taken, a `commit` is done or a frame is `sent`."""
        os.write(self._log, f"{kind} {end} {self.now} {counter}\n".encode())
        self._lines += 1
        if self._lines == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        """Return when both ends have delivered everything."""
        while not all([end.settle() for end in self._ends]):
            if not any([end.transmit(self._ends[1 - end.number].link) for end in self._ends]):
                self.now = max(self.now, min(time for end in self._ends for time in end.times()))
            assert self.now < TIME_MAX_S, "the transfer does not end"


class _End:
    """A link, its file, and the part of the script that it has not sent."""

    def __init__(self, life: Life, folder: Path, number: int) -> None:
        self.number = number
        self._life = life
        self._file = StateFile(folder / ENDS[number])
        self._file.open()
        self._store = LinkStore(self._file)
        state = self._store.load()
        self._script = [item for item in SCRIPT if item[1] == number][state.number :]
        self.link = Link(SETTINGS, state, life.rng)
        self.link.start(life.now)

    def times(self) -> list[float]:
        """When there is something to do; empty where all is delivered."""
        timeout = self.link.next_timeout()
        timeouts = [] if timeout is None else [timeout]
        return [float(item[0]) for item in self._script[:1]] + timeouts

    def settle(self) -> bool:
        """Record all events that are due with one commit; whether everything is delivered."""
        life = self._life
        self.link.handle_timeout(life.now)
        while self._script and self._script[0][0] <= life.now:
            _, end, size, priority = self._script.pop(0)
            self.link.send(ENDS[1 - end], payload_of(end, size), priority=priority)
        events = 0
        while (event := self.link.next_event()) is not None:
            events += 1
            life.log("event", self.number)
            self._store.record(event)
        self._store.commit()
        if events:
            life.log("commit", self.number)
        return not (self.times() or self.link.has_frames)

    def transmit(self, peer: Link) -> bool:
        """Send the next frame; whether there was one."""
        life = self._life
        for _, frame in self.link.frames_to_send(life.now, 1):
            life.log("sent", self.number, open_seal(frame)[0].counter)
            life.now += FRAME_S
            if life.rng.random() >= LOSS:
                peer.receive_frame(ENDS[self.number], frame, life.now)
            return True
        return False


def measure(*, quick: bool) -> Result:
    """Kill at all points, or at some; a broken promise is printed when it is found."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        folder = Path(place, "files")
        whole = transfer(folder, 0)
        faults = check(folder, whole)
        assert not faults, f"the transfer fails without a kill: {dict(faults)}"
        points = [n for n, (kind, *_) in enumerate(whole, 1) if kind in ("event", "commit")]
        kills = points[:: QUICK_STEP if quick else 1]
        for kill in kills:
            found = check(folder, transfer(folder, kill))
            faults += found
            if found:
                print(f"line {kill}: {dict(found)}", flush=True)
    figures = {
        "points": Figure(len(kills), None if quick else ">=500"),
        "violations": Figure(faults.total(), "<=0"),
    }
    notes = (
        f"{len(SCRIPT)} objects of {sum(item[2] for item in SCRIPT):,} bytes both ways; "
        f"{LOSS:.0%} of all frames are lost",
        "violations: objects that are missing, doubled or damaged, frame counters that are used "
        "twice, state that stays on disk, and transfers that do not end",
    )
    return Result("link_kill", figures, notes=notes, details={"faults": faults}, quick=quick)


def transfer(folder: Path, kill: int) -> Log:
    """The log of a transfer in `folder`, which is made anew, with a kill at that line, or 0."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    status = _live(folder, 0.0, kill)
    if kill:
        assert os.WIFSIGNALED(status), f"line {kill} killed nothing"
        status = _live(folder, float(_log(folder)[-1][2]) + RESTART_S, 0)
    return [*_log(folder), ["ended", str(status), "", ""]]


def _log(folder: Path) -> Log:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def _live(folder: Path, now: float, kill: int) -> int:
    """The exit status of a process that runs a life; 0 where it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            Life(folder, now, kill).run()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1]


def check(folder: Path, log: Log) -> Counter[str]:
    """The broken promises, by the files and the log."""
    counters = [(end, counter) for kind, end, _, counter in log if kind == "sent"]
    faults = Counter({"frame counter twice": len(counters) - len(set(counters))})
    faults["does not end"] += log[-1][:2] != ["ended", "0"]
    for end, name in enumerate(ENDS):
        file = StateFile(folder / name)
        file.open()
        store = LinkStore(file)
        received = Counter((peer, payload) for _, peer, payload in store.inbox())
        state = store.load()
        file.close()
        wanted = Counter(
            (ENDS[sender], payload_of(sender, size))
            for _, sender, size, _ in SCRIPT
            if sender != end
        )
        faults["object missing"] += (wanted - received).total()
        faults["object twice or damaged"] += (received - wanted).total()
        faults["not forgotten"] += len(state.outgoing) + len(state.incoming)
    return +faults
