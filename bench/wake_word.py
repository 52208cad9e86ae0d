"""A wake word of one's own: recall and false accepts an hour, of a room alone and of a fleet.

Six rooms have one voice each, and all learn the same phrase of two words.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench import wake_sounds
from bench.simulated_fleet import Vector, average_in_float, run_fleet
from bench.wake_sounds import CONDITIONS, PHONE, Array, Words
from edge.onnx.session import LoadedModel, load_model
from experiments.data import Clips
from ternmesh.plan import Plan, make_plan

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
PHRASES = ((1, 6), (4, 9), (8, 2), (0, 7))
WORDS = ((7,), (3,))
RECORDED, JUDGED = range(10, 20), range(5, 10)  # takes
ROWS = 16  # of a window that is judged: 2 s
SMOOTH, REFRACTORY = 3, 25  # hops of 80 ms
RANDOM, HARD, HARD_ROUNDS = 600, 100, 3  # windows of anything else in a room


def spoken_rows(words: Words, digits: tuple[int, ...], speaker: str, what: str) -> Array:
    """Rows of recordings or of clips that judge, float32 [clips, conditions, 28, 96]."""
    seed = [SPEAKERS.index(speaker), what == "judged", *digits]
    rng = np.random.default_rng(seed)
    if what == "judged":
        takes = [(a, b) for a in JUDGED for b in JUDGED]
    else:
        takes = [(a, RECORDED[a - 13]) for a in RECORDED]
    made = []
    for pair in takes:
        quiet = np.zeros(int(rng.uniform(0.02, 0.15) * PHONE), np.float32)
        said = [words[speaker, digit, take] for digit, take in zip(digits, pair, strict=False)]
        word = np.concatenate([said[0], *([quiet, said[1]] if len(said) > 1 else [])])
        made += [wake_sounds.scene_rows(word, PHONE, how, rng)[0] for how in CONDITIONS]
    return np.array(made).reshape(len(takes), len(CONDITIONS), -1, 96)


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


def learn_alone(loaded: LoadedModel, room: Room, plan: Plan, seed: int) -> tuple[Clips, Vector]:
    """A room's samples after rounds of hard negatives, and what it learns alone of them."""
    rng, hard = np.random.default_rng((seed, len(room.wake))), np.zeros((0, ROWS, 96), np.float32)
    short = replace(plan, rounds=plan.rounds // 4)
    for _ in range(HARD_ROUNDS):
        vector = average_in_float(loaded, [room.clips(hard, rng)], short, seed)
        top = np.argsort(-probabilities(loaded, vector, room.other, 1))[:HARD]
        hard = np.concatenate([hard, windows(room.other, top + ROWS - 1)])
    clips = room.clips(hard, rng)
    return clips, average_in_float(loaded, [clips], plan, seed)


def probabilities(loaded: LoadedModel, vector: Vector, rows: Array, smooth: int = SMOOTH) -> Array:
    """Of the wake word in each window of `rows` [..., hops, 96], the mean of the last ones."""
    parts = loaded.package.split(vector)
    first, bias = (parts.get(f"hidden_{n}", parts[f"head_{n}"]) for n in ("weight", "bias"))
    columns = first.reshape(ROWS, 96, -1).transpose(1, 0, 2).reshape(96, -1)
    each = (rows @ columns).reshape(*rows.shape[:-1], ROWS, -1)
    hops = rows.shape[-2] - ROWS + 1
    logits = bias + sum(each[..., at : at + hops, at, :] for at in range(ROWS))
    if "hidden_weight" in parts:
        logits = np.maximum(logits, 0) @ parts["head_weight"] + parts["head_bias"]
    sure = 1 / (1 + np.exp(logits[..., 0] - logits[..., 1]))
    padded = np.concatenate([np.zeros_like(sure[..., : smooth - 1]), sure], -1)
    return np.mean([padded[..., at : at + hops] for at in range(smooth)], axis=0)


def triggers(sure: Array, threshold: float) -> list[int]:
    """The hops at which the word is told: from `threshold` on, not within REFRACTORY hops."""
    told: list[int] = []
    for hop in np.flatnonzero(sure >= threshold):
        if not told or hop - told[-1] >= REFRACTORY:
            told.append(int(hop))
    return told
