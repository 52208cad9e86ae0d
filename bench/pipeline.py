"""Pipeline training over slow links: how much of the speed of fast links each method keeps.

All runs are of real ranks. The link-bound rate is the one at which the uncompressed run reaches
1/16.4 of its unthrottled tokens/s (the published ratio of 592 to 36); it is found by measuring.
Arms take turns, so that other programs on the machine slow all of them.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.jobs import Finished
from bench.result import Figure, Result
from bench.slow_links import DEVICE, Link, Namespaces, why_not
from experiments.data import find_data
from host.pipeline.report import PROGRESS
from ternmesh_cli.process import write_toml
from tests.mosquitto import free_port

POLL_S = 0.02
Tables = Mapping[str, Mapping[str, object]]
SLOWDOWN = 16.4
HOME_MBIT, HOME_RTT_MS, HOME_LOSS = 80.0, 50.0, 0.001  # a link between two homes
SWEEP_MBIT = (10.0, 50.0, HOME_MBIT, 200.0)
WIDTH, WIDTH_QUICK = 512, 256
RUNS, RUNS_QUICK = 3, 1
ARMS: Mapping[str, Mapping[str, object]] = {
    "none": {"method": "none"},
    "subspace": {"method": "subspace", "form": "factors", "basis_steps": 0, "bits": 16},
    "resbm": {"method": "resbm", "bits": 16},
}
SHARE = {"none": 1, "subspace": 100, "resbm": 128}  # d/k
NOTES = (
    f"speedup_linkbound is at the rate that makes the uncompressed run {SLOWDOWN} times slower "
    f"than unthrottled, of the slower method; speedup_80mbit is over links of {HOME_MBIT:g} "
    "Mbit/s; both are against the uncompressed run over the same links",
    "latents in bfloat16 against activations in float32; d/k is 100 and 128",
    "bytes on the socket are the interface's: with headers, acknowledgements and control",
    "the subspace stands still in these runs; turning it sends the basis and a Gram matrix",
)
Speeds = dict[str, float]


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """The link-bound rate, all arms at it, and the sweep; `quick` takes two stages and no sweep."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that links and ranks are removed
    if reason := why_not():
        raise SystemExit(f"no network namespaces here: {reason}")
    runs = _Runs(Finished(resume), quick)
    fast = runs.speed("none", Link())
    bound = Link(_link_bound_mbit(runs, fast))
    rows = {arm: runs.rows(arm, bound) for arm in ARMS}
    home = Link(HOME_MBIT, HOME_RTT_MS, HOME_LOSS)
    notes = ["links: network namespaces with tc tbf", runs.described, *NOTES]
    sweep: dict[str, Speeds] = {}
    if not quick:
        rows |= {f"{arm}_unthrottled": runs.rows(arm, Link()) for arm in ARMS}
        rows |= {f"{arm}_home": runs.rows(arm, home) for arm in ARMS}
        notes.append(f"home: {home} lost on each way, by a relay of packets in user space")
        for mbit in SWEEP_MBIT:
            sweep[f"{mbit:g}"] = {arm: runs.speed(arm, Link(mbit)) for arm in ARMS}
    speeds = {arm: _median(row, "tokens_per_s") for arm, row in rows.items()}
    peers = {f"tokens_per_s_{arm}": speed for arm, speed in speeds.items()}
    peers |= {f"payload_bytes_per_token_{arm}": rows[arm][0]["payload_bytes"] for arm in ARMS}
    peers["link_mbit"] = bound.mbit or 0.0
    whole = _median(rows["none"], "socket_bytes")
    slower = min(speeds["subspace"], speeds["resbm"])
    figures = {
        "speedup_linkbound": Figure(slower / speeds["none"], ">=14"),
        "share_of_unthrottled": Figure(slower / fast, ">=0.9"),
        "slowdown_uncompressed": Figure(fast / speeds["none"]),
        "boundary_ratio_subspace": Figure(
            whole / _median(rows["subspace"], "socket_bytes"), ">=100"
        ),
        "boundary_ratio_resbm": Figure(whole / _median(rows["resbm"], "socket_bytes"), ">=128"),
    }
    if sweep:
        at = sweep[f"{HOME_MBIT:g}"]
        for arm in ("subspace", "resbm"):
            figures[f"speedup_80mbit_{arm}"] = Figure(at[arm] / at["none"])
    details = {"runs": rows, "sweep": sweep}
    return Result("pipeline", figures, peers, notes, details, quick)


class _Runs:
    """Runs of arms over links; what is finished is kept."""

    def __init__(self, finished: Finished, quick: bool) -> None:
        self.quick = quick
        self.width = WIDTH_QUICK if quick else WIDTH
        self._finished = finished

    @property
    def described(self) -> str:
        """One sentence about all runs."""
        return (
            f"{self.tables('none')['']['stages']} stages of a small transformer, width "
            f"{self.width}, float32, one thread a rank, on two cores that other programs use as "
            "well"
        )

    def tables(self, arm: str) -> Tables:
        """The configuration of an arm."""
        stages, steps, every, length = (2, 3, 1, 64) if self.quick else (4, 12, 3, 128)
        latent = max(1, self.width // SHARE[arm])
        return {
            "": {
                "data": str(find_data("text") / "text"),
                "stages": stages,
                "micro_batch": 1 if self.quick else 2,
                "micro_batches": stages,
                "steps": steps,
                "report_steps": every,
                "checkpoint_steps": 0,
                "device": "cpu",
            },
            "model": {"width": self.width, "layers": stages, "heads": 4, "length": length},
            "boundary": {"latent": latent, **ARMS[arm]},
        }

    def rows(self, arm: str, link: Link) -> list[dict[str, Any]]:
        """All runs of an arm over such a link."""
        count = RUNS_QUICK if self.quick else RUNS
        return [self.one(arm, link, number) for number in range(count)]

    def speed(self, arm: str, link: Link) -> float:
        """Median tokens/s of an arm over such a link."""
        return _median(self.rows(arm, link), "tokens_per_s")

    def one(self, arm: str, link: Link, number: int) -> dict[str, Any]:
        """One run of an arm over such a link."""
        name = f"{arm}/{link}/{number}"
        if name not in self._finished.values:
            began = time.monotonic()
            self._finished.add(name, asdict(run(self.tables(arm), link)))
            rate = self._finished.values[name]["tokens_per_s"]
            print(f"{name:28} {rate:8.1f} tokens/s, {time.monotonic() - began:.0f} s", flush=True)
        row: dict[str, Any] = self._finished.values[name]
        return row


def _link_bound_mbit(runs: _Runs, fast: float) -> float:
    """Mbit/s at which the uncompressed run is 1/16.4 as fast: computed, measured, corrected."""
    wanted = fast / SLOWDOWN
    # What the busiest rank sends of a token: to the next stage, and in a long pipeline back too.
    ways = 1 if runs.tables("none")[""]["stages"] == 2 else 2
    guess = round(wanted * runs.width * 4 * ways * 8e-6, 3)
    if runs.quick:
        return guess
    return round(guess * wanted / float(runs.one("none", Link(guess), 0)["tokens_per_s"]), 3)


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured between a run's first report and its last one.

    `socket_bytes` of a token are those of all ranks, with headers and acknowledgements;
    `payload_bytes` those of all payloads, both ways.
    """

    tokens_per_s: float
    socket_bytes: float
    payload_bytes: float
    bubble: list[float]
    loss: float
    validation_loss: float | None = None


def run(tables: Tables, link: Link) -> Run:
    """Train as the tables of a configuration say, with each rank behind such a link."""
    ranks = ranks_of(tables)
    with tempfile.TemporaryDirectory() as folder, Namespaces(ranks, link) as hosts:
        return _measure(tables, Path(folder), ranks, hosts)


def ranks_of(tables: Tables) -> int:
    """How many processes a configuration takes."""
    replicas = tables.get("replicas", {}).get("count", 1)
    return int(str(tables[""]["stages"])) * int(str(replicas))


def _measure(tables: Tables, folder: Path, count: int, hosts: Namespaces) -> Run:
    path = folder / "run.toml"
    path.write_text(write_toml({**tables, "": {**tables[""], "state_dir": "state"}}))
    port = free_port()
    ranks = [_start(path, rank, count, port, hosts) for rank in range(count)]
    seen: list[tuple[dict[str, Any], int]] = []
    try:
        while any(rank.poll() is None for rank in ranks):
            _look(folder / "state" / PROGRESS, hosts, seen)
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(POLL_S)
        _look(folder / "state" / PROGRESS, hosts, seen)
    finally:
        for rank in ranks:
            rank.kill()
        errors = [rank.communicate()[1] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank ended badly:\n{errors[-1][-2000:]}")
    return _summary(seen, tables)


def _look(path: Path, hosts: Namespaces, seen: list[tuple[dict[str, Any], int]]) -> None:
    lines = path.read_text().splitlines() if path.exists() else []
    sent = sum(hosts.sent_bytes()) if len(lines) > len(seen) else 0
    seen += [(json.loads(line), sent) for line in lines[len(seen) :]]


def _start(
    path: Path, rank: int, ranks: int, port: int, hosts: Namespaces
) -> subprocess.Popen[str]:
    around = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": DEVICE,
    }
    command = [*hosts.inside(rank), sys.executable, "-m", "host.pipeline"]
    root = Path(__file__).parents[1]
    return subprocess.Popen(
        [*command, str(path)], stderr=subprocess.PIPE, text=True, cwd=root, env=around
    )


def _summary(seen: list[tuple[dict[str, Any], int]], tables: Tables) -> Run:
    judged = [report["validation_loss"] for report, _ in seen if "validation_loss" in report]
    seen = [(report, sent) for report, sent in seen if "loss" in report]
    (first, sent_first), (last, sent_last) = seen[0], seen[-1]
    stages = _number(tables, "", "stages")
    step_tokens = _number(tables, "", "micro_batch") * _number(tables, "", "micro_batches")
    step_tokens *= _number(tables, "model", "length") * ranks_of(tables) // stages
    steps = last["step"] - first["step"]
    # Each report's rate is over the steps since the one before.
    every = [report for report, _ in seen[1:]]
    wall_s = sum(
        (report["step"] - before["step"]) * step_tokens / report["tokens_per_s"]
        for (before, _), report in zip(seen, every, strict=False)
    )
    size = last["boundary_bytes_per_token"]
    return Run(
        tokens_per_s=steps * step_tokens / wall_s,
        socket_bytes=(sent_last - sent_first) / (steps * step_tokens),
        payload_bytes=(size["forward"] + size["back"]) * (stages - 1),
        bubble=[sum(r["bubble"][s] for r in every) / len(every) for s in range(stages)],
        loss=last["loss"],
        validation_loss=judged[-1] if judged else None,
    )


def _number(tables: Tables, table: str, key: str) -> int:
    return int(str(tables[table][key]))
