"""A pipeline of four ranks on one GPU, unthrottled and over home links; 0.9 billion weights.

The texts are this project's own files: only speed is measured. Where there can be no namespaces, a
relay in user space stands for the links. A run that would begin after `END_S` is left out.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.pipeline import HOME_LOSS, HOME_MBIT, HOME_RTT_MS
from bench.result import Figure, Result
from bench.slow_links import Link, Namespaces, Relay, why_not
from host.pipeline.report import PROGRESS
from ternmesh.security.identity import Role, identity_text
from ternmesh_cli.process import write_toml
from ternmesh_service.identity_file import make_identity_file

ROOT = Path(__file__).parents[1]
STAGES, SIZES = 4, {"width": 2048, "layers": 16, "heads": 16, "length": 1024, "vocabulary": 32_768}
SIZES_QUICK = {"width": 128, "layers": 4, "heads": 4, "length": 64, "vocabulary": 512}
HOME = Link(HOME_MBIT, HOME_RTT_MS, HOME_LOSS)
END_S, RUN_S = 400.0, 150.0
ARMS: Mapping[str, Mapping[str, object]] = {
    "none": {"method": "none"},
    "resbm": {"method": "resbm"},  # the defaults: an eighth of the width, 8 bits, 4 back
    "subspace": {"method": "subspace", "latent": 20, "bits": 16, "back_bits": 16},
}
# Arm, micro-batches of a step, link, steps, and after how many of them a report comes.
RUNS = (
    ("resbm", 8, Link(), 12, 3),
    ("resbm", 32, Link(), 8, 2),
    ("resbm", 32, HOME, 8, 2),
    ("subspace", 32, Link(), 8, 2),
    ("subspace", 32, HOME, 8, 2),
    ("none", 8, Link(), 12, 3),
    ("resbm", 8, HOME, 12, 3),
    ("resbm", 64, HOME, 6, 2),
    ("subspace", 8, HOME, 12, 3),
    ("none", 8, HOME, 3, 1),
)
RUNS_QUICK = (("resbm", 4, Link(), 4, 1), ("subspace", 4, HOME, 4, 1))


def measure(*, quick: bool) -> Result:
    """All runs in turn; `quick` takes a small model on the CPU, to try this file."""
    began, found = time.monotonic(), dict[str, dict[str, Any]]()
    reason = why_not()
    print(f"links: {'namespaces' if reason is None else f'a relay in user space ({reason})'}")
    for arm, count, link, steps, every in RUNS_QUICK if quick else RUNS:
        name = f"{arm}_{count}{'' if link == Link() else '_home'}"
        if time.monotonic() - began > END_S:
            print(f"{name}: left out, no time", flush=True)
            continue
        tables = _tables(arm, count, steps, every, quick=quick)
        try:
            found[name] = _run(tables, link, is_relayed=reason is not None)
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            continue
        row = found[name]
        print(
            f"{name:18} {row['tokens_per_s']:9.0f} tokens/s, idle {row['bubble']}, "
            f"{row['micro_batch_ms']} ms a micro-batch, {row['bytes']} B/token, loss "
            f"{row['loss']:.3f}, {row['took_s']:.0f} s, {row['devices'][0]}, {row['links']}",
            flush=True,
        )
    speeds = {name: row["tokens_per_s"] for name, row in found.items()}
    figures = {
        f"home_share_{name.removesuffix('_home')}": Figure(speed / speeds[base], ">=0.70")
        for name, speed in speeds.items()
        if name.endswith("_home") and (base := _base(name, speeds))
    }
    notes = (
        f"{STAGES} ranks share one GPU; bf16; {SIZES}; 1 sequence a micro-batch",
        f"home: {HOME}; "
        + ("namespaces" if reason is None else f"a relay in user space: {reason}"),
        "home_share: of the unthrottled rate of the same arm with as many micro-batches, or 32",
    )
    return Result("pipeline_gpu", figures, speeds, notes, {"runs": found}, quick)


def _base(name: str, speeds: Mapping[str, float]) -> str | None:
    own = name.removesuffix("_home")
    return next((b for b in (own, f"{own.split('_')[0]}_32") if b in speeds), None)


def _tables(arm: str, count: int, steps: int, every: int, *, quick: bool) -> dict[str, Any]:
    return {
        "": {
            "data": "text",
            "state_dir": "state",
            "stages": STAGES,
            "micro_batch": 1,
            "micro_batches": count,
            "steps": steps,
            "report_steps": every,
            "checkpoint_steps": 0,
            "precision": "bf16",
            "device": "cpu" if quick else "cuda",
            "timeout_s": 120.0,
        },
        "model": SIZES_QUICK if quick else SIZES,
        "boundary": ARMS[arm],
        "optimizer": {"learning_rate": 3e-4},
    }


def _run(tables: dict[str, Any], link: Link, *, is_relayed: bool) -> dict[str, Any]:
    """Train; the last report, with the median speed of all reports but the first."""
    began = time.monotonic()
    place = (Relay if is_relayed else Namespaces)(STAGES, link)
    with tempfile.TemporaryDirectory() as name, place as hosts:
        folder = Path(name)
        (folder / "state").mkdir()
        (folder / "text").mkdir()
        texts = [path.read_text() for path in sorted(ROOT.glob("docs/**/*.md"))]
        (folder / "text" / "docs.txt").write_text("\n".join(texts))
        if not is_relayed:
            public = make_identity_file(folder / "state" / "identity", "bench", Role.HOST).public
            tables[""]["addresses"] = hosts.addresses(0)
            tables[""]["identities"] = [identity_text(public)] * STAGES
        (folder / "run.toml").write_text(write_toml(tables))
        ranks = [_start(folder, rank, hosts) for rank in range(STAGES)]
        try:
            deadline = time.monotonic() + RUN_S
            while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not done within {RUN_S:.0f} s: {_said(folder)}")
                time.sleep(0.1)
            if any(codes):
                time.sleep(5.0)
                raise RuntimeError(_said(folder))
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        lines = (folder / "state" / PROGRESS).read_text().splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    size = rows[-1]["boundary_bytes_per_token"]
    return {
        "tokens_per_s": median(row["tokens_per_s"] for row in rows[1:]),
        "reports": [round(row["tokens_per_s"]) for row in rows],
        "bytes": round(size["forward"] + size["back"], 1),
        "took_s": time.monotonic() - began,
        **{key: rows[-1][key] for key in ("bubble", "micro_batch_ms", "devices", "loss")},
        "links": rows[-1]["links"][-1],
    }


def _start(folder: Path, rank: int, hosts: Namespaces | Relay) -> subprocess.Popen[bytes]:
    command = [*hosts.inside(rank), sys.executable, "-m", "host.pipeline"]
    command += [str(folder / "run.toml"), str(rank), "--supervised"]
    with (folder / f"{rank}.log").open("wb") as log:
        made = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT, env={**os.environ}
        )
    assert made.stdin is not None
    made.stdin.write(json.dumps([hosts.addresses(rank), ""]).encode() + b"\n")
    made.stdin.flush()  # stays open: a rank ends with this process
    return made


def _said(folder: Path) -> str:
    """The last lines of the ranks."""
    return "\n".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.log")))
