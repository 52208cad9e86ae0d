"""How many boards one host serves: a round of 10 to 10,000 boards with keys, in one process.

What the host does for a round is timed, from the first frame of an update to the published global
update: open the seals, decode, check the signature, answer with a signed receipt, the default rule
with the memories of all boards. Flower averages float32 arrays of the same length beside it.
"""

import json
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.fleet_worker import DIMENSION, VARIANTS
from bench.jobs import environment, worker_output
from bench.result import Figure, Result

BOARDS, BOARDS_QUICK = (10, 100, 1_000, 10_000), (10, 100)
ROUNDS, ROUNDS_QUICK = 3, 2
PEER, PEER_CLIENTS, PEER_ROUNDS = "flwr==1.42.*", (10, 100, 1_000), 5
NOTES = (
    f"D = {DIMENSION:,}; {VARIANTS} different updates of a round, each board's manifest, signature "
    "and seals its own; made before the clock starts, and so is joining",
    f"a figure is the slowest of {ROUNDS} rounds (two with --quick), wall time of one process with "
    "one thread; each board's frames are a call of their own, after which events and frames are "
    "taken",
    "no bearer and no disk: events are taken and dropped",
    "peak_mb: the whole process (VmHWM), with the prepared frames of all rounds",
    "bytes down: of one board and round, all frames with seals: the global update, whose list "
    "names every board, and a receipt",
    f"peer: {PEER} FedAvg.aggregate_fit on N results in memory, the fastest of {PEER_ROUNDS}: it "
    "reads float32 arrays, averages them and writes the mean; no network, seals, signatures, "
    "memories or receipts, so it is a floor and not the same work",
)
Row = Mapping[str, float]


def measure(*, quick: bool) -> Result:
    """Each fleet in a process of its own; `quick` takes two small ones and no peer."""
    rows: dict[int, Row] = {}
    for boards in BOARDS_QUICK if quick else BOARDS:
        rounds = ROUNDS_QUICK if quick else ROUNDS
        rows[boards] = json.loads(worker_output("bench.fleet_worker", str(boards), str(rounds)))
        print(f"{boards:,} boards: {rows[boards]}", flush=True)
    details: dict[str, Any] = {str(boards): row for boards, row in rows.items()}
    return Result("fleet", figures(rows), {} if quick else _peer(), NOTES, details, quick)


def figures(rows: Mapping[int, Row]) -> dict[str, Figure]:
    """The figures of some fleets, by their size; aims are for 10,000 boards."""
    found = {}
    for boards, row in rows.items():
        aims = ("<=10", "<=500") if boards == BOARDS[-1] else (None, None)
        found[f"round_{boards}_s"] = Figure(row["round_s"], aims[0])
        found[f"peak_{boards}_mb"] = Figure(row["peak_mb"], aims[1])
        found[f"cpu_us_a_frame_{boards}"] = Figure(row["cpu_us_a_frame"])
        found[f"bytes_down_{boards}"] = Figure(row["bytes_down"])
    if {1_000, 10_000} <= rows.keys():
        growth = rows[10_000]["round_s"] / rows[1_000]["round_s"]
        found["growth_10000"] = Figure(growth, "<=13")
    return found


def _peer() -> dict[str, float]:
    """Flower's seconds, in an environment of its own."""
    with TemporaryDirectory() as name:
        home = Path(name, "environment")
        venv.create(home, with_pip=True)
        python = str(home / "bin" / "python")
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*install, PEER], check=True)
        script, found = str(Path(__file__).with_name("fleet_peer.py")), {}
        for clients in PEER_CLIENTS:
            command = [python, script, str(clients), str(PEER_ROUNDS)]
            answer = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=environment(threads=1)
            )
            found[f"flower_{clients}_s"] = float(answer.stdout)
    return found
