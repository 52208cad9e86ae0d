"""A fleet of many boards on one host for a long time: does anything grow, is anything lost?

Host and boards are real processes with keys, files on disk, training and a real mosquitto. They are
forks of one process (`bench.crash`), so 64 boards share the memory of what they import.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import promises
from bench.crash import Fleet, opened
from bench.result import Figure, Result
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import STATE
from tests.mosquitto import Mosquitto

BOARDS, MINUTES = 64, 30.0
BOARDS_QUICK, MINUTES_QUICK = 8, 0.75
WARM_S, STEP_S, POLL_S = 120.0, 60.0, 0.5
WARM_SHARE = 3  # a short trial is warm after this part of it
GROWTH_MAX = 0.05  # of the resident memory
# A round waits for all boards, and takes a few seconds.
RUN: Mapping[str, Any] = {
    "rounds": 1_000_000,
    "local_steps": 1,
    "deadline_s": 60.0,
    "announce_s": 5,
    "chain_max": 32,  # soon full
}
USE = ("rss_mib", "files", "threads", "state_kib")
NOTES = (
    "growth is from minute 2 (in a shorter trial: a third) to the end; the resident memory of each "
    "process has what forks share; boards: their mean; the state has room for 1,000 rounds",
    "violations: as in `crash`. The round that is open at the end promises nothing yet",
)

Use = NDArray[np.float64]  # what a process takes, in the order of USE


def measure(*, quick: bool) -> Result:
    """Run the fleet; a line a minute shows where it is."""
    boards, minutes = (BOARDS_QUICK, MINUTES_QUICK) if quick else (BOARDS, MINUTES)
    run = {**RUN, "min_peers": boards}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(Mosquitto(folder))
        fleet = Fleet(folder, broker.url, boards, run)
        for end in fleet.ends:
            stack.callback(end.close)
            end.start()
        samples = _watch(fleet, minutes * 60.0)
        faults = fleet.stop()
        with opened(fleet.host.folder) as state:
            seconds = [item.seconds for item in HostStore(state).history()]
        acknowledged = promises.acknowledged(fleet.folders)
    figures = {
        "boards": Figure(boards, None if quick else ">=64"),
        "minutes": Figure(minutes, None if quick else ">=30"),
        "violations": Figure(faults.total(), "<=0"),
        "acknowledged_updates": Figure(acknowledged),
        "rounds": Figure(len(seconds)),
        "round_s_p50": Figure(float(np.percentile(seconds, 50))),
        "round_s_p99": Figure(float(np.percentile(seconds, 99))),
    }
    for who, (before, after) in samples.items():
        limits = {"rss_mib": f"<={GROWTH_MAX * before[0]:.2f}", "files": "<=0", "threads": "<=0"}
        figures[f"{who}_rss_mib"] = Figure(after[0])
        for name, growth in zip(USE, (after - before).tolist(), strict=True):
            figures[f"{who}_growth_{name}"] = Figure(growth, limits.get(name))
    return Result("soak", figures, notes=NOTES, details={"faults": dict(faults)}, quick=quick)


def _watch(fleet: Fleet, seconds: float) -> dict[str, tuple[Use, Use]]:
    """What host and boards take once all is warm, and at the end."""
    begun = shown_at = time.monotonic()
    warm: dict[str, Use] = {}
    while (now := time.monotonic()) < begun + seconds:
        for end in fleet.ends:
            if (code := end.poll()) is not None:
                raise RuntimeError(f"{end.name} has ended with {code}: {end.log}")
        if not warm and now >= begun + min(WARM_S, seconds / WARM_SHARE):
            warm = _uses(fleet)
        if now >= shown_at:
            shown_at += STEP_S
            uses = {who: row.round(1).tolist() for who, row in _uses(fleet).items()}
            print(f"{now - begun:.0f} s: version {fleet.version}, {USE}: {uses}", flush=True)
        time.sleep(POLL_S)
    return {who: (warm[who], use) for who, use in _uses(fleet).items()}


def _uses(fleet: Fleet) -> dict[str, Use]:
    boards = np.array([use_of(end.pid, end.folder) for end in fleet.nodes.values()])
    return {"host": use_of(fleet.host.pid, fleet.host.folder), "board": boards.mean(axis=0)}


def use_of(pid: int, folder: Path) -> Use:
    """What a process with its state in `folder` takes now."""
    process = Path("/proc", str(pid))
    lines = (process / "status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    rss_mib = int(status["VmRSS"].split()[0]) / 1024
    size = sum(path.stat().st_size for path in folder.glob(f"{STATE}*"))
    files = len(os.listdir(process / "fd"))
    return np.array([rss_mib, files, int(status["Threads"]), size / 1024])
