"""Pipeline training over slow links: how much of the speed of fast links each method keeps.

All runs are of real ranks. The rate of the link is the one at which the uncompressed run reaches
1/16.4 of its unthrottled tokens/s (the published ratio of 592 to 36); it is found by measuring.
Arms take turns, so that a machine that others use hurts all of them.
"""

import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import nn

from bench.data import text_folder
from bench.parts import Parts, fingerprint
from bench.pipeline_plot import draw
from bench.pipeline_run import NAMESPACES, WRAPPER, Tables, as_row, run
from bench.result import RESULTS, Figure, Result
from bench.slow_links import Link, why_not
from host.pipeline.config import PipelineConfig
from host.pipeline.engine import next_token_loss
from host.pipeline.train import own_stage
from models.bottleneck.config import BottleneckConfig
from models.stages import run_stages
from models.transformer_shape import Shape

SLOWDOWN = 16.4
SWEEP_MBIT: tuple[float | None, ...] = (10.0, 50.0, 80.0, 200.0, None)
HOME_MBIT, HOME_RTT_MS, HOME_LOSS = 80.0, 50.0, 0.001  # a link between two homes
CODE = ("host.pipeline", "models.bottleneck", "models.stages", "models.transformer")
WIDTH, WIDTH_QUICK = 512, 256
RUNS, RUNS_QUICK = 3, 1
FREE, PLOT = "unthrottled", "pipeline-sweep.png"
TIMES, TIMES_QUICK = 30, 5
ARMS: Mapping[str, Mapping[str, object]] = {
    "none": {"method": "none"},
    "subspace": {"method": "subspace", "form": "factors", "basis_steps": 0, "bits": 16},
    "resbm": {"method": "resbm", "bits": 16},
}
SHARE = {"none": 1, "subspace": 100, "resbm": 128}  # d/k
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def measure(*, quick: bool, rtt_ms: float = HOME_RTT_MS, loss: float = HOME_LOSS) -> Result:
    """The link-bound rate, all arms at it, and the sweep; `quick` takes two stages and no sweep.

    The sweep ends with a link of 80 Mbit/s with `rtt_ms` and `loss`, where there are namespaces.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # links and ranks are taken down
    reason = why_not()
    links = NAMESPACES if reason is None else WRAPPER
    folder = Path(gettempdir()) if quick else RESULTS / "parts"
    runs = _Runs(folder, quick, links)
    fast = runs.median("none", Link())
    rate = _link_bound_rate(runs, fast)
    rows = {arm: runs.rows(arm, Link(rate)) for arm in ARMS}
    home = Link(HOME_MBIT, rtt_ms, loss)
    if not quick:
        rows |= {f"{arm}_unthrottled": runs.rows(arm, Link()) for arm in ARMS}
    if not quick and links == NAMESPACES:
        rows |= {f"{arm}_home": runs.rows(arm, home) for arm in ARMS}
    sweep = {} if quick else _sweep(runs)
    notes = [
        f"links: {links}" + (f" ({reason})" if reason else ""),
        f"{runs.tables('none')['']['stages']} stages of a small transformer, width {runs.width}, "
        "float32, one thread a rank, on two cores that other programs use as well",
        "latents in bfloat16 against activations in float32; d/k is 100 and 128",
        "bytes on the socket are the interface's: with headers, acknowledgements and control",
        "the subspace stands still in these runs; turning it sends the basis and a Gram matrix",
    ]
    if f"{next(iter(ARMS))}_home" in rows:
        notes.append(f"home: {home} lost on each way, by a relay of packets in user space")
    peers = {f"tokens_per_s_{arm}": _median(row, "tokens_per_s") for arm, row in rows.items()}
    peers |= {f"payload_bytes_per_token_{arm}": rows[arm][0]["payload_bytes"] for arm in ARMS}
    peers |= {"link_mbit": rate}
    if sweep:
        _plot(RESULTS / PLOT, sweep, rows, rate)
    details = {"runs": rows, "sweep": sweep, "plots": [PLOT] if sweep else []}
    overhead = projection_overhead(TIMES_QUICK if quick else TIMES)
    return Result("pipeline", _figures(rows, fast, overhead), peers, notes, details, quick)


class _Runs:
    """Runs of arms at rates, kept as parts."""

    def __init__(self, folder: Path, quick: bool, links: str) -> None:
        self.quick, self._links = quick, links
        self.width = WIDTH_QUICK if quick else WIDTH
        settings = links, [self.tables(arm) for arm in ARMS]
        self._parts = Parts("pipeline", fingerprint(settings, CODE), folder)

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
        return [self._one(arm, link, number) for number in range(count)]

    def median(self, arm: str, link: Link) -> float:
        """Tokens/s of an arm over such a link."""
        return _median(self.rows(arm, link), "tokens_per_s")

    def first(self, arm: str, link: Link) -> float:
        """Tokens/s of the first run of an arm over such a link."""
        return float(self._one(arm, link, 0)["tokens_per_s"])

    def _one(self, arm: str, link: Link, number: int) -> dict[str, Any]:
        name = f"{arm}/{link}/{number}"
        done = self._parts.all()
        if name not in done:
            began = time.monotonic()
            self._parts.add(name, as_row(run(self.tables(arm), link, self._links)))
            done = self._parts.all()
            rate = done[name]["tokens_per_s"]
            print(f"{name:28} {rate:8.1f} tokens/s, {time.monotonic() - began:.0f} s", flush=True)
        row: dict[str, Any] = done[name]
        return row


def _link_bound_rate(runs: _Runs, fast: float) -> float:
    """Mbit/s at which the uncompressed run is 1/16.4 as fast: computed, measured, corrected."""
    wanted = fast / SLOWDOWN
    # What the busiest rank sends of a token: to the next stage, and in a long pipeline back too.
    ways = 1 if runs.tables("none")[""]["stages"] == 2 else 2
    guess = round(wanted * runs.width * 4 * ways * 8e-6, 3)
    if runs.quick:
        return guess
    return round(guess * wanted / runs.first("none", Link(guess)), 3)


def _sweep(runs: _Runs) -> dict[str, dict[str, float]]:
    return {
        FREE if mbit is None else f"{mbit:g}": {arm: runs.median(arm, Link(mbit)) for arm in ARMS}
        for mbit in SWEEP_MBIT
    }


def _figures(rows: Rows, fast: float, overhead: float) -> dict[str, Figure]:
    slow = _median(rows["none"], "tokens_per_s")
    speed = {arm: _median(rows[arm], "tokens_per_s") for arm in ("subspace", "resbm")}
    whole = _bytes(rows["none"])
    return {
        "speedup_linkbound": Figure(min(speed.values()) / slow, ">=14"),
        "share_of_unthrottled": Figure(min(speed.values()) / fast, ">=0.9"),
        "slowdown_uncompressed": Figure(fast / slow),
        "boundary_ratio_subspace": Figure(whole / _bytes(rows["subspace"]), ">=100"),
        "boundary_ratio_resbm": Figure(whole / _bytes(rows["resbm"]), ">=128"),
        "projection_overhead": Figure(overhead, "<=0.01"),
    }


def _plot(
    path: Path, sweep: Mapping[str, Mapping[str, float]], rows: Rows, link_bound: float
) -> None:
    speed = {name: _median(row, "tokens_per_s") for name, row in rows.items()}
    curve = {float(mbit): row for mbit, row in sweep.items() if mbit != FREE}
    curve[link_bound] = speed
    is_home = f"{next(iter(ARMS))}_home" in speed
    home = (HOME_MBIT, {arm: speed[f"{arm}_home"] for arm in ARMS}) if is_home else None
    draw(path, curve, sweep[FREE], home)


def _bytes(rows: Sequence[Mapping[str, Any]]) -> float:
    """Bytes of a token: on the socket where they were counted, else of the payloads."""
    counted = rows[0]["socket_bytes"] is not None
    return _median(rows, "socket_bytes" if counted else "payload_bytes")


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


def projection_overhead(times: int) -> float:
    """The share of CPU time that the boundary of subspace networks adds to a step, in one process.

    Against the same layers without the boundary; steps take turns, and the medians are compared.
    """
    torch.set_num_threads(1)
    boundary = BottleneckConfig("subspace", latent=WIDTH // SHARE["subspace"], form="rows")
    shape = Shape(width=WIDTH, layers=2)
    config = PipelineConfig("", micro_batch=2, micro_batches=2, model=shape, boundary=boundary)
    stages = [own_stage(config, rank)[0] for rank in range(2)]
    layers = nn.Sequential(*(layer for stage in stages for layer in stage.layers))
    tokens = torch.zeros(2, shape.length, dtype=torch.long)
    seconds: dict[str, list[float]] = {"layers": [], "stages": []}
    for _ in range(times):
        for name, row in seconds.items():
            began = time.process_time()
            logits = layers(tokens) if name == "layers" else run_stages(stages, tokens)
            next_token_loss(logits, tokens).backward()  # type: ignore[no-untyped-call]
            row.append(time.process_time() - began)
    return statistics.median(seconds["stages"]) / statistics.median(seconds["layers"]) - 1
