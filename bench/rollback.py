"""What a bad model release costs a fleet: nothing. Every node is back by itself and learns on.

Twenty bad releases go one after the other to three node processes, on a real mosquitto and with
keys; in some trials a process is killed. Whatever `ternmesh release install` refuses is put into
the folder behind its back, as somebody with the right to write there could.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.mosquitto import mosquitto_in
from bench.processes import CONFIG, ProcessFleet, Status, kill9, started, until, wait
from bench.result import Figure, Result
from bench.rollback_releases import CHILD, KINDS, NOBODY, NODE_ALWAYS, NODE_ONCE, Maker
from ternmesh.rollout import ATTEMPTS_MAX
from ternmesh.trust.identity import Role
from ternmesh_cli.demo.fleet import HOST
from ternmesh_cli.keys import keyring_at
from ternmesh_cli.workers import Worker, python

SEED, GOOD = 0, 1
QUICK = ("a bit flipped in forward.onnx", "signed by a stranger", "loss out of bounds")
RUN: Mapping[str, object] = {"rounds": 100_000, "local_steps": 2}
TABLES: Mapping[str, Mapping[str, object]] = {
    "releases": {"dir": "releases", "memory_mib": 256, "cpu_s": 5},
}
SAYS = "ternmesh: "
TRIAL = b"edge.model_trial"
DEATHS = {NOBODY: 0, CHILD: 1, NODE_ONCE: 1, NODE_ALWAYS: ATTEMPTS_MAX}  # on each node


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one release: each node's reason, and what the installer said."""

    reasons: Mapping[str, str]
    refused_by_installer: str  # empty where it was taken
    seconds: float
    deaths: int
    is_good: bool  # every node is back, for that reason, and goes on with the run


def measure(*, quick: bool) -> Result:
    """All kinds in a seeded order, then a good release, which must still be taken."""
    rng = np.random.default_rng(SEED)
    names = list(QUICK if quick else rng.permutation(list(KINDS)))
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as place, mosquitto_in(Path(place)) as broker:
        link = {"url": broker.url}
        fleet = ProcessFleet(Path(place), lambda _role: link, RUN, tables=TABLES)
        with keyring_at(Path(place) / HOST, HOST, Role.HOST) as ring:
            own, digest = ring.own, ring.roster.fleet
        made = Path(place) / "made"
        made.mkdir()
        maker = Maker(made, own, digest, rng)
        with started(fleet):
            _release(fleet, maker.good(GOOD), GOOD)
            for version, name in enumerate(names, GOOD + 1):
                outcomes[name] = _try(fleet, maker, version, name)
                _tell(name, outcomes[name], place)
            last = GOOD + 1 + len(names)
            _release(fleet, maker.good(last), last)
    return _result(outcomes, place, quick=quick)


def _release(fleet: ProcessFleet, release: Path, version: int) -> None:
    """Give a good release to all nodes, and wait until each has found it good."""
    for board in fleet.boards.values():
        wait(board, lambda now: now["joined"], "joined")
        if sentence := _install(board, release):
            raise RuntimeError(f"a good release is refused: {sentence}")
    for board in fleet.boards.values():
        wait(board, lambda now: now["releases"]["last_good"] == version, "a good release")


def _try(fleet: ProcessFleet, maker: Maker, version: int, name: str) -> Outcome:
    """Give a bad release to all nodes; back when each has left it and gone on with the run."""
    bad, begun = KINDS[name], time.monotonic()
    before = wait(fleet.host, lambda _: True, "an answer")
    release = bad.make(maker, version)
    said = [_give(board, release, version, bad.dies) for board in fleet.boards.values()]
    standing = {n: _rolled_back(board, version) for n, board in fleet.boards.items()}
    settled = wait(fleet.host, lambda _: True, "an answer")["version"]
    # The next round may be closed by what was sent before; the one after it is not.
    after = wait(fleet.host, lambda now: now["version"] >= settled + 2, "two more rounds")
    counted = [set(item["counted"]) == set(fleet.boards) for item in after["history"][-2:]]
    is_same = after["run"] == before["run"] and all(counted)
    reasons = {n: reason for n, (_, reason) in standing.items()}
    is_good = is_same and all(
        current == GOOD and bad.words in reason for current, reason in standing.values()
    )
    deaths = DEATHS[bad.dies] * len(fleet.boards)
    return Outcome(reasons, said[0], time.monotonic() - begun, deaths, is_good)


def _give(board: Worker, release: Path, version: int, dies: str) -> str:
    """Install a release on a board, behind its installer's back where that refuses; its words."""
    said = _install(board, release)
    if said:
        folder = board.folder / "releases"
        shutil.copytree(release, folder / "smuggled")
        (folder / "smuggled").rename(folder / str(version))
    for _ in range(DEATHS[dies]):
        child = _wait_for_trial(board)
        if dies == CHILD:
            os.kill(child, signal.SIGSEGV)
        else:
            kill9(board)
            board.start()  # as systemd does
    return said


def _install(board: Worker, release: Path) -> str:
    """`ternmesh release install`: empty where it was taken, else why not."""
    config = str(board.folder / CONFIG)
    command = python("ternmesh_cli.main", "release", "install", str(release), "--config", config)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    sentence = done.stderr.strip().splitlines()[-1]
    if not sentence.startswith(SAYS):
        raise RuntimeError(f"the installer failed: {done.stderr}")
    return sentence.removeprefix(SAYS)


def _wait_for_trial(board: Worker) -> int:
    """The process in which a board tries a release, once there is one."""
    found: list[int] = []

    def is_there() -> bool:
        found.extend(_trials(board))
        return bool(found)

    until(is_there, f"{board.name}: a trial")
    return found[0]


def _trials(board: Worker) -> Iterator[int]:
    assert board.process is not None
    own = board.process.pid
    try:
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        for child in children:
            if TRIAL in Path(f"/proc/{child}/cmdline").read_bytes():
                yield int(child)
    except OSError:  # it has just ended
        return


def _rolled_back(board: Worker, version: int) -> tuple[int, str]:
    """The release that a board has gone back to, and its reason, once it follows the run again."""

    def is_back(now: Status) -> bool:
        return now["joined"] and version in _left(now)

    found = wait(board, is_back, f"back from release {version}")
    return found["releases"]["current"], _left(found)[version]


def _left(now: Status) -> dict[int, str]:
    """The releases that a node has left, or has never taken, and why."""
    told = now["releases"]
    return {item["version"]: item["reason"] for item in (*told["bad"], *told["not_taken"])}


def _tell(name: str, outcome: Outcome, place: str) -> None:
    verdict = "rolled back" if outcome.is_good else "NOT ROLLED BACK"
    print(f"{name}: {verdict} on every node in {outcome.seconds:.0f} s", flush=True)
    for node, reason in outcome.reasons.items():
        print(f"  {node}: {reason.replace(place, '')}")
    if outcome.refused_by_installer:
        print(f"  the installer: {outcome.refused_by_installer.replace(place, '')}", flush=True)


def _result(outcomes: Mapping[str, Outcome], place: str, *, quick: bool) -> Result:
    count = len(outcomes)
    figures = {
        "releases": Figure(count, None if quick else ">=20"),
        "rolled_back": Figure(sum(o.is_good for o in outcomes.values()), f">={count}"),
        "nodes": Figure(len(next(iter(outcomes.values())).reasons), ">=3"),
        "kills": Figure(sum(outcome.deaths for outcome in outcomes.values())),
        "longest_s": Figure(max(outcome.seconds for outcome in outcomes.values())),
    }
    notes = (
        "three node processes and a host on a real mosquitto, with keys; a release counts as "
        "rolled back where every node went back to the last good one by itself, or never left it, "
        "gave the reason that it should, and was counted in the rounds after that",
        "releases reach a node as files; what `ternmesh release install` refused was put into the "
        "node's folder behind its back",
        "kills: kill -9 of a node in mid-trial, which is then started again as systemd does, and "
        "SIGSEGV to the trial's own process",
        "a good release after all of them was taken by every node",
    )
    details = {
        name: {
            "reasons": {n: r.replace(place, "") for n, r in outcome.reasons.items()},
            "installer": outcome.refused_by_installer.replace(place, ""),
            "seconds": round(outcome.seconds, 1),
        }
        for name, outcome in outcomes.items()
    }
    return Result("rollback", figures, notes=notes, details=details, quick=quick)
