"""One training run of a pipeline over given links: tokens/s and bytes, after the first report."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.slow_links import DEVICE, Link, Namespaces
from host.pipeline.report import PROGRESS
from ternmesh_cli.process import write_toml
from tests.mosquitto import free_port

POLL_S = 0.02
NAMESPACES, WRAPPER = "namespaces with tc tbf", "pauses before sends, without a queue"
Tables = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured between a run's first report and its last one.

    `socket_bytes` of a token are those of all ranks, with headers and acknowledgements (None where
    only payloads could be counted); `payload_bytes` those of all payloads, both ways.
    """

    tokens_per_s: float
    socket_bytes: float | None
    payload_bytes: float
    bubble: list[float]
    loss: float
    validation_loss: float | None = None


def run(tables: Tables, link: Link, links: str) -> Run:
    """Train as the tables of a configuration say, with each rank behind such a link."""
    ranks = ranks_of(tables)
    with tempfile.TemporaryDirectory() as folder:
        if links == NAMESPACES:
            with Namespaces(ranks, link) as hosts:
                return _measure(tables, Path(folder), ranks, hosts)
        assert not link.is_relayed, "delay and loss need namespaces"
        held = {**tables, "": {**tables[""], "link_mbit": link.mbit or 0.0}}
        return _measure(held, Path(folder), ranks, None)


def ranks_of(tables: Tables) -> int:
    """How many processes a configuration takes."""
    replicas = tables.get("replicas", {}).get("count", 1)
    return int(str(tables[""]["stages"])) * int(str(replicas))


def _measure(tables: Tables, folder: Path, count: int, hosts: Namespaces | None) -> Run:
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
    return _summary(seen, tables, hosts is not None)


def _look(path: Path, hosts: Namespaces | None, seen: list[tuple[dict[str, Any], int]]) -> None:
    lines = path.read_text().splitlines() if path.exists() else []
    sent = sum(hosts.sent_bytes()) if hosts and len(lines) > len(seen) else 0
    seen += [(json.loads(line), sent) for line in lines[len(seen) :]]


def _start(
    path: Path, rank: int, ranks: int, port: int, hosts: Namespaces | None
) -> subprocess.Popen[str]:
    around = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": hosts.address(0) if hosts else "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    if hosts:
        around["GLOO_SOCKET_IFNAME"] = DEVICE
    command = [*(hosts.inside(rank) if hosts else []), sys.executable, "-m", "host.pipeline"]
    root = Path(__file__).parents[1]
    return subprocess.Popen(
        [*command, str(path)], stderr=subprocess.PIPE, text=True, cwd=root, env=around
    )


def _summary(seen: list[tuple[dict[str, Any], int]], tables: Tables, counted: bool) -> Run:
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
        socket_bytes=(sent_last - sent_first) / (steps * step_tokens) if counted else None,
        payload_bytes=(size["forward"] + size["back"]) * (stages - 1),
        bubble=[sum(r["bubble"][s] for r in every) / len(every) for s in range(stages)],
        loss=last["loss"],
        validation_loss=judged[-1] if judged else None,
    )


def _number(tables: Tables, table: str, key: str) -> int:
    return int(str(tables[table][key]))
