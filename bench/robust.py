"""What fleets with liars lose: twelve attacks, against the fleet of the honest boards alone.

Each fleet is a process of its own with the real host, nodes and packets, in memory:

    python -m bench.robust BOARDS LIARS SEED ATTACK ROUNDS RULE

prints its accuracy, and the weights of liars and honest boards. The attack "alone" is the fleet of
the honest boards. Liars know all honest updates of the round; those of a "lying_" attack also
report that honest boards' probes ruin the model, and theirs do not.
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.demo import clips_of
from bench.jobs import Finished, Job, finish
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import (
    DEADLINE_S,
    Board,
    Clock,
    Judge,
    make_host,
    make_trainer,
    run_until_finished,
)
from edge.onnx.session import load_model
from experiments.data import Clips
from host.config import RunConfig, load_rule, plan_of
from models.zoo import package_path
from ternmesh.codec.scale import to_float, to_vector
from ternmesh.federated.aggregation import encode_update, update_delta_q24
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import HostEvent
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.rules import AggregationSettings
from ternmesh.federated.state import HostSettings
from ternmesh.plan import Plan
from ternmesh.wire.update import SAMPLES_MAX
from ternmesh_cli.demo.fleet import BOARDS, RUN
from transports.driver import Driver
from transports.loopback import LoopbackHub, LoopbackTransport

Vector = NDArray[np.float32]
HELD_OUT = 32  # clips of each board that it evaluates on
TRAINED = 320  # clips of each voice that boards hold; the others are for the claim
CLASSES, BANDS = 10, 4
WORST = 32.0  # the effect that a liar reports
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
        Job(name(*part), ("bench.robust", *map(str, part[:4]), str(rounds), part[4]))
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


@dataclass(frozen=True, slots=True)
class Seen:
    """What a liar knows: its own honest update, those of the honest boards, and the round."""

    own: Vector
    honest: list[Vector]
    round: int

    @property
    def mean(self) -> Vector:
        """Of the honest updates."""
        mean: Vector = np.mean(self.honest, axis=0, dtype=np.float32)
        return mean

    @property
    def deviation(self) -> Vector:
        """The standard deviation of each number of the honest updates."""
        deviation: Vector = np.std(self.honest, axis=0, dtype=np.float32)
        return deviation


class Liar(Board):
    """A board that submits what an attack makes of its own and the honest boards' updates."""

    attack: Callable[[Seen], Vector]
    honest: Sequence[Board]
    is_own_probe: Callable[[], bool]
    lies_in_reports: bool
    withholds: bool
    model_hash: bytes
    rest: Vector | None = None  # the residual that it would have if it were honest

    def work(self, number: int, plan: Plan) -> None:
        """Lie in the update, and perhaps in the report."""
        self.report()
        if self.lies_in_reports:
            effect = -WORST if self.is_own_probe() else WORST
            told = Evaluation(0.0, 1.0, probe=None if self.probe is None else effect)
            self.member.evaluation = write_values(told)
        if self.rest is None:
            self.rest = np.zeros_like(self.member.residual)
        self.member.residual = self.rest
        own = self.train(number, plan) + self.rest
        rest = self.model_hash, number, plan
        self.rest = own - to_vector(update_delta_q24(encode_update(own, *rest)[0], *rest))
        vector = self.attack(Seen(own, [board.sent for board in self.honest], number))
        self.member.residual = np.zeros_like(own)
        self.member.submit(number, vector.astype(np.float32), self._clock())
        if self.withholds and self.member.pending is not None:
            manifest = self.member.pending.bodies[:1]
            self.member.pending = replace(self.member.pending, bodies=manifest)
            self.member.channel.outgoing.discard(self.member.address)


def _scaled(vector: Vector, like: Vector) -> Vector:
    return vector * np.float32(np.linalg.norm(like) / np.linalg.norm(vector))


def _noise(seen: Seen) -> Vector:
    return np.random.default_rng(5).standard_normal(seen.own.size).astype(np.float32)


ATTACKS: dict[str, Callable[[Seen], Vector]] = {
    "sign_flip": lambda seen: -seen.own,
    "sign_flip_x10": lambda seen: -10 * seen.own,
    "labels": lambda seen: seen.own,  # trained on labels + 1
    "samples": lambda seen: -seen.own,  # declares 2**20 samples
    "noise": lambda seen: np.sign(_noise(seen)) if seen.round == 15 else seen.own,
    "ipm": lambda seen: -0.5 * seen.mean,
    "foe": lambda seen: -1.1 * seen.mean,
    "alie": lambda seen: seen.mean - 1.5 * seen.deviation,
    "optimised_alie": lambda seen: seen.mean - 6 * seen.deviation,
    "mimic": lambda seen: seen.honest[0],
    "slow_poison": lambda seen: seen.own + 0.5 * _scaled(_noise(seen), seen.own),
    "withholding": lambda seen: seen.own,  # sends manifests only
}
LYING = "lying_"  # before the name of an attack: liars also lie in their reports
NONE, UNUSUAL = "alone", "unusual"  # no liar at all; one honest board with shifted mel bands


def boards_of(count: int, seed: int) -> tuple[list[tuple[Clips, Clips]], Clips]:
    """Clips to train and to evaluate on of each board, voices in turn; and those for the claim."""
    rng = np.random.default_rng((seed, 77))
    shares: list[list[Clips]] = []
    rest = []
    for voice, name in enumerate(BOARDS):
        clips, dev = clips_of("train", name), clips_of("dev", name)
        mixed = rng.permutation(len(clips))
        parts = np.array_split(mixed[:TRAINED], len(range(voice, count, len(BOARDS))))
        shares.append([Clips(clips.batch(part)) for part in parts])
        rest += [dev, Clips(clips.batch(mixed[TRAINED:]))]
    found = [shares[i % len(BOARDS)][i // len(BOARDS)] for i in range(count)]
    split = [(part(clips, HELD_OUT, None), part(clips, 0, HELD_OUT)) for clips in found]
    claimed = {key: np.concatenate([c.arrays[key] for c in rest]) for key in rest[0].arrays}
    return split, Clips(claimed)


def part(clips: Clips, first: int, last: int | None) -> Clips:
    """Some of the clips."""
    return Clips({key: array[first:last] for key, array in clips.arrays.items()})


def changed(clips: Clips, attack: str) -> Clips:
    """The clips of a board that hears or labels otherwise than the others."""
    arrays = dict(clips.arrays)
    if attack == "labels":
        arrays["target"] = (arrays["target"] + 1) % CLASSES
    if attack == UNUSUAL:
        bands = arrays["features"]
        arrays["features"] = np.pad(bands[:, :, BANDS:], ((0, 0), (0, 0), (0, BANDS)))
    return Clips(arrays)


def run(boards: int, liars: int, seed: int, attack: str, rounds: int, rule: str) -> dict[str, Any]:
    """Train one fleet."""
    loaded = load_model(package_path("keyword"))
    plan = plan_of(RunConfig(**{**RUN, "rounds": rounds}), loaded.package.dimension)
    split, claimed = boards_of(boards, seed)
    judge, clock, hub = Judge(loaded), Clock(), LoopbackHub()
    name, _, byzantine = rule.partition(":")
    known = AggregationSettings(memory=0.0)
    if name != "no_trust":
        known = AggregationSettings(name, load_rule(name), int(byzantine or 0))
    settings = HostSettings(boards - liars, DEADLINE_S, aggregation=known)
    host = make_host(loaded, plan, seed, settings)
    driver: Driver[HostEvent] = Driver(host, hub.host(), clock)
    fleet: list[Board] = []
    first = liars if attack == NONE else 0
    for index, (own, held_out) in list(enumerate(split))[first:]:
        is_liar = index < liars
        if is_liar:
            changes = attack.removeprefix(LYING)
            own, held_out = changed(own, changes), changed(held_out, changes)
        kind = Liar if is_liar and attack != UNUSUAL else Board
        trainer = make_trainer(loaded, own)
        link = LoopbackTransport(hub, f"board-{index}")
        samples = SAMPLES_MAX if is_liar and attack == "samples" else len(own)
        rest = link, f"board-{index}", loaded, trainer, samples, seed, clock
        board = kind(*rest)
        board.judge, board.held_out = judge, held_out
        fleet.append(board)
    fleet.sort(key=lambda board: isinstance(board, Liar))  # liars last: they know the others
    names = {f"board-{index}" for index in range(first, liars)}
    _arm(fleet, attack.removeprefix(LYING), host, attack.startswith(LYING))
    host.start(clock.now)
    driver.transport.open()
    for board in fleet:
        board.driver.transport.open()
        board.member.start(clock.now)
    curve = []
    for stop in range(10, rounds + 1, 10):
        run_until_finished(driver, fleet, clock, stop)
        curve.append(round(100 * judge(to_float(host.model_q24), claimed)[1], 2))
    own_clips = next(b.held_out for b in fleet if b.member.settings.name == f"board-{first}")
    adapters = np.zeros(plan.dimension, np.float32), to_float(host.model_q24)
    return {
        "accuracy": curve[-1],
        # Before and after, of the first board on its held-out clips
        "own": [round(100 * judge(adapter, own_clips)[1], 2) for adapter in adapters],
        "curve": curve,
        **_weights(host, names),
    }


def _weights(host: HostProtocol, liars: Collection[str]) -> dict[str, list[float]]:
    known = host.combiner.aggregation.reputations
    found = {node.name: round(known.weight(a), 3) for a, node in host.nodes.items()}
    return {
        "liars": [weight for name, weight in sorted(found.items()) if name in liars],
        "honest": [weight for name, weight in sorted(found.items()) if name not in liars],
    }


def _arm(fleet: Sequence[Board], attack: str, host: HostProtocol, lies_in_reports: bool) -> None:
    liars = [board for board in fleet if isinstance(board, Liar)]
    honest = [board for board in fleet if not isinstance(board, Liar)]
    names = {board.member.settings.name for board in liars}

    def is_own_probe() -> bool:
        probe = host.combiner.aggregation._probe
        return probe is not None and host.nodes[probe[1]].name in names

    for board in liars:
        board.attack, board.withholds = ATTACKS[attack], attack == "withholding"
        board.honest, board.is_own_probe = honest, is_own_probe
        board.lies_in_reports = lies_in_reports
        board.model_hash = host.combiner.aggregation._model_hash


if __name__ == "__main__":
    boards, liars, seed = map(int, sys.argv[1:4])
    print(json.dumps(run(boards, liars, seed, sys.argv[4], int(sys.argv[5]), sys.argv[6])))
