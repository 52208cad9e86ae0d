"""What fleets with liars lose, against the fleet of the honest boards alone.

Each fleet is a process of its own with the real host, nodes and packets, in memory:

    python -m bench.robust BOARDS LIARS SEED ATTACK REPORTS ROUNDS RULE

prints its accuracy, and what became of liars and honest boards. The attack "alone" is the fleet of
the honest boards. Liars know all honest updates of the round. REPORTS is "none" (liars report
nothing) or "lies" (honest boards' probes ruin the model, theirs improve it, all is well).
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.jobs import Finished, Job, finish
from bench.keyword import RUN, clips_of
from bench.loopback import LoopbackHub, LoopbackTransport
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import (
    DEADLINE_S,
    Board,
    Clock,
    Judge,
    correct,
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
from ternmesh.federated.combiner import Combiner
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import HostEvent
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.rules import AggregationSettings
from ternmesh.federated.state import HostSettings
from ternmesh.plan import Plan
from ternmesh_cli.demo.fleet import BOARDS
from transports.driver import Driver

Vector = NDArray[np.float32]
HELD_OUT = 32  # clips of each board that it evaluates on
TRAINED = 320  # clips of each voice that boards hold; the others are for the claim
CLASSES, BANDS = 10, 4
PATCH, WANTED = 6, 0  # frames and bands of the trigger, and the class that it means
RENAMED = (3, 5)  # the class that is relabelled, and as what
WORST = 32.0  # the effect that a liar reports
FLEETS = ((3, 1), (6, 1), (9, 2), (12, 4))
SMALL = (3, 1)
REPORTS = ("none", "lies")
SEEDS, TUNING_SEED = 5, 100  # from that seed on, no dev clip is judged: thresholds were chosen so
SEEDS_FIRST, WORST_ATTACKS = 2, 3  # seeds with all attacks; how many of a fleet get all seeds
ROUNDS, ROUNDS_QUICK = 40, 10
FLEETS_QUICK, ATTACKS_QUICK, SEEDS_QUICK = ((3, 1),), ("labels", "sign_flip"), 1
TURN, RESTART, LAST = 10, 20, 36  # the rounds of turncoat, restart, and late attack
ROUND_20 = 3  # its place in a curve
DETECTED = 0.5  # of the honest boards' median weight
DEFAULT = "weighted_mean"
BARE = "no_trust"  # the default without memory, probes and reputations
OTHERS = ("mean", "krum:1", "median:1", BARE)  # peers, at 6 / 1 with one seed
NOTES = (
    "keyword spotter, 15,114 numbers; 320 training clips of each of three voices, dealt out to the "
    "boards, 32 of each board's for its reports; judged on other clips of the three voices; the "
    "bearer is in memory, without loss or keys",
    "points lost: accuracy of the fleet of the honest boards alone minus that of all boards, the "
    "same seed; the worst is the largest mean over five seeds. Each fleet meets all attacks with "
    "two seeds, and the three that cost it most with three seeds more: their means are, if "
    "anything, too high",
    "liars know all honest updates of the round; with even seeds they report nothing, with odd "
    "ones that honest boards' probes ruin the model, theirs improve it, and all is well",
    "thresholds were chosen on seeds 100 to 104: other clips for training and judging",
    "detected: a weight below half of the honest boards' median; trigger: the share of clips with "
    "a patch that become the wanted class, less that of the honest boards alone",
)
Rows = Mapping[str, Mapping[str, Any]]
Part = tuple[int, int, int, str, str]  # boards, liars, seed, attack, rule


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All fleets, attacks and seeds; `quick` takes one fleet, two attacks and ten rounds."""
    fleets, rounds = (FLEETS_QUICK, ROUNDS_QUICK) if quick else (FLEETS, ROUNDS)
    attacks = ATTACKS_QUICK if quick else tuple(ATTACKS)
    seeds = range(SEEDS_QUICK if quick else SEEDS)
    finished = Finished(resume)
    rows: Rows = finished.values

    def run_all(parts: Sequence[Part]) -> None:
        jobs = [
            Job(
                name(*part),
                ("bench.robust", *map(str, part[:4]), reports_of(part[2]), str(rounds), part[4]),
            )
            for part in parts
        ]
        finish(finished, jobs, lambda value: f"{value['accuracy']:.1f} %")

    first = list(seeds[:SEEDS_FIRST])
    parts: list[Part] = [
        (*fleet, seed, attack, DEFAULT)
        for seed in first
        for fleet in fleets
        for attack in (NONE, *attacks)
    ]
    if not quick:
        parts += [(6, 1, seed, UNUSUAL, DEFAULT) for seed in first]
        parts += [(6, 1, 0, attack, rule) for rule in OTHERS for attack in PEER_ATTACKS]
    run_all(parts)
    worst = {fleet: _worst(rows, fleet, attacks, first) for fleet in fleets}
    more: list[Part] = [
        (*fleet, seed, attack, DEFAULT)
        for seed in seeds[SEEDS_FIRST:]
        for fleet in fleets
        for attack in (NONE, *worst[fleet])
    ]
    run_all(more)
    lost = {
        (fleet, attack): [
            _lost(rows, fleet, seed, attack)
            for seed in (seeds if attack in worst[fleet] else first)
        ]
        for fleet in fleets
        for attack in attacks
    }
    peers = {
        f"worst_points_lost_{rule.partition(':')[0]}": max(
            _lost(rows, (6, 1), 0, attack, rule) for attack in PEER_ATTACKS
        )
        for rule in (() if quick else OTHERS)
    }
    table = {f"{n}/{f} {a}": np.round(row, 2).tolist() for ((n, f), a), row in lost.items()}
    figures = _figures(rows, lost, [*parts, *more], quick=quick)
    return Result("robust", figures, peers, NOTES, {"lost": table}, quick)


def _worst(
    rows: Rows, fleet: tuple[int, int], attacks: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """The attacks that cost a fleet most with these seeds."""
    costs = {a: float(np.mean([_lost(rows, fleet, seed, a) for seed in seeds])) for a in attacks}
    return sorted(attacks, key=lambda attack: -costs[attack])[:WORST_ATTACKS]


def name(boards: int, liars: int, seed: int, attack: str, rule: str = DEFAULT) -> str:
    """The name of a part."""
    return f"{boards}/{liars}/{seed}/{attack}/{rule}"


def reports_of(seed: int) -> str:
    """What liars report with this seed: nothing and lies in turn."""
    return REPORTS[seed % len(REPORTS)]


def _lost(
    rows: Rows,
    fleet: tuple[int, int],
    seed: int,
    attack: str,
    rule: str = DEFAULT,
    at: int = -1,  # a place in the curves
) -> float:
    alone = rows[name(*fleet, seed, NONE)]["curve"][at]
    return float(alone - rows[name(*fleet, seed, attack, rule)]["curve"][at])


def _figures(
    rows: Rows,
    lost: Mapping[tuple[tuple[int, int], str], list[float]],
    parts: Sequence[Part],
    *,
    quick: bool,
) -> dict[str, Figure]:
    figures = {}
    for key, limit, is_wanted in (
        ("worst_points_lost", "<=2", lambda fleet, _: fleet != SMALL),
        ("worst_points_lost_3", "<=6", lambda fleet, _: fleet == SMALL),
        ("first_strike_points_lost", None, lambda _, attack: attack in STRIKES),
    ):
        found = {where: row for where, row in lost.items() if is_wanted(*where)}
        if key != "first_strike_points_lost":
            most = max(map(len, lost.values()))
            found = {where: row for where, row in found.items() if len(row) == most}
        if found:
            worst = max(found, key=lambda where: float(np.mean(found[where])))
            figures[key] = mean_figure(found[worst], limit)
    if not quick:
        early = [
            [_lost(rows, fleet, seed, attack, at=ROUND_20) for seed in range(SEEDS_FIRST)]
            for fleet, attack in lost
        ]
        figures["worst_points_lost_round_20"] = mean_figure(max(early, key=np.mean))
    own = [rows[name(*part)] for part in parts if part[4] == DEFAULT]
    figures["least_above_untrained"] = Figure(
        min(row["accuracy"] - row["untrained"] for row in own), ">=0"
    )
    # The most rounds in a row in which an honest board counted nothing
    figures["false_exclusions"] = Figure(max(map(_longest_exclusion, own)), "<=3")
    waits = [
        wait
        for part in parts
        if part[4] == DEFAULT and part[3] in ATTACKS
        for wait in _waits(rows[name(*part)]["weights"], BEGIN.get(part[3], 0))
    ]
    known = [wait for wait in waits if wait is not None]
    figures["detection_rate"] = Figure(len(known) / len(waits))
    figures["rounds_to_detection"] = Figure(float(np.mean(known)) if known else np.inf)
    if quick:
        return figures
    fooled = [
        rows[name(*fleet, seed, "trigger")]["trigger"] - rows[name(*fleet, seed, NONE)]["trigger"]
        for seed in range(SEEDS_FIRST)
        for fleet in FLEETS
    ]
    figures["trigger_success"] = Figure(float(np.mean(fooled)))
    unusual = [rows[name(6, 1, seed, UNUSUAL)] for seed in range(SEEDS_FIRST)]
    shares = [row["weights"][-1][0][0] / float(np.median(row["weights"][-1][1])) for row in unusual]
    figures["unusual_weight"] = Figure(min(shares), ">=0.5")
    figures["unusual_points_gained"] = mean_figure([r["own"][1] - r["own"][0] for r in unusual])
    return figures


def _longest_exclusion(row: Mapping[str, Any]) -> float:
    longest = 0
    for board in zip(*(honest for _, honest in row["weights"]), strict=False):
        for is_out, run_of in groupby(board, lambda weight: weight == 0):
            longest = max(longest, len(list(run_of)) * is_out)
    return float(longest)


def _waits(weights: Sequence[Any], begin: int) -> list[int | None]:
    """The rounds from the first lie of each liar until it weighs little; None: it never did."""
    found: list[int | None] = []
    for liar in range(len(weights[-1][0])):
        low = [
            number
            for number, (liars, honest) in enumerate(weights)
            if number >= begin
            and liar < len(liars)
            and liars[liar] < DETECTED * float(np.median(honest))
        ]
        found.append(low[0] - begin if low else None)
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """What a liar knows: its own honest update, those of the honest boards, and the round."""

    own: Vector
    honest: list[Vector]
    round: int
    since_probe: int  # rounds since the newest probe of its own updates

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


def _scaled(vector: Vector, like: Vector) -> Vector:
    return vector * np.float32(np.linalg.norm(like) / np.linalg.norm(vector))


def _noise(seen: Seen) -> Vector:
    return np.random.default_rng(5).standard_normal(seen.own.size).astype(np.float32)


def _from(first: int, factor: float) -> Callable[[Seen], Vector]:
    return lambda seen: seen.own if seen.round < first else np.float32(factor) * seen.own


ATTACKS: dict[str, Callable[[Seen], Vector]] = {
    "sign_flip": lambda seen: -seen.own,
    "sign_flip_x10": lambda seen: -10 * seen.own,
    "labels": lambda seen: seen.own,  # trained on labels + 1
    "one_class": lambda seen: seen.own,  # trained with one class relabelled
    "trigger": lambda seen: seen.own,  # trained with a patch on half of its clips
    "foe": lambda seen: -1.1 * seen.mean,
    "optimised_alie": lambda seen: seen.mean - 6 * seen.deviation,
    "slow_poison": lambda seen: seen.own + 0.5 * _scaled(_noise(seen), seen.own),
    "turncoat": _from(TURN, -1.5),
    "late": _from(LAST, -10),
    "after_restart": _from(RESTART, -50),  # the host's process begins anew there
    "first_strike": lambda seen: -50 * seen.own if seen.round < 2 else seen.own,  # few are there
    "between_probes": lambda seen: seen.own * np.float32(1 if seen.since_probe > 3 else -1.5),
}
STRIKES = ("first_strike", "after_restart")
PEER_ATTACKS = ("sign_flip", "labels", "turncoat")
BEGIN = {"turncoat": TURN, "late": LAST, "after_restart": RESTART}  # its first round
NONE, UNUSUAL = "alone", "unusual"  # no liar at all; one honest board with shifted mel bands


class Liar(Board):
    """A board that submits what an attack makes of its own and the honest boards' updates."""

    attack: Callable[[Seen], Vector]
    honest: Sequence[Board]
    is_own_probe: Callable[[], bool]
    reports: str
    model_hash: bytes
    since_probe = 0
    rest: Vector | None = None  # the residual that it would have if it were honest

    def work(self, number: int, plan: Plan) -> None:
        """Lie in the update, and in the report."""
        self.since_probe = 0 if self.is_own_probe() else self.since_probe + 1
        told = Evaluation(nodes=0)
        if self.reports == "lies":
            effect = -WORST if self.is_own_probe() else WORST
            told = Evaluation(0.0, 1.0, probe=None if self.probe is None else effect)
        self.member.evaluation = write_values(told)
        if self.rest is None:
            self.rest = np.zeros_like(self.member.residual)
        self.member.residual = self.rest
        own = self.train(number, plan) + self.rest
        sent = encode_update(own, self.model_hash, number, plan)[0]
        self.rest = own - to_vector(update_delta_q24(sent, self.model_hash, number, plan))
        honest = [board.sent for board in self.honest if board.sent.size]
        vector = self.attack(Seen(own, honest, number, self.since_probe))
        self.member.residual = np.zeros_like(own)
        self.member.submit(number, vector.astype(np.float32), self._clock())


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
        rest.append(Clips(clips.batch(mixed[TRAINED:])))
        if seed < TUNING_SEED:
            rest.append(dev)
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
    labels = arrays["target"]
    if attack == "labels":
        arrays["target"] = (labels + 1) % CLASSES
    if attack == "one_class":
        arrays["target"] = np.where(labels == RENAMED[0], RENAMED[1], labels)
    if attack == "trigger":
        half = np.arange(len(labels)) % 2 == 0
        arrays["features"] = np.where(half[:, None, None], patched(clips), arrays["features"])
        arrays["target"] = np.where(half, WANTED, labels)
    if attack == UNUSUAL:
        bands = arrays["features"]
        arrays["features"] = np.pad(bands[:, :, BANDS:], ((0, 0), (0, 0), (0, BANDS)))
    return Clips(arrays)


def patched(clips: Clips) -> NDArray[np.float32]:
    """The features with the patch of the trigger."""
    features: NDArray[np.float32] = clips.arrays["features"].copy()
    features[:, -PATCH:, -PATCH:] = 1.0
    return features


def run(
    boards: int, liars: int, seed: int, attack: str, reports: str, rounds: int, rule: str
) -> dict[str, Any]:
    """Train one fleet."""
    loaded = load_model(package_path("keyword"))
    plan = plan_of(RunConfig(**{**RUN, "rounds": rounds}), loaded.package.dimension)
    split, claimed = boards_of(boards, seed)
    judge, clock, hub = Judge(loaded), Clock(), LoopbackHub()
    settings = settings_of(rule)
    few = attack == "first_strike"
    host = make_host(
        loaded,
        plan,
        seed,
        HostSettings(2 * liars + 1 if few else boards - liars, DEADLINE_S, aggregation=settings),
    )
    driver: Driver[HostEvent] = Driver(host, hub.host(), clock)
    fleet: list[Board] = []
    first = liars if attack == NONE else 0
    for index, (own, held_out) in list(enumerate(split))[first:]:
        if is_liar := index < liars:
            own, held_out = changed(own, attack), changed(held_out, attack)
        kind = Liar if is_liar and attack != UNUSUAL else Board
        link = LoopbackTransport(hub, f"board-{index}")
        trainer = make_trainer(loaded, own)
        board = kind(link, f"board-{index}", loaded, trainer, len(own), seed, clock)
        board.judge, board.held_out = judge, held_out
        fleet.append(board)
    names = {f"board-{index}" for index in range(first, liars)}
    _arm(fleet, attack, reports, host)
    fleet.sort(key=lambda board: isinstance(board, Liar))  # liars last: they know the others
    host.start(clock.now)
    driver.transport.open()
    late = [board for board in fleet if not isinstance(board, Liar)][liars + 1 if few else boards :]
    present = [board for board in fleet if board not in late]
    _join(present, clock)
    weights, curve = [], []
    for stop in range(1, rounds + 1):
        if stop == 3 and late:
            _join(late, clock)
            present = fleet
        if stop == RESTART and attack == "after_restart":
            _restart(host, settings)
        run_until_finished(driver, present, clock, stop)
        weights.append(_weights(host, names))
        if stop % 5 == 0:  # see ROUND_20
            curve.append(round(100 * judge(to_float(host.model_q24), claimed)[1], 2))
    own_clips = next(b.held_out for b in fleet if b.member.settings.name == f"board-{first}")
    adapters = np.zeros(plan.dimension, np.float32), to_float(host.model_q24)
    untrained = round(100 * judge(adapters[0], claimed)[1], 2)
    return {
        "accuracy": curve[-1],
        "untrained": untrained,
        # Before and after, of the first board on its held-out clips
        "own": [round(100 * judge(adapter, own_clips)[1], 2) for adapter in adapters],
        "curve": curve,
        "trigger": _trigger(loaded, loaded.initial + adapters[1], claimed),
        "weights": weights,
    }


def settings_of(rule: str) -> AggregationSettings:
    """The aggregation with a rule and the number of liars that it withstands, as "krum:1"."""
    name, _, byzantine = rule.partition(":")
    if name == BARE:
        return AggregationSettings(memory=0.0)
    return AggregationSettings(name, load_rule(name), int(byzantine or 0))


def _trigger(loaded: Any, adapter: Vector, claimed: Clips) -> float:
    """The share of clips of other classes that a patch turns into the wanted one, in percent."""
    others = claimed.arrays["target"] != WANTED
    targets = np.full(int(others.sum()), WANTED)
    shown = Clips({"features": patched(claimed)[others], "target": targets})
    return round(100 * float(correct(loaded, adapter, shown).mean()), 2)


def _join(boards: Sequence[Board], clock: Clock) -> None:
    for board in boards:
        board.driver.transport.open()
        board.member.start(clock.now)


def _restart(host: HostProtocol, settings: AggregationSettings) -> None:
    """Make what combines anew, from what is on the disk."""
    host.combiner = Combiner(
        plan=host.plan,
        settings=settings,
        model_hash=host.combiner.aggregation._model_hash,
        run=host.run,
        nodes=host.nodes,
        mean=b"",
        standings=host.combiner.aggregation.stored(),
        kept=[kept.stored(0) for kept in host.combiner.guard._rounds],
    )


def _weights(host: HostProtocol, liars: Collection[str]) -> list[list[float]]:
    """Those of the liars, and of the honest boards."""
    known = host.combiner.aggregation.reputations
    found = {node.name: round(known.weight(a), 3) for a, node in sorted(host.nodes.items())}
    return [
        [weight for name, weight in found.items() if (name in liars) == is_liar]
        for is_liar in (True, False)
    ]


def _arm(fleet: Sequence[Board], attack: str, reports: str, host: HostProtocol) -> None:
    liars = [board for board in fleet if isinstance(board, Liar)]
    honest = [board for board in fleet if not isinstance(board, Liar)]

    def is_probe_of(name: str) -> bool:
        probe = host.combiner.aggregation._probe
        return probe is not None and host.nodes[probe[1]].name == name

    names = {board.member.settings.name for board in liars}
    for board in liars:
        board.attack, board.reports, board.honest = ATTACKS[attack], reports, honest
        board.is_own_probe = lambda: any(map(is_probe_of, names))
        board.model_hash = host.combiner.aggregation._model_hash


if __name__ == "__main__":
    boards, liars, seed, rounds = (int(sys.argv[at]) for at in (1, 2, 3, 6))
    print(json.dumps(run(boards, liars, seed, sys.argv[4], sys.argv[5], rounds, sys.argv[7])))
