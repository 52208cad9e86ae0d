"""What fleets with liars lose: twelve attacks, against the fleet of the honest boards alone.

Each fleet is a process of its own with the real host, nodes and packets, in memory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import Finished, Job, finish
from bench.result import Figure, Result, mean_figure
from bench.robust_worker import ATTACKS, LYING, NONE, UNUSUAL

FLEETS = ((3, 1), (6, 1), (9, 2), (12, 4))
FLEETS_QUICK = ((3, 1),)
ATTACKS_QUICK = ("labels", "sign_flip")
SEEDS, ROUNDS, ROUNDS_QUICK = 3, 40, 10
DEFAULT = "weighted_mean"
OTHERS = ("mean", "krum:1", "median:1")  # at 6 / 1, with one seed
BARE = "no_trust"  # the default without probes and reputations: what boards without reports have
SMALL = (3, 1)
NOTES = (
    "keyword spotter, 15,114 numbers; 320 training clips of each of three voices, dealt out to the "
    "boards, 32 of each board's for its reports; judged on 390 other clips of the three voices; "
    "the bearer is in memory, without loss or keys",
    "points lost: accuracy of the fleet of the honest boards alone minus that of all boards, the "
    "same seed; the worst is the largest mean over seeds, of all fleets and attacks",
    "liars know all honest updates of the round; noise comes in one round; optimised ALIE has "
    "6 deviations; the clip of norms was known to whoever chose them",
    "lying_*: liars also report that honest boards' probes ruin the model, and theirs do not",
    "unusual: one honest board of six hears with its mel bands shifted by four of 32",
)
Rows = Mapping[str, Mapping[str, Any]]


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All fleets, attacks and seeds; `quick` takes one fleet, two attacks and ten rounds."""
    fleets, rounds = (FLEETS_QUICK, ROUNDS_QUICK) if quick else (FLEETS, ROUNDS)
    attacks = ATTACKS_QUICK if quick else tuple(ATTACKS)
    seeds = range(1 if quick else SEEDS)
    parts = [
        (boards, liars, seed, attack, DEFAULT)
        for seed in seeds
        for boards, liars in fleets
        for attack in (NONE, *attacks)
    ]
    if not quick:
        parts += [(6, 1, seed, UNUSUAL, DEFAULT) for seed in seeds]
        parts += [(n, f, 0, f"{LYING}labels", DEFAULT) for n, f in fleets]
        parts += [(6, 1, 0, attack, rule) for rule in (*OTHERS, BARE) for attack in attacks]
    finished = Finished(resume)
    jobs = [
        Job(name(*part), ("bench.robust_worker", *map(str, part[:4]), str(rounds), part[4]))
        for part in parts
    ]
    finish(finished, jobs, lambda value: f"{value['accuracy']:.1f} %, liars at {value['liars']}")
    rows: Rows = finished.values
    lost = {
        (fleet, attack): [_lost(rows, fleet, seed, attack) for seed in seeds]
        for fleet in fleets
        for attack in attacks
    }
    return Result(
        "robust",
        _figures(rows, lost, quick=quick),
        _peers(rows, attacks, quick=quick),
        NOTES,
        {"lost": {f"{n}/{f} {a}": np.round(v, 2).tolist() for ((n, f), a), v in lost.items()}},
        quick,
    )


def name(boards: int, liars: int, seed: int, attack: str, rule: str = DEFAULT) -> str:
    """The name of a part."""
    return f"{boards}/{liars}/{seed}/{attack}/{rule}"


def _lost(rows: Rows, fleet: tuple[int, int], seed: int, attack: str, rule: str = DEFAULT) -> float:
    alone = rows[name(*fleet, seed, NONE)]["accuracy"]
    return float(alone - rows[name(*fleet, seed, attack, rule)]["accuracy"])


def _figures(
    rows: Rows, lost: Mapping[tuple[tuple[int, int], str], list[float]], *, quick: bool
) -> dict[str, Figure]:
    figures = {}
    for key, limit, is_small in (
        ("worst_points_lost", "<=2", False),
        ("worst_points_lost_3", "<=4", True),
    ):
        found = {where: row for where, row in lost.items() if (where[0] == SMALL) == is_small}
        if found:
            worst = max(found, key=lambda where: float(np.mean(found[where])))
            figures[key] = mean_figure(found[worst], limit)
    if quick:
        return figures
    for fleet in FLEETS:
        n, f = fleet
        own = {attack: np.mean(row) for (where, attack), row in lost.items() if where == fleet}
        figures[f"points_lost_{n}_{f}"] = Figure(float(np.mean(list(own.values()))))
        figures[f"points_lost_lying_{n}_{f}"] = Figure(_lost(rows, fleet, 0, f"{LYING}labels"))
    unusual = [rows[name(6, 1, seed, UNUSUAL)] for seed in range(SEEDS)]
    shares = [row["liars"][0] / float(np.median(row["honest"])) for row in unusual]
    figures["unusual_weight"] = Figure(min(shares), ">=0.5")
    gains = [row["own"][1] - row["own"][0] for row in unusual]
    figures["unusual_points_gained"] = mean_figure(gains)
    return figures


def _peers(rows: Rows, attacks: tuple[str, ...], *, quick: bool) -> dict[str, float]:
    """The worst attack on other rules, at 6 / 1 with one seed."""
    if quick:
        return {}
    return {
        f"worst_points_lost_{rule.partition(':')[0]}": max(
            _lost(rows, (6, 1), 0, attack, rule) for attack in attacks
        )
        for rule in (*OTHERS, BARE)
    }
