"""A mixed fleet of three architectures, two boards each, on three voices that are new to all.

Each board has one voice, so each group lacks one. The groups' boards and the host are processes,
over a broker and over emulated radios; `bench.mixed_worker` has the settings.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import Finished, Job, finish
from bench.mixed_worker import ARCHITECTURES, SPEED
from bench.result import Figure, Result, mean_figure

SEEDS, ROUNDS = 5, 40
BEARERS = ("mqtt", "radio", "alone", "whole")
NOTES = (
    "six boards with 100 labelled clips each, 390 clips without labels as the probe set, 216 other "
    "clips of the three voices in the test; keys, packets every second round",
    "points_below: accuracy of a fleet of that architecture with the clips of all six boards, in "
    "memory, minus that of the group; the worst of the three groups",
    f"radios are emulated: no hardware, {SPEED:g} times faster, every fifth frame lost",
    "alone: the same three groups without knowledge packets",
)


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All bearers and seeds; `quick` takes one seed over a broker."""
    seeds, bearers = (1, ("mqtt", "whole")) if quick else (SEEDS, BEARERS)
    finished = Finished(resume)
    folder = Path(tempfile.mkdtemp(prefix="ternmesh-mixed-"))
    for name in ARCHITECTURES[1:]:
        command = ["-m", "models.pretrain_keyword", "--architecture", name, "--out"]
        subprocess.run([sys.executable, *command, str(folder / "models" / name)], check=True)
    jobs = [
        Job(f"{bearer} {seed}", ("bench.mixed_worker", bearer, str(seed), str(ROUNDS), str(folder)))
        for seed in range(seeds)
        for bearer in bearers
    ]
    finish(finished, jobs, lambda value: str(value["accuracy"]))
    found = {
        bearer: [finished.values[f"{bearer} {seed}"]["accuracy"] for seed in range(seeds)]
        for bearer in bearers
    }
    return Result("mixed", _figures(found), {}, NOTES, {"accuracy": found}, quick)


def _figures(found: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Figure]:
    figures = {}
    for bearer in ("mqtt", "radio", "alone"):
        if bearer not in found:
            continue
        below = {name: _points(found["whole"], found[bearer], name) for name in ARCHITECTURES}
        worst = max(below.values(), key=lambda points: float(np.mean(points)))
        limit = None if bearer == "alone" else "<=2"
        figures[f"points_below_{bearer}"] = mean_figure(worst, limit)
        for name in ARCHITECTURES:
            figures[f"points_below_{bearer}_{name}"] = mean_figure(below[name])
    if "radio" in found:
        lost = np.mean([_points(found["mqtt"], found["radio"], n) for n in ARCHITECTURES], axis=0)
        figures["points_lost_by_radio"] = mean_figure(list(lost), "<=1")
    return figures


def _points(
    better: list[Mapping[str, Any]], other: list[Mapping[str, Any]], name: str
) -> list[float]:
    return [100 * (one[name] - two[name]) for one, two in zip(better, other, strict=True)]
