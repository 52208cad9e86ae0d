"""Pipeline training over slow links: how much of the speed of fast links each method keeps.

All runs are of real ranks. The link-bound rate is the one at which the uncompressed run reaches
1/16.4 of its unthrottled tokens/s (the published ratio of 592 to 36); it is found by measuring.
Arms take turns, so that other programs on the machine slow all of them.
"""

import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.data import text_folder
from bench.jobs import Finished
from bench.pipeline_run import NAMESPACES, WRAPPER, Tables, run
from bench.result import Figure, Result
from bench.slow_links import Link, why_not

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
    """The link-bound rate, all arms at it, and the sweep; `quick` takes two stages and no sweep.

    Where there are namespaces, a link between two homes is measured too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that links and ranks are removed
    reason = why_not()
    runs = _Runs(Finished(resume), quick, NAMESPACES if reason is None else WRAPPER)
    fast = runs.speed("none", Link())
    bound = Link(_link_bound_mbit(runs, fast))
    rows = {arm: runs.rows(arm, bound) for arm in ARMS}
    home = Link(HOME_MBIT, HOME_RTT_MS, HOME_LOSS)
    notes = [f"links: {runs.links}" + (f" ({reason})" if reason else ""), runs.described, *NOTES]
    sweep: dict[str, Speeds] = {}
    if not quick:
        rows |= {f"{arm}_unthrottled": runs.rows(arm, Link()) for arm in ARMS}
        if runs.links == NAMESPACES:
            rows |= {f"{arm}_home": runs.rows(arm, home) for arm in ARMS}
            notes.append(f"home: {home} lost on each way, by a relay of packets in user space")
        for mbit in SWEEP_MBIT:
            sweep[f"{mbit:g}"] = {arm: runs.speed(arm, Link(mbit)) for arm in ARMS}
    speeds = {arm: _median(row, "tokens_per_s") for arm, row in rows.items()}
    peers = {f"tokens_per_s_{arm}": speed for arm, speed in speeds.items()}
    peers |= {f"payload_bytes_per_token_{arm}": rows[arm][0]["payload_bytes"] for arm in ARMS}
    peers["link_mbit"] = bound.mbit or 0.0
    whole = _bytes(rows["none"])
    slower = min(speeds["subspace"], speeds["resbm"])
    figures = {
        "speedup_linkbound": Figure(slower / speeds["none"], ">=14"),
        "share_of_unthrottled": Figure(slower / fast, ">=0.9"),
        "slowdown_uncompressed": Figure(fast / speeds["none"]),
        "boundary_ratio_subspace": Figure(whole / _bytes(rows["subspace"]), ">=100"),
        "boundary_ratio_resbm": Figure(whole / _bytes(rows["resbm"]), ">=128"),
    }
    if sweep:
        at = sweep[f"{HOME_MBIT:g}"]
        for arm in ("subspace", "resbm"):
            figures[f"speedup_80mbit_{arm}"] = Figure(at[arm] / at["none"])
    details = {"runs": rows, "sweep": sweep}
    return Result("pipeline", figures, peers, notes, details, quick)


class _Runs:
    """Runs of arms over links; what is finished is kept."""

    def __init__(self, finished: Finished, quick: bool, links: str) -> None:
        self.links = links
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
                "data": str(text_folder()),
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
            self._finished.add(name, asdict(run(self.tables(arm), link, self.links)))
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


def _bytes(rows: Sequence[Mapping[str, Any]]) -> float:
    """Bytes of a token: on the socket where they were counted, else of the payloads."""
    counted = rows[0]["socket_bytes"] is not None
    return _median(rows, "socket_bytes" if counted else "payload_bytes")


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))
