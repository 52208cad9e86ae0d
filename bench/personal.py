"""What personal tensors give: three boards with a voice each share all, a part, or nothing.

The state machines, packets and boards' training are the real ones, in one process. Each board is
judged on held-out clips of its own voice, and on those of the other voices as it would hear them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.demo import clips_of
from bench.jobs import Finished
from bench.result import Figure, Result, mean_figure
from bench.robust_worker import HELD_OUT, UNUSUAL, changed, part
from bench.simulated_fleet import Board, Clips, Judge, run_fleet
from edge.onnx.session import LoadedModel, load_model
from edge.personal import Personal, find_places
from host.config import RunConfig, plan_of
from models.zoo import package_path
from ternmesh.codec.scale import to_float
from ternmesh.federated.events import NodeEvent
from ternmesh.plan import Plan
from ternmesh.types import ModelQ24, Vector
from ternmesh_cli.demo.fleet import BOARDS, RUN

SEEDS = 3
FEW_CLIPS = 64  # of each voice
SHARED, LOCAL = "all_shared", "all_local"
# What is personal, by the name of the choice
CHOICES: Mapping[str, tuple[str, ...]] = {
    SHARED: (),
    "head": ("head.*",),
    "layer_1": ("layers.1.*",),
    "layer_0": ("layers.0.*",),
    "queries_keys": ("*.q.*", "*.k.*"),
    "values_outputs": ("*.v.*", "*.o.*"),
    "lora_A": ("*.lora_A",),
    "lora_B": ("*.lora_B",),
    LOCAL: ("*",),
}
CHOICES_QUICK = (SHARED, "head", LOCAL)
# How the first board differs: not at all, it hears other bands, or its user counts one higher.
PLAIN, FEW, BANDS, LABELS = "plain", "few", "bands", "labels"
CHANGES: Mapping[str, str] = {PLAIN: "", FEW: "", BANDS: UNUSUAL, LABELS: "labels"}
NOTES = (
    "keyword spotter, three boards with one voice each, the plan of the demo (20 rounds); 32 of "
    "each voice's training clips are for the reports to the host, 50 dev clips a voice for the "
    "claim; trust is on, the bearer is in memory, without loss or keys; a seed changes the batches "
    "and which clips are for the reports",
    "own: a board's own voice; others: the two other voices as this board would hear and label "
    "them, had their speakers come to it; means over the three boards, in percent; the interval "
    "is over seeds",
    "few: 64 training clips of each voice; bands: the first board hears with its mel bands shifted "
    "by four of 32; labels: the first board's user means digit + 1; odd: that board's own voice; "
    "even: the own voices of the others",
    "all_local has the same rounds and steps and shares nothing; its boards send zeros",
    "the best choice is named after the fact, out of seven, on the clips that it is judged on: a "
    "lead of a point over its neighbours says little",
)


class PersonalBoard(Board):
    """A board that keeps a part of its adapter, as `edge.node` does."""

    personal: Personal

    def adapter_q24(self) -> ModelQ24:
        """The global adapter with the personal part."""
        return self.personal.own(self.member.model_q24)

    def start(self) -> Vector:
        """The adapter with which a round begins; no residual is personal."""
        start = super().start() - self.member.residual
        return start + self.personal.shared(self.member.residual)

    def train(self, number: int, plan: Plan) -> Vector:
        """Learn the personal part; what is to be submitted."""
        delta = super().train(number, plan)
        self.personal.learn(delta)
        return self.personal.shared(delta)

    def take(self, event: NodeEvent) -> None:
        """Probes count as far as they would change this board's adapter."""
        super().take(event)
        if self.probe is not None:
            self.probe = self.personal.shared(self.probe)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The clips of each board: to train on, to report on, and of all voices for the claim."""

    train: Sequence[Clips]
    held_out: Sequence[Clips]
    claimed: Sequence[Sequence[Clips]]  # by board and voice


def fleet_of(kind: str, seed: int) -> Fleet:
    """Three boards, the first of which may differ; the files are sorted by word."""
    rng, train, claimed = np.random.default_rng((seed, 78)), [], []
    for index, name in enumerate(BOARDS):
        mine = CHANGES[kind] if index == 0 else ""
        clips = clips_of("train", name)
        mixed = clips.batch(rng.permutation(len(clips)))
        train.append(changed(Clips(mixed), mine))
        claimed.append([changed(clips_of("dev", voice), mine) for voice in BOARDS])
    return Fleet(
        [part(clips, HELD_OUT, HELD_OUT + FEW_CLIPS if kind == FEW else None) for clips in train],
        [part(clips, 0, HELD_OUT) for clips in train],
        claimed,
    )


def run(
    loaded: LoadedModel, fleet: Fleet, plan: Plan, seed: int, names: Sequence[str]
) -> tuple[NDArray[np.float64], float]:
    """Percent right by board and voice at the end [boards, voices], and bytes up a round."""
    places = np.ones(plan.dimension, np.bool_)
    if "*" not in names:
        places = find_places(loaded.package, names)
    boards: list[PersonalBoard] = []

    def make(*arguments: Any) -> Board:
        board = PersonalBoard(*arguments)
        board.personal = Personal(places, np.zeros(int(places.sum()), np.int32))
        boards.append(board)
        return board

    ended = run_fleet(loaded, fleet.train, plan, seed, held_out=fleet.held_out, make_board=make)
    for board in boards:
        board.poll()  # it takes the last global update
        assert board.member.finished
    judge = Judge(loaded)
    right = [
        [100 * judge(to_float(board.adapter_q24()), clips)[1] for clips in voices]
        for board, voices in zip(boards, fleet.claimed, strict=True)
    ]
    return np.array(right), ended.bytes_up


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All fleets, choices and seeds; `quick` takes one fleet and seed, and three choices."""
    loaded = load_model(package_path("keyword"))
    plan = plan_of(RunConfig(min_peers=len(BOARDS), **RUN), loaded.package.dimension)
    names = CHOICES_QUICK if quick else tuple(CHOICES)
    kinds, seeds = ((PLAIN,), 1) if quick else (tuple(CHANGES), SEEDS)
    finished = Finished(resume)
    for seed, kind, name in product(range(seeds), kinds, names):
        if (key := f"{kind} {name} {seed}") not in finished.values:
            right, up = run(loaded, fleet_of(kind, seed), plan, seed, CHOICES[name])
            finished.add(key, {**_means(right), "up": up})
            shown = finished.values[key].items()
            print(f"{key}:", ", ".join(f"{part} {value:.1f}" for part, value in shown), flush=True)
    rows = {
        (kind, name): [finished.values[f"{kind} {name} {seed}"] for seed in range(seeds)]
        for kind, name in product(kinds, names)
    }
    figures = {
        f"{kind}_{key}_{name}": mean_figure([one[key] for one in found])
        for (kind, name), found in rows.items()
        for key in ("own", "others")
    }
    shared = [name for name in names if name != LOCAL]
    figures |= {f"bytes_up_{n}": mean_figure([v["up"] for v in rows[PLAIN, n]]) for n in shared}
    own = {where: [one["own"] for one in found] for where, found in rows.items()}
    best = [_best(kind, {n: own[kind, n] for n in shared}, figures) for kind in kinds]
    details = {
        f"{kind} {name}": {
            key: round(float(np.mean([v[key] for v in found])), 2) for key in found[0]
        }
        for (kind, name), found in rows.items()
    }
    return Result("personal", figures, {}, (*NOTES, *best), details, quick)


def _means(right: NDArray[np.float64]) -> dict[str, float]:
    """Of percent right [boards, voices]."""
    own = np.diag(right)
    others = (right.sum() - own.sum()) / (right.size - own.size)
    means = own.mean(), others, own[0], own[1:].mean(), right.mean()
    return dict(zip(("own", "others", "odd", "even", "all"), map(float, means), strict=True))


def _best(kind: str, own: Mapping[str, list[float]], figures: dict[str, Figure]) -> str:
    """Which tensors are best kept, and which worst; adds what they gain, seed by seed."""
    order = sorted(own.keys() - {SHARED}, key=lambda name: float(np.mean(own[name])))
    for which, name in (("best", order[-1]), ("worst", order[0])):
        gains = [a - b for a, b in zip(own[name], own[SHARED], strict=True)]
        figures[f"{kind}_own_gained_{which}"] = mean_figure(gains)
    return f"{kind}: for the own voices {order[-1]} is the best choice, {order[0]} the worst"
