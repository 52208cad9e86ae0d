"""Pipeline training over slow links: how much of the speed of fast links each method keeps.

All runs are of real ranks, with TLS, each in a network namespace. The uncompressed run sends
bfloat16. The link-bound rate is the one at which it reaches 1/16.4 of its unthrottled tokens/s (the
published ratio of 592 to 36); it is found by measuring. Arms take turns, so that other programs on
the machine slow all of them.
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
from itertools import product
from pathlib import Path
from typing import Any

from bench.jobs import Finished
from bench.result import Figure, Result, mean_figure
from bench.slow_links import Link, Namespaces, why_not
from experiments.data import find_data
from host.pipeline.report import PROGRESS
from ternmesh.security.identity import Role, identity_text
from ternmesh_cli.process import write_toml
from ternmesh_service.identity_file import make_identity_file

POLL_S = 0.02
Tables = Mapping[str, Mapping[str, object]]
SLOWDOWN = 16.4
HOME_MBIT, HOME_RTT_MS, HOME_LOSS = 80.0, 50.0, 0.001  # a link between two homes
SWEEP_MBIT = (10.0, 50.0, HOME_MBIT, 200.0)
WIDTH, WIDTH_QUICK = 512, 256
RUNS, RUNS_QUICK = 3, 1
PAIRS, PAIR_STEPS, FILLED_STEPS = 8, 36, 6
FILLED = 16  # micro-batches: a step of 4 in 4 stages fills a middle host's link to 8/11 at best
ARMS: Mapping[str, Mapping[str, object]] = {
    "none": {"method": "none"},
    "subspace": {"method": "subspace", "latent": WIDTH // 100, "bits": 16, "back_bits": 16},
    "resbm": {"method": "resbm"},  # the defaults: an eighth of the width, 8 bits, 4 back
}
NOTES = (
    f"speedup_linkbound is at the rate that makes the uncompressed run {SLOWDOWN} times slower "
    f"than unthrottled, of the slower method; speedup_80mbit is over links of {HOME_MBIT:g} "
    "Mbit/s; both are against the uncompressed run (bfloat16) over the same links",
    f"home_share: tokens/s at home over tokens/s unthrottled, of resbm, in {PAIRS} pairs of "
    f"runs of {PAIR_STEPS} steps, each first in turn; home_share_ARM: medians of short runs",
    f"uncompressed_link_share: what the busiest host sends at the link-bound rate, with {FILLED} "
    "micro-batches a step, over what its link carries; with 4 in 4 stages no schedule can reach "
    "more than 0.73, since a step fills and drains the pipeline",
    "subspace: 1/100 of the numbers, 16 bits; resbm: 1/8, 8 bits forward and 4 back",
    "bytes on the socket are the interface's: with headers, acknowledgements, TLS and control",
)
Speeds = dict[str, float]


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """The link-bound rate, all arms at it and at home, the sweep; `quick`: two stages, no sweep."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that links and ranks are removed
    if reason := why_not():
        raise SystemExit(f"no network namespaces here: {reason}")
    runs = _Runs(Finished(resume), quick)
    fast = runs.speed("none", Link())
    bound = Link(_link_bound_mbit(runs, fast))
    home = Link(HOME_MBIT, HOME_RTT_MS, HOME_LOSS)
    # Arms take turns: `rows` only collects what is kept here.
    for number, link in product(range(runs.count), (bound, Link(), home)):
        for arm in ARMS:
            runs.one(arm, link, number)
    longer = {} if quick else {"steps": PAIR_STEPS}
    shares = []
    for pair in range(1 if quick else PAIRS):
        # A machine that becomes slower within each pair would favour the first of the two.
        turns = (home, Link()) if pair % 2 else (Link(), home)
        rate = {link: runs.one("resbm", link, pair, **longer)["tokens_per_s"] for link in turns}
        shares.append(rate[home] / rate[Link()])
    rows = {arm: runs.rows(arm, bound) for arm in ARMS}
    rows |= {f"{arm}_unthrottled": runs.rows(arm, Link()) for arm in ARMS}
    rows |= {f"{arm}_home": runs.rows(arm, home) for arm in ARMS}
    notes = ["links: network namespaces with tc tbf", runs.described, *NOTES]
    notes.append(f"home: {home} lost on each way, by a relay of packets in user space")
    notes.append(f"links used {rows['resbm_home'][0]['links']}")
    sweep: dict[str, Speeds] = {}
    if not quick:
        rows["resbm_home_cubic"] = runs.rows("resbm", home, congestion="cubic")
        rows["none_filled"] = runs.rows("none", bound, micro_batches=FILLED, steps=FILLED_STEPS)
        for mbit in SWEEP_MBIT:
            sweep[f"{mbit:g}"] = {arm: runs.speed(arm, Link(mbit)) for arm in ARMS}
    speeds = {arm: _median(row, "tokens_per_s") for arm, row in rows.items()}
    peers = {f"tokens_per_s_{arm}": speed for arm, speed in speeds.items()}
    peers |= {f"payload_bytes_per_token_{arm}": rows[arm][0]["payload_bytes"] for arm in ARMS}
    peers["link_mbit"] = bound.mbit or 0.0
    for arm in ARMS:
        peers[f"home_share_{arm}"] = speeds[f"{arm}_home"] / speeds[f"{arm}_unthrottled"]
    whole = _median(rows["none"], "socket_bytes")
    slower = min(speeds["subspace"], speeds["resbm"])
    figures = {
        "home_share": mean_figure(shares, ">=0.85"),
        "speedup_linkbound": Figure(slower / speeds["none"]),
        "share_of_unthrottled": Figure(slower / fast),
        "slowdown_uncompressed": Figure(fast / speeds["none"]),
        "boundary_ratio_subspace": Figure(whole / _median(rows["subspace"], "socket_bytes")),
        "boundary_ratio_resbm": Figure(whole / _median(rows["resbm"], "socket_bytes")),
    }
    if sweep:
        peers["home_share_resbm_cubic"] = speeds["resbm_home_cubic"] / speeds["resbm_unthrottled"]
        share = _median(rows["none_filled"], "busiest_mbit") / (bound.mbit or 1.0)
        figures["uncompressed_link_share"] = Figure(share, ">=0.85")
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
        self.count = RUNS_QUICK if quick else RUNS
        self._finished = finished

    @property
    def described(self) -> str:
        """One sentence about all runs."""
        return (
            f"{self.tables('none')['']['stages']} stages of a small transformer, width "
            f"{self.width}, float32, one thread a rank, on two cores that other programs use as "
            "well"
        )

    def tables(self, arm: str, **changes: object) -> Tables:
        """The configuration of an arm."""
        stages, steps, every, length = (2, 3, 1, 64) if self.quick else (4, 12, 3, 128)
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
                **changes,
            },
            "model": {"width": self.width, "layers": stages, "heads": 4, "length": length},
            "boundary": ARMS[arm],
            "optimizer": {"name": "adamw"},
        }

    def rows(self, arm: str, link: Link, **changes: object) -> list[dict[str, Any]]:
        """All runs of an arm over such a link."""
        return [self.one(arm, link, number, **changes) for number in range(self.count)]

    def speed(self, arm: str, link: Link) -> float:
        """Median tokens/s of an arm over such a link."""
        return _median(self.rows(arm, link), "tokens_per_s")

    def one(self, arm: str, link: Link, number: int, **changes: object) -> dict[str, Any]:
        """One run of an arm over such a link."""
        name = "/".join(map(str, (arm, link, *changes.values(), number)))
        if name not in self._finished.values:
            began = time.monotonic()
            self._finished.add(name, asdict(run(self.tables(arm, **changes), link)))
            rate = self._finished.values[name]["tokens_per_s"]
            print(f"{name:28} {rate:8.1f} tokens/s, {time.monotonic() - began:.0f} s", flush=True)
        row: dict[str, Any] = self._finished.values[name]
        return row


def _link_bound_mbit(runs: _Runs, fast: float) -> float:
    """Mbit/s at which the uncompressed run is 1/16.4 as fast: computed, measured, corrected."""
    wanted = fast / SLOWDOWN
    # What the busiest rank sends of a token: to the next stage, and in a long pipeline back too.
    ways = 1 if runs.tables("none")[""]["stages"] == 2 else 2
    guess = round(wanted * runs.width * 2 * ways * 8e-6, 3)
    if runs.quick:
        return guess
    return round(guess * wanted / float(runs.one("none", Link(guess), 0)["tokens_per_s"]), 3)


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured between a run's first report and its last one.

    `socket_bytes` of a token are those of all ranks, with headers and acknowledgements;
    `payload_bytes` those of all payloads, both ways. `busiest_mbit` is what one host sent at most.
    """

    tokens_per_s: float
    socket_bytes: float
    payload_bytes: float
    busiest_mbit: float
    bubble: list[float]
    links: str
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
    (folder / "state").mkdir()
    public = make_identity_file(folder / "state" / "identity", "bench", Role.HOST).public
    links = {
        "state_dir": "state",
        "addresses": hosts.addresses(0),
        "identities": [identity_text(public)] * count,
    }
    path.write_text(write_toml({**tables, "": {**tables[""], **links}}))
    ranks = [_start(path, rank, hosts) for rank in range(count)]
    seen: list[Seen] = []
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
        raise SystemExit("a rank ended badly:\n" + "\n".join(error[-800:] for error in errors))
    return _summary(seen, tables)


Seen = tuple[dict[str, Any], list[int]]  # a report, and the bytes that each host had sent


def _look(path: Path, hosts: Namespaces, seen: list[Seen]) -> None:
    lines = path.read_text().splitlines() if path.exists() else []
    sent = hosts.sent_bytes() if len(lines) > len(seen) else []
    seen += [(json.loads(line), sent) for line in lines[len(seen) :]]


def _start(path: Path, rank: int, hosts: Namespaces) -> subprocess.Popen[str]:
    command = [*hosts.inside(rank), sys.executable, "-m", "host.pipeline", str(path), str(rank)]
    around = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[1]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root, env=around)


def _summary(seen: list[Seen], tables: Tables) -> Run:
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
    sent = [after - before for after, before in zip(sent_last, sent_first, strict=True)]
    return Run(
        tokens_per_s=steps * step_tokens / wall_s,
        socket_bytes=sum(sent) / (steps * step_tokens),
        payload_bytes=(size["forward"] + size["back"]) * (stages - 1),
        busiest_mbit=8e-6 * max(sent) / wall_s,
        bubble=[sum(r["bubble"][s] for r in every) / len(every) for s in range(stages)],
        links=last["links"][-1],
        loss=last["loss"],
        validation_loss=judged[-1] if judged else None,
    )


def _number(tables: Tables, table: str, key: str) -> int:
    return int(str(tables[table][key]))
