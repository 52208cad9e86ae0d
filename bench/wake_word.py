"""A wake word of one's own: recall and false accepts an hour, of a room alone and of a fleet.

Six rooms have one voice each, and all learn the same phrase, or the same word.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from bench import wake_sounds
from bench.jobs import environment
from bench.result import Figure, Result, items_figure
from bench.simulated_fleet import Vector, average_in_float, run_fleet
from bench.wake_sounds import CONDITIONS, PHONE, Array, Words
from edge.onnx.session import LoadedModel
from edge.words import NEAR_SHARE, REFRACTORY_S, SMOOTHED
from experiments.data import Clips
from models.shelf import WIDTH
from ternmesh.plan import Plan, make_plan

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
PHRASES, SINGLE = ((1, 6), (4, 9), (8, 2), (0, 7)), ((7,), (0,))
RECORDED, JUDGED = range(10, 20), range(5, 10)  # takes
ROWS, HOP_S = 16, 0.08  # rows of a window that is judged
LAST = 19  # of the rows of a clip: the first that holds the whole word
RANDOM, HARD, HARD_ROUNDS = 600, 100, 3  # windows of anything else in a room
OTHER = ("spanish 2", "french 2")  # choose thresholds, with the second piece of music
TRAINED, TRACK, PIECE = "english", (3050, 5420), 7500  # rows: ends of two pieces; 10 minutes
PER_HOUR_MAX = 0.25  # false accepts where the threshold is chosen
LISTEN = """
import sys, time
from pathlib import Path
import numpy as np
from edge.onnx.session import load_model, write_adapter
from edge.predict.predictor import Predictor
from edge.words import new_stream
model, adapter = load_model(Path(sys.argv[1])), Path(sys.argv[1], "current.onnx_adapter")
write_adapter(adapter, model.package, model.initial, 1)
stream = new_stream(Predictor(model, adapter), ["wake"], 0.5, 16_000)
sound = 0.1 * np.random.default_rng(0).standard_normal((40, 16_000)).astype(np.float32)
for second, part in enumerate(sound):
    if second == 10:
        began = time.process_time()
    stream.take(part)
print((time.process_time() - began) / 30 * 1000)
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024)
"""
NOTES = (
    "phrases are each speaker's own digits put together (8 kHz, upsampled); ten recordings of the "
    "training part; judged on 25 pairs of five other takes of each voice, in three conditions",
    "noise (pink, 10 dB), the other room and the quiet one are made from seeds; boards train on "
    "copies of their recordings in other noise and rooms made the same way",
    "a quiet beginning of 2 s is before each word that judges, and before each recording",
    "anything else: English speech and 4 minutes of music, hard negatives after three rounds",
    "thresholds: one for each arm over all voices and phrases, where the second Spanish and French "
    f"voices and 3 minutes of other music give {PER_HOUR_MAX:g} false accepts an hour",
    "false accepts: speech in seven voices and four languages, music, licences read by espeak-ng; "
    "detectors hear the same sound: intervals draw detectors and pieces of 10 minutes",
    "fleet: run_fleet with keys, 20 rounds of 30 steps; alone and float: as many steps, no codec; "
    "recall_none: a voice that recorded nothing, from the other five rooms; recall_3: all have 3",
)


def spoken_rows(words: Words, digits: tuple[int, ...], speaker: str, what: str) -> Array:
    """Rows of clips that are "recorded" or "judged", float32 [clips, conditions, 28, 96]."""
    rng = np.random.default_rng([SPEAKERS.index(speaker), what == "judged", *digits])
    takes = list(product(JUDGED, JUDGED))
    if what == "recorded":
        takes = [(take, RECORDED[take - 13]) for take in RECORDED]
    made = []
    for pair in takes:
        quiet = np.zeros(int(rng.uniform(0.02, 0.15) * PHONE), np.float32)
        said = [words[speaker, digit, take] for digit, take in zip(digits, pair, strict=False)]
        word = np.concatenate([said[0], *([quiet, said[1]] if len(said) > 1 else [])])
        made += [wake_sounds.scene_rows(word, PHONE, how, rng) for how in CONDITIONS]
    return np.array(made).reshape(len(takes), len(CONDITIONS), -1, WIDTH)


def windows(rows: Array, ends: NDArray[np.int64]) -> Array:
    """The ROWS rows up to each end, float32 [ends, ROWS, 96]."""
    return rows[ends[:, None] + np.arange(1 - ROWS, 1)]


@dataclass(frozen=True, slots=True)
class Room:
    """What a board has: recordings as windows of rows, and the rows of anything else."""

    wake: Array
    other: Array

    def clips(self, hard: Array, rng: np.random.Generator) -> Clips:
        """Samples to train on: a third is the wake word."""
        ends = rng.integers(ROWS - 1, len(self.other), RANDOM)
        other = np.concatenate([windows(self.other, ends), hard])
        wake = np.resize(self.wake, (len(other) // 2, *self.wake.shape[1:]))
        target = np.repeat(np.array([1, 0]), [len(wake), len(other)])
        return Clips({"features": np.concatenate([wake, other]), "target": target})


def make_room(recorded: Array, number: int) -> Room:
    """A room with recordings, shipped rows, and a sixth of other speech as its own sound."""
    wake = [windows(clip, np.arange(LAST, LAST + 4)) for clip in recorded.reshape(-1, 28, WIDTH)]
    speech, music = wake_sounds.stream(TRAINED), wake_sounds.stream("music")[: TRACK[0]]
    shipped, own = np.split(speech, 2)
    return Room(np.concatenate(wake), np.concatenate([shipped, music, np.split(
        own[: len(own) // 6 * 6], 6)[number]]))  # fmt: skip


def learn_alone(loaded: LoadedModel, room: Room, plan: Plan, seed: int) -> tuple[Clips, Vector]:
    """A room's samples after rounds of hard negatives, and what it learns alone of them."""
    rng, hard = np.random.default_rng((seed, len(room.wake))), np.zeros((0, ROWS, WIDTH), "f4")
    short = replace(plan, rounds=plan.rounds // 4)
    for _ in range(HARD_ROUNDS):
        vector = average_in_float(loaded, [room.clips(hard, rng)], short, seed)
        top = np.argsort(-probabilities(vector, room.other))[:HARD]
        hard = np.concatenate([hard, windows(room.other, np.maximum(top, 0) + ROWS - 1)])
    clips = room.clips(hard, rng)
    return clips, average_in_float(loaded, [clips], plan, seed)


def logistic(clips: Clips) -> Vector:
    """Logistic regression as openWakeWord's verifier has it: standard rows, C = 0.001."""
    x = clips.arrays["features"].reshape(len(clips), -1).astype(np.float64)
    mean, spread, sign = x.mean(0), x.std(0), 2 * clips.arrays["target"] - 1
    x = (x - mean) / spread

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margin = sign * (x @ w[:-1] + w[-1])
        pull = -0.001 * sign / (1 + np.exp(margin))
        cost = 0.001 * np.logaddexp(0, -margin).sum() + 0.5 * w[:-1] @ w[:-1]
        return cost, np.append(x.T @ pull + w[:-1], pull.sum())

    found = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B").x
    weight = found[:-1] / spread
    both = np.stack([np.zeros_like(weight), weight], 1).ravel()
    return np.append(both, [0, found[-1] - weight @ mean]).astype(np.float32)


def probabilities(vector: Vector, rows: Array) -> Array:
    """The wake word's in the windows of `rows` [..., hops, 96]: the mean of the last ones."""
    columns = np.diff(vector[:-2].reshape(ROWS, WIDTH, 2))[..., 0].T
    each, hops = rows @ columns, rows.shape[-2] - ROWS + 1
    margin = vector[-1] - vector[-2] + sum(each[..., at : at + hops, at] for at in range(ROWS))
    sums = np.cumsum(1 / (1 + np.exp(-margin)), -1, dtype=np.float64)
    sums[..., SMOOTHED:] -= sums[..., :-SMOOTHED].copy()
    return sums / np.minimum(np.arange(1, hops + 1), SMOOTHED)


def triggers(sure: Array, threshold: float) -> list[int]:
    """The hops at which `edge.words.Trigger` tells the word, for the means of its scores."""
    begun = np.diff(sure >= threshold * NEAR_SHARE, prepend=False).cumsum()
    high = np.flatnonzero(sure >= threshold)
    told: list[int] = []
    for hop in high[np.unique(begun[high], return_index=True)[1]]:
        if not told or (hop - told[-1]) * HOP_S >= REFRACTORY_S:
            told.append(int(hop))
    return told


@dataclass(slots=True)
class Arm:
    """What was learned in one way: each detector, and whom it serves."""

    detectors: list[tuple[Vector, tuple[int, ...], Sequence[int]]]  # with word and rooms

    def judge(self, clips: Callable[[tuple[int, ...], str, str], Array]) -> "Judged":
        """Choose the threshold and apply it to other sound."""
        vectors = [vector for vector, *_ in self.detectors]
        tuned = [_heard(v, [wake_sounds.stream(n) for n in OTHER] + [_music(1)]) for v in vectors]
        hours = sum(map(len, tuned)) * HOP_S / 3600
        grid = 1 / (1 + np.exp(-np.arange(-3, 9, 0.125)))
        counts = ((float(t), sum(len(triggers(one, t)) for one in tuned)) for t in grid)
        threshold = next((t for t, count in counts if count <= PER_HOUR_MAX * hours), 1.0)
        told, right, wrong = [], [], []
        for vector, word, rooms in self.detectors:
            at = triggers(_heard(vector, _judging()), threshold)
            pieces = sum(map(len, _judging())) // PIECE
            told.append(np.bincount(np.array(at, int) // PIECE, minlength=pieces + 1)[:pieces])
            others = PHRASES[(PHRASES.index(word) + 1) % len(PHRASES)] if len(word) > 1 else word
            for room in rooms:
                for said, to in ((word, right), (others, wrong)):
                    rows = clips(said, SPEAKERS[room], "judged")
                    to.append(probabilities(vector, rows)[..., 1:].max(-1) >= threshold)
        return Judged(threshold, np.array(told) * 3600 / PIECE / HOP_S, np.array(right),
                      float(np.mean(wrong)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judged:
    """False accepts an hour [detectors, pieces] and found words [voices, clips, conditions]."""

    threshold: float
    per_hour: NDArray[np.float64]
    found: NDArray[np.bool_]
    other_words: float  # the share of another phrase's clips that was taken for the word

    def accepts(self, limit: str | None = None) -> Figure:
        """False accepts an hour; without one, the bound is that of Poisson."""
        figure = items_figure(self.per_hour, limit)
        hours = self.per_hour.size * PIECE * HOP_S / 3600
        assert figure.ci95 is not None
        return replace(figure, ci95=(figure.ci95[0], max(figure.ci95[1], 3 / hours)))

    def recall(self, limit: str | None = None, base: "Judged | None" = None) -> Figure:
        """The share of words that are found, or how much larger it is than that of `base`."""
        flat = [one.found.reshape(len(one.found), -1).astype(float) for one in (self, base) if one]
        return items_figure(flat[0] - flat[1] if base else flat[0], limit)


def _music(part: int) -> Array:
    return np.split(wake_sounds.stream("music"), TRACK)[part]


def _judging() -> list[Array]:
    names = [n for n in (*wake_sounds.SPEECH, *wake_sounds.READ) if n not in (TRAINED, *OTHER)]
    return [_music(2) if name == "music" else wake_sounds.stream(name) for name in names]


def _heard(vector: Vector, streams: Sequence[Array]) -> Array:
    return np.concatenate([probabilities(vector, rows) for rows in streams])


def measure(*, quick: bool) -> Result:
    """Rows are made once: half an hour; then some minutes."""
    loaded = wake_sounds.shelf_model()
    plan = make_plan(loaded.package.dimension, rounds=8 if quick else 20, local_steps=30, nodes=6,
                     learning_rate=0.001, learning_rate_drop=0.8, up_bytes=680,
                     down_bytes=1200)  # fmt: skip
    words = wake_sounds.digits()

    def clips(word: tuple[int, ...], speaker: str, what: str) -> Array:
        name = f"{''.join(map(str, word))} {speaker} {what}"
        return wake_sounds.kept(name, lambda: spoken_rows(words, word, speaker, what))

    arms: dict[str, Arm] = {}
    bytes_up = bytes_down = 0.0
    everyone = range(len(SPEAKERS))
    for word in (PHRASES[:1] if quick else PHRASES + SINGLE):
        kind = "" if len(word) > 1 else "word_"

        def add(name: str, vector: Vector, rooms: Sequence[int]) -> None:
            arms.setdefault(kind + name, Arm([])).detectors.append((vector, word, rooms))

        data: list[Clips] = []
        for count in (3, 10):
            data, tail = [], "_3" * (count == 3)
            for at, speaker in enumerate(SPEAKERS):
                room = make_room(clips(word, speaker, "recorded")[:count], at)
                one, vector = learn_alone(loaded, room, plan, at)
                data.append(one)
                add(f"alone{tail}", vector, [at])
                add(f"logistic{tail}", logistic(one), [at])
            run = run_fleet(loaded, data, plan, 0, keys=True)
            bytes_up, bytes_down = run.bytes_up, run.bytes_down
            add(f"fleet{tail}", run.vector, everyone)
            add(f"float{tail}", average_in_float(loaded, data, plan, 0), everyone)
        for at in everyone:
            others = data[:at] + data[at + 1 :]
            add("fleet_none", run_fleet(loaded, others, plan, 0, keys=True).vector, [at])
            add("float_none", average_in_float(loaded, others, plan, 0), [at])
        print(f"learned {word}", flush=True)
    judged = {name: arm.judge(clips) for name, arm in arms.items()}
    return _result(judged, bytes_up, bytes_down, quick=quick)


def _result(judged: dict[str, Judged], up: float, down: float, *, quick: bool) -> Result:
    limits = {"fleet": (">=0.95", "<=0.5"), "fleet_none": (">=0.6", None)}
    figures, peers = {}, {}
    for name, one in judged.items():
        suffix = name.replace("fleet_", "").replace("fleet", "")
        recall, accepts = limits.get(name, (None, None))
        if "logistic" in name:
            peers |= {f"recall_{suffix}": one.recall().value,
                      f"false_accepts_per_hour_{suffix}": one.accepts().value}  # fmt: skip
            continue
        end = f"_{suffix}" if suffix else ""
        figures[f"recall{end}"] = one.recall(recall)
        figures[f"false_accepts_per_hour{end}"] = one.accepts(accepts)
    figures["recall_3_gain"] = judged["fleet_3"].recall(">=0.01", judged["alone_3"])
    command = [sys.executable, "-c", LISTEN, str(wake_sounds.KEPT / "model")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True,
                           env=environment(threads=1)).stdout.split()  # fmt: skip
    figures |= {
        "cpu_ms_per_s": Figure(float(lines[0]), "<=40"),
        "resident_mib": Figure(float(lines[1]), "<=130"),
        "bytes_per_round": Figure(up, "<=700"),
        "downlink_bytes_per_round": Figure(down),
    }
    details = {
        name: {"threshold": one.threshold, "other_words": one.other_words,
               **dict(zip(CONDITIONS, one.found.mean((0, 1)).tolist(), strict=True))}
        for name, one in judged.items()
    }  # fmt: skip
    hours = sum(map(len, _judging())) * HOP_S / 3600
    return Result("wake_word", figures, peers, NOTES, {"hours": hours, **details}, quick)
