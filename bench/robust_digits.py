"""Eight attacks by 6 of 20 boards on scikit-learn's digits, through the product's aggregation.

The network is small enough for a whole table in minutes: 64, 32 and 10 units (2,410 numbers)
with gradients by hand, all boards in one array. Updates, global updates, probes and
reports are coded as on the wire. `python -m bench.robust_digits` prints the table;
`python -m bench.robust_digits SEED ALPHA ATTACK ROOTS ROUNDS` one of its parts.
"""

import copy
import csv
import gzip
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.jobs import Finished, Job, finish
from bench.result import Figure
from edge.trainer import AdamSettings, AdamState, adam_update
from host.config import RunConfig, plan_of
from ternmesh.codec.scale import add_q24, to_float, to_vector
from ternmesh.federated.aggregation import encode_update, make_step, read_chunks, update_delta_q24
from ternmesh.federated.evaluation import Evaluation, read_values, write_values
from ternmesh.federated.robust import RobustAggregation, Update
from ternmesh.federated.rules import AggregationSettings
from ternmesh.plan import Plan
from ternmesh.wire.update import read_chunk

Vector = NDArray[np.float32]
Labels = NDArray[np.int64]
Vectors = NDArray[np.float32]  # [boards, D]

PEER = "scikit-learn==1.7.2"
DIGITS = "sklearn/datasets/data/digits.csv.gz"
PIXELS, HIDDEN, CLASSES = 64, 32, 10
DIMENSION = PIXELS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
BOARDS, LIARS, ROUNDS, BATCH = 20, 6, 300, 32
HONEST = BOARDS - LIARS
CLAIMED, FEWEST, HELD_OUT = 397, 10, 5  # samples apart; least of a board; one of 5 for reports
ROOTS = 100
SEEDS, ALPHAS = 3, (1.0, 0.1)
RUN: Mapping[str, Any] = {"up_zeros": 0.7, "down_zeros": 0.7, "local_steps": 4}
MODEL_HASH = bytes(32)
WORST = 32.0  # the effect that a liar reports
STRENGTHS, TRIED_EVERY = (-6.0, -3.0, -1.5, 1.5, 3.0, 6.0), 10  # of optimised ALIE; rounds
LYING, NONE = "lying_", "none"
LIMITS = {(1.0, 0): ">=92", (0.1, 0): ">=65", (0.1, ROOTS): ">=87"}  # alpha, samples: percent


@dataclass(frozen=True, slots=True)
class Samples:
    """Pixels (float32 [n, 64], 0 to 1) and digits (int64 [n])."""

    x: Vectors
    y: Labels

    def of(self, places: NDArray[np.int64]) -> "Samples":
        """Those at `places`."""
        return Samples(self.x[places], self.y[places])


@dataclass(frozen=True, slots=True)
class Shares:
    """Who has which samples."""

    trained: Sequence[Samples]  # by honest board
    held_out: Sequence[Samples]  # by honest board
    root: Samples  # of the host
    claimed: Samples


# Data


def digits_file() -> Path:
    """The digits as CSV, out of scikit-learn's wheel; it is fetched once for a machine."""
    path = Path(tempfile.gettempdir(), "ternmesh-bench-digits.csv.gz")
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest")
            subprocess.run([*command, folder, PEER], check=True)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                path.write_bytes(wheel.read(DIGITS))
    return path


def shares_of(seed: int, alpha: float, roots: int) -> Shares:
    """Deal the digits out: for each class, boards' parts are Dirichlet with `alpha`."""
    with gzip.open(digits_file(), "rt") as file:
        table = np.array(list(csv.reader(file)), np.float32)
    rng = np.random.default_rng((seed, 12))
    table = table[rng.permutation(len(table))]
    every = Samples(table[:, :PIXELS] / np.float32(16), table[:, PIXELS].astype(np.int64))
    claimed, dealt = np.split(np.arange(len(table)), [CLAIMED])
    root, claimed = np.split(claimed, [roots])
    while True:
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(HONEST)]
        for digit in range(CLASSES):
            own = dealt[every.y[dealt] == digit]
            cuts = np.cumsum(rng.dirichlet(np.full(HONEST, alpha)))[:-1] * own.size
            for part, found in zip(parts, np.split(own, cuts.astype(np.int64)), strict=True):
                part.append(found)
        boards = [rng.permutation(np.concatenate(part)) for part in parts]
        if min(board.size for board in boards) >= FEWEST:
            break
    held_out = [every.of(board[: max(2, board.size // HELD_OUT)]) for board in boards]
    trained = [every.of(board[max(2, board.size // HELD_OUT) :]) for board in boards]
    return Shares(trained, held_out, every.of(root), every.of(claimed))


# The network


def initial(seed: int) -> Vector:
    """The numbers of a new network (float32 [D])."""
    rng = np.random.default_rng((seed, 34))
    first = rng.standard_normal(PIXELS * HIDDEN) * (2 / PIXELS) ** 0.5
    second = rng.standard_normal(HIDDEN * CLASSES) * HIDDEN**-0.5
    parts = first, np.zeros(HIDDEN), second, np.zeros(CLASSES)
    return np.concatenate(parts).astype(np.float32)


def _layers(vectors: Vectors) -> tuple[Vectors, ...]:
    """Weights and biases, each [boards, inputs, outputs], of networks [boards, D]."""
    ends = np.cumsum([PIXELS * HIDDEN, HIDDEN, HIDDEN * CLASSES])
    first, bias, second, last = np.split(vectors, ends, axis=1)
    n = len(vectors)
    return (
        first.reshape(n, PIXELS, HIDDEN),
        bias[:, None],
        second.reshape(n, HIDDEN, CLASSES),
        last[:, None],
    )


def _forward(vectors: Vectors, x: Vectors) -> tuple[Vectors, Vectors]:
    """Hidden values and logarithms of the probabilities, for x [boards, samples, 64]."""
    first, bias, second, last = _layers(vectors)
    hidden = np.maximum(x @ first + bias, 0)
    logits = hidden @ second + last
    logits -= logits.max(axis=2, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))


def gradients(vectors: Vectors, x: Vectors, y: Labels) -> Vectors:
    """Of the mean cross-entropy, float32 [boards, D]; x [boards, samples, 64]."""
    n, samples = y.shape
    hidden, logs = _forward(vectors, x)
    wrong = np.exp(logs)
    wrong[np.arange(n)[:, None], np.arange(samples), y] -= 1
    wrong /= np.float32(samples)
    back = (wrong @ _layers(vectors)[2].transpose(0, 2, 1)) * (hidden > 0)
    parts = x.transpose(0, 2, 1) @ back, back.sum(axis=1)
    last = hidden.transpose(0, 2, 1) @ wrong, wrong.sum(axis=1)
    return np.concatenate([part.reshape(n, -1) for part in (*parts, *last)], axis=1)


def judge(vector: Vector, samples: Samples) -> tuple[Vector, NDArray[np.bool_]]:
    """The loss of each sample, and whether it is a hit."""
    logs = _forward(vector[None], samples.x[None])[1][0]
    return -logs[np.arange(len(logs)), samples.y], logs.argmax(axis=1) == samples.y


def train(starts: Vectors, data: Sequence[Samples], rate: float, steps: int, seed: Any) -> Vectors:
    """What some steps of Adam change, from samples of each board drawn at random."""
    rng = np.random.default_rng(seed)
    vectors, zeros = starts, np.zeros_like(starts)
    state = AdamState(0, zeros, zeros)
    for _ in range(steps):
        drawn = [rng.integers(len(own.y), size=BATCH) for own in data]
        x = np.stack([own.x[d] for own, d in zip(data, drawn, strict=True)])
        y = np.stack([own.y[d] for own, d in zip(data, drawn, strict=True)])
        change, state = adam_update(state, gradients(vectors, x, y), vectors, rate, AdamSettings())
        vectors = vectors + change
    changed: Vectors = vectors - starts
    return changed


# Attacks


@dataclass(frozen=True, slots=True)
class Seen:
    """What liars know: whole updates of the honest boards, and those that flipped labels give."""

    honest: Vectors
    flipped: Vectors
    worst: Callable[[Callable[[float], Vector]], Vector]  # of vectors by strength

    @property
    def mean(self) -> Vector:
        """Of the honest updates."""
        mean: Vector = self.honest.mean(axis=0)
        return mean

    def moved(self, deviations: float) -> Vector:
        """The mean, moved by standard deviations of the honest updates."""
        vector: Vector = self.mean - np.float32(deviations) * self.honest.std(axis=0)
        return vector


ATTACKS: Mapping[str, Callable[[Seen], Vectors]] = {  # [1, D] where all liars send the same
    "sign_flip": lambda seen: -seen.mean[None],
    "sign_flip_x10": lambda seen: -10 * seen.mean[None],
    "ipm": lambda seen: -0.5 * seen.mean[None],
    "foe": lambda seen: -1.1 * seen.mean[None],
    "alie": lambda seen: seen.moved(1.5)[None],
    "optimised_alie": lambda seen: seen.worst(seen.moved)[None],
    "mimic": lambda seen: seen.honest[:1],
    "labels": lambda seen: seen.flipped,
}


# The fleet


class Fleet:
    """Boards and host in one process; liars are the last boards, with the data of the first."""

    def __init__(self, seed: int, alpha: float, attack: str, rounds: int, roots: int = 0) -> None:
        self.shares, self.start, self.seed = shares_of(seed, alpha, ROOTS), initial(seed), seed
        self.attack = ATTACKS.get(attack.removeprefix(LYING))
        self.lies, self.is_labels = attack.startswith(LYING), attack.endswith("labels")
        self.plan: Plan = plan_of(RunConfig(**{**RUN, "rounds": rounds}), DIMENSION)
        run = (seed + 1).to_bytes(8, "little")
        # A function: copies of the aggregation must not copy this fleet.
        root = (lambda number, adapter: self._train_root(number, adapter)) if roots else None
        settings = AggregationSettings(root=root)
        self.aggregation = RobustAggregation(self.plan, MODEL_HASH, settings, run)
        self.model_q24 = np.zeros(DIMENSION, np.int32)
        self.residual = np.zeros(DIMENSION, np.float32)  # of the host
        self.rests = np.zeros((BOARDS, DIMENSION), np.float32)  # residuals of the boards
        self.probe: Vector | None = None
        self.strength = STRENGTHS[0]

    @property
    def vector(self) -> Vector:
        """The network, with the global adapter."""
        return self.start + to_float(self.model_q24)

    def round(self, number: int) -> None:
        """Train, report, lie, aggregate."""
        reports, data = self._reports(), list(self.shares.trained)
        if self.is_labels:
            data += [Samples(own.x, CLASSES - 1 - own.y) for own in data[:LIARS]]
        rests = self.rests[: len(data)]
        rate = self.plan.learning_rate(number)
        corrected = rests + train(
            self.vector + rests, data, rate, self.plan.local_steps, (self.seed, number)
        )
        honest = [
            self._update(index, vector, number, reports[index])
            for index, vector in enumerate(corrected[:HONEST])
        ]
        liars: list[Update] = []
        if self.attack is not None:

            def worst(make: Callable[[float], Vector]) -> Vector:
                return self._worst(make, honest, number)

            lies = self.attack(Seen(corrected[:HONEST], corrected[HONEST:], worst))
            liars = self._liars(lies, number, reports)
        self._close([*honest, *liars], number)

    def _update(self, index: int, vector: Vector, number: int, report: Evaluation) -> Update:
        """Code an update as a board does, and keep what was left out."""
        chunks = encode_update(vector.astype(np.float32), MODEL_HASH, number, self.plan)[0]
        sent = read_chunks(map(read_chunk, chunks), self.plan.up)
        self.rests[index] = vector - to_vector(
            update_delta_q24(chunks, MODEL_HASH, number, self.plan)
        )
        samples = len(self.shares.trained[index % HONEST].y)
        return Update(index + 1, samples, sent, evaluation=report)

    def _liars(self, lies: Vectors, number: int, reports: Sequence[Evaluation]) -> list[Update]:
        found = []
        for index in range(LIARS):
            if index < len(lies):
                made = self._update(HONEST + index, lies[index], number, reports[index])
            told = reports[index]
            if self.lies:
                target = self.aggregation._probe
                effect = -WORST if target is not None and target[1] > HONEST else WORST
                told = Evaluation(0.0, 1.0, probe=None if told.probe is None else effect)
                told = read_values(write_values(told))
            samples = len(self.shares.trained[index].y)
            found.append(Update(HONEST + index + 1, samples, made.vector, evaluation=told))
        return found

    def _reports(self) -> list[Evaluation]:
        """What each honest board reports of the global adapter, and of the probe."""
        held_out = self.shares.held_out
        starts = np.cumsum([0, *(len(own.y) for own in held_out)])
        whole = Samples(
            np.concatenate([own.x for own in held_out]), np.concatenate([own.y for own in held_out])
        )

        def means(values: NDArray[Any]) -> NDArray[np.float64]:
            sums: NDArray[np.float64] = np.add.reduceat(values.astype(np.float64), starts[:-1])
            return sums / np.diff(starts)

        losses, hits = map(means, judge(self.vector, whole))
        effects: Sequence[float | None] = [None] * HONEST
        if self.probe is not None:
            ways = [judge(self.vector + w, whole)[0] for w in (self.probe, -self.probe)]
            effects = list(means(np.exp(-ways[1]) - np.exp(-ways[0])) / 2)  # of the error
        told = [
            Evaluation(float(loss), None if effect is not None else float(hit), probe=effect)
            for loss, hit, effect in zip(losses, hits, effects, strict=True)
        ]
        return [read_values(write_values(item)) for item in told]

    def _worst(self, make: Callable[[float], Vector], honest: list[Update], number: int) -> Vector:
        """The lie that moves this round's step furthest from that of the honest boards."""
        if number % TRIED_EVERY == 0:
            steps = {}
            for strength in (0.0, *STRENGTHS):
                lies = self._liars(make(strength)[None], number, [honest[0].evaluation] * LIARS)
                trial = copy.deepcopy(self.aggregation)
                steps[strength] = trial.combine([*honest, *(lies if strength else [])], number)
            self.strength = max(
                STRENGTHS, key=lambda strength: float(np.linalg.norm(steps[strength] - steps[0.0]))
            )
        return make(self.strength)

    def _close(self, updates: Sequence[Update], number: int) -> None:
        """Make the global update as the host does, and apply it."""
        combined = self.aggregation.combine(updates, number, (), self.vector - self.start)
        chunks = self.aggregation.probe(number + 1)
        rest = MODEL_HASH, number + 1, self.plan
        self.probe = to_vector(update_delta_q24(chunks, *rest)) if chunks else None
        made = make_step(combined, self.residual, *rest, has_probe=bool(chunks))
        _, delta_q24, self.residual = made
        self.model_q24 = add_q24(self.model_q24, delta_q24)

    def _train_root(self, number: int, adapter: Vector) -> Vector:
        """What training on the host's samples changes in a round."""
        rest = self.plan.learning_rate(number), self.plan.local_steps, (self.seed, number, ROOTS)
        changed: Vector = train((self.start + adapter)[None], [self.shares.root], *rest)[0]
        return changed

    def accuracy(self) -> float:
        """On the claimed samples, in percent."""
        return 100 * float(judge(self.vector, self.shares.claimed)[1].mean())


def run(seed: int, alpha: float, attack: str, roots: int, rounds: int) -> dict[str, Any]:
    """Accuracy in percent at the end, and the weights of honest boards and liars."""
    fleet = Fleet(seed, alpha, attack, rounds, roots)
    for number in range(rounds):
        fleet.round(number)
    known = fleet.aggregation.reputations
    weights = [round(known.weight(address + 1), 3) for address in range(BOARDS)]
    return {
        "accuracy": round(fleet.accuracy(), 2),
        "honest": weights[:HONEST],
        "liars": weights[HONEST:] if attack != NONE else [],
    }


def alone(seed: int, alpha: float, rounds: int) -> float:
    """The accuracy of the host's samples alone, in percent."""
    fleet = Fleet(seed, alpha, NONE, rounds)
    vector = fleet.start
    for number in range(rounds):
        rest = fleet.plan.learning_rate(number), fleet.plan.local_steps, (seed, number)
        vector = vector + train(vector[None], [fleet.shares.root], *rest)[0]
    return 100 * float(judge(vector, fleet.shares.claimed)[1].mean())


def measure_digits(
    finished: Finished, seeds: int = SEEDS, rounds: int = ROUNDS, roots: Sequence[int] = (0, ROOTS)
) -> dict[str, Figure]:
    """All attacks, with and without samples of the host's own; prints a table of each setting."""
    settings = [(alpha, count) for alpha in ALPHAS for count in roots]
    attacks = (NONE, *ATTACKS, f"{LYING}labels", f"{LYING}sign_flip")
    parts = {
        (alpha, count, attack, seed): f"digits/{alpha}/{count}/{attack}/{seed}"
        for alpha, count in settings
        for attack in attacks
        for seed in range(seeds)
    }
    digits_file()  # once, before the processes
    jobs = [
        Job(name, ("bench.robust_digits", *map(str, (seed, alpha, attack, count, rounds))))
        for (alpha, count, attack, seed), name in parts.items()
    ]
    finish(finished, jobs, lambda value: f"{value['accuracy']:.1f} %, liars at {value['liars']}")
    figures = {}
    for alpha, count in settings:
        means = {}
        for attack in attacks:
            names = [parts[alpha, count, attack, seed] for seed in range(seeds)]
            means[attack] = float(np.mean([finished.values[name]["accuracy"] for name in names]))
            print(f"alpha {alpha:g}, {count:3} own samples, {attack:16} {means[attack]:.1f} %")
        where = f"{alpha:g}_{count}"
        worst = min(means[attack] for attack in ATTACKS)
        figures[f"digits_worst_{where}"] = Figure(worst, LIMITS.get((alpha, count)))
        figures[f"digits_clean_{where}"] = Figure(means[NONE])
        figures[f"digits_lying_{where}"] = Figure(
            min(value for attack, value in means.items() if attack.startswith(LYING))
        )
    own = [alone(seed, ALPHAS[0], rounds) for seed in range(seeds)]
    figures["digits_own_samples_alone"] = Figure(float(np.mean(own)))
    return figures


if __name__ == "__main__":
    if len(sys.argv) == 6:
        seed, alpha, attack, roots, rounds = sys.argv[1:]
        print(json.dumps(run(int(seed), float(alpha), attack, int(roots), int(rounds))))
    else:
        resume = Path(sys.argv[1]) if len(sys.argv) == 2 else None
        for name, figure in measure_digits(Finished(resume)).items():
            print(f"{name:28} {figure.value:6.1f}  {figure.limit or ''}")
