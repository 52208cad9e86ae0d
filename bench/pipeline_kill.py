"""kill -9 of ranks at random steps: training goes on from the last checkpoint, to the same loss.

Real ranks under torchrun: three stages; two replicas of two stages that exchange packets; and two
stages each under a torchrun of its own, as on two machines. Each is trained once undisturbed and
once with kills, of a random rank at a random step.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np

from bench.data import text_folder
from bench.parts import Parts, fingerprint
from bench.pipeline_run import Tables
from bench.result import RESULTS, Figure, Result
from host.pipeline import rank  # noqa: F401  (what the ranks run is in the fingerprint)
from host.pipeline.config import PipelineConfig, read_pipeline_config
from host.pipeline.launch import Ranks, command
from ternmesh_cli.mosquitto import free_port
from ternmesh_cli.toml import write_toml

ROOT = Path(__file__).parents[1]
CODE = ("host.pipeline", "models.bottleneck", "models.stages", "models.transformer")
STEPS, STEPS_QUICK = 600, 200
KILLS: Mapping[str, int] = {"stages": 10, "replicas": 5, "machines": 5}
KILLS_QUICK = {arm: 1 for arm in KILLS}
MARGIN = 40  # steps at both ends in which nobody is killed
ARMS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "stages": {"": {"stages": 3}, "boundary": {"method": "subspace", "latent": 8}},
    "replicas": {"": {"stages": 2}, "replicas": {"count": 2, "every_steps": 7, "zeros": 0.5}},
    "machines": {"": {"stages": 2}},
}
MACHINES = {"machines": 2}


def measure(*, quick: bool) -> Result:
    """All arms; `quick` takes one kill each."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ranks are taken down
    steps, kills = (STEPS_QUICK, KILLS_QUICK) if quick else (STEPS, KILLS)
    folder = Path(gettempdir()) if quick else RESULTS / "parts"
    parts = Parts("pipeline_kill", fingerprint((ARMS, steps, kills), CODE), folder)
    for number, arm in enumerate(ARMS):
        rng = np.random.default_rng(number)
        targets = sorted(int(at) for at in rng.integers(MARGIN, steps - MARGIN, kills[arm]))
        for name, some in ((f"{arm}/calm", []), (f"{arm}/killed", targets)):
            if name not in parts.all():
                began = time.monotonic()
                made = train(tables_of(arm, steps), some, rng, MACHINES.get(arm, 1))
                parts.add(name, made)
                wall_s = time.monotonic() - began
                print(f"{name:16} {made['killed']} kills, {made['end']}, {wall_s:.0f} s")
    done = parts.all()
    return Result("pipeline_kill", _figures(done, kills), {}, _notes(steps), done, quick)


def tables_of(arm: str, steps: int) -> Tables:
    """The configuration of an arm."""
    common: dict[str, object] = {
        "state_dir": "state",
        "data": str(text_folder()),
        "micro_batch": 2,
        "micro_batches": 3,
        "steps": steps,
        "report_steps": 1,
        "validate_steps": steps,
        "checkpoint_steps": 20,
        "restarts_max": 3 * max(KILLS.values()),
        "device": "cpu",
    }
    own = ARMS[arm]
    model = {"width": 64, "layers": 3, "heads": 4, "length": 64}
    return {**own, "": {**common, **own[""]}, "model": model}


def train(
    tables: Tables, targets: Sequence[int], rng: np.random.Generator, machines: int
) -> dict[str, Any]:
    """Train to the end, with a kill as soon as each of the steps `targets` is reported.

    There are as many torchruns as `machines`, which share one state folder.
    `killed` counts kills, `resumed` those after which a later step was reported, `end` holds the
    last losses.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(write_toml(tables))
        config = read_pipeline_config(path)
        endpoint = f"localhost:{free_port()}"
        ranks = Ranks(config, path, machines, endpoint)
        ranks.start()
        others = [
            subprocess.Popen(
                command(config, path, machines, endpoint), stderr=subprocess.DEVNULL, cwd=ROOT
            )
            for _ in range(machines - 1)
        ]
        try:
            starters = [ranks.process_id, *(other.pid for other in others)]
            return _watch(ranks, starters, config, list(targets), rng)
        finally:
            ranks.stop()
            for other in others:
                other.terminate()
                other.wait()


def _watch(
    ranks: Ranks,
    starters: Sequence[int],
    config: PipelineConfig,
    targets: list[int],
    rng: np.random.Generator,
) -> dict[str, Any]:
    kills: list[int] = []
    resumed, old, end = 0, set[int](), {}
    for report in ranks.reports(threading.Event()):
        if "loss" not in report:
            end["validation_loss"] = report["validation_loss"]
            continue
        step, end["loss"] = report["step"], report["loss"]
        alive = [child for starter in starters for child in _children(starter)]
        if len(alive) < config.ranks or old & {*alive}:
            continue  # not started again yet: a report of before the kill
        resumed += len(kills) > resumed and step > kills[-1]
        if targets and step >= targets[0]:
            os.kill(alive[int(rng.integers(len(alive)))], signal.SIGKILL)
            targets.pop(0)
            kills.append(step)
            old = {*alive}
    return {"killed": len(kills), "resumed": resumed, "at": kills, "end": end}


def _children(process_id: int) -> list[int]:
    path = Path(f"/proc/{process_id}/task/{process_id}/children")
    try:
        return [int(word) for word in path.read_text().split()]
    except FileNotFoundError:  # the other torchrun has ended, at the end
        return []


def _figures(done: Mapping[str, Any], kills: Mapping[str, int]) -> dict[str, Figure]:
    rows = [(done[f"{arm}/calm"]["end"], done[f"{arm}/killed"]) for arm in ARMS]
    apart = [abs(row["end"][key] - calm[key]) for calm, row in rows for key in calm]
    went_on = sum(row["resumed"] for _, row in rows) / sum(kills.values())
    return {
        "resumed": Figure(went_on, ">=1"),
        "loss_difference": Figure(max(apart), "<=0"),
        "kills": Figure(sum(row["killed"] for _, row in rows)),
    }


def _notes(steps: int) -> tuple[str, ...]:
    return (
        f"{steps} steps of a small transformer, a checkpoint every 20; ranks of one machine",
        "loss_difference: the largest, of the last training and validation losses",
    )
