"""The tasks of the transfer experiment: real labelled samples, split between teacher and student.

The teacher's samples have labels that only the teacher sees. The student has a few labels. Both own
the probe set, without labels. Nothing of the test samples is seen before the end.
"""

import csv
import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from examples.voice.keyword import SPEAKERS
from examples.voice.pretrain_keyword import DIGITS
from experiments.text.pairs import LABELS, read_pairs
from models.zoo import fsdd_path

NOTES: Final = {  # by activity; what people write in a diary
    "Walking": ("walked to the shop", "a stroll in the park", "on foot to the office", "slow walk"),
    "Jogging": ("morning run", "jogged along the river", "training for the race", "went running"),
    "Upstairs": ("up to the fourth floor", "climbed the stairs", "carried bags upstairs"),
    "Downstairs": ("down to the cellar", "went downstairs", "took the steps down"),
    "Sitting": ("at the desk", "sat in a meeting", "reading on the sofa", "on a chair, resting"),
    "Standing": ("waited for the bus", "stood in a queue", "standing at the bar"),
}
WHEN: Final = ("", "today", "again", "after lunch", "before work", "with a friend", "in the rain")
NOTES_WRONG = 0.15  # the share of notes about any activity, drawn at random

Rows = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Samples:
    """All samples of a task: what a model is made to see by column, and their classes.

    `parts` are the rows of "train" and "test".
    """

    labels: tuple[str, ...]
    columns: Mapping[str, Any]
    target: Rows
    parts: Mapping[str, Rows]
    sample_bytes: float  # of one labelled sample as it would be sent


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of each part in one run."""

    teacher: Rows
    few: Rows
    probe: Rows
    test: Rows


@dataclass(frozen=True, slots=True)
class Task:
    """Where samples come from, and how many each part gets."""

    name: str
    read: Callable[[Path], Samples]
    teacher: int
    probe: int
    few_of_class: int
    hypervector: int  # trits of the learned encoding


def split(task: Task, samples: Samples, seed: int) -> Split:
    """The parts of a run. The probe set is not the teacher's, and the few labels are of those."""
    rng = np.random.default_rng((seed, 0))
    order = rng.permutation(samples.parts["train"])
    teacher, rest = order[: task.teacher], order[task.teacher :]
    probe, spare = rest[: task.probe], rest[task.probe :]
    target = samples.target[teacher]
    few = [teacher[target == one][: task.few_of_class] for one in range(len(samples.labels))]
    # What neither has seen is tested too where the data brings few test samples.
    test = (
        samples.parts["test"]
        if len(spare) > len(probe)
        else np.concatenate([samples.parts["test"], spare])
    )
    return Split(teacher, np.concatenate(few), probe, test)


def read_digits(_data: Path) -> Samples:
    """Spoken digits of the three speakers that no shipped model has heard."""
    clips, digits, rows = [], [], []
    for name in ("train", "dev"):
        with np.load(fsdd_path(name), allow_pickle=False) as data:
            new = ~np.isin(data["speaker_names"][data["speaker"]], SPEAKERS)
            clips.append(data["x"][new].astype(np.float32) / 255)
            digits.append(data["y"][new].astype(np.int64))
            rows.append(len(digits[-1]))
    columns = {"features": np.concatenate(clips)}
    size = clips[0][0].size + 1.0
    return Samples(DIGITS, columns, np.concatenate(digits), _train_test(*rows), size)


def read_wisdm(data: Path) -> Samples:
    """Windows of a phone's accelerometer: six activities, other people in the test."""
    features, classes, rows = [], [], []
    for name in ("train", "dev"):
        with np.load(data / "sensors" / f"wisdm_{name}.npz", allow_pickle=False) as file:
            features.append(np.nan_to_num(file["x"]))
            classes.append(file["y"].astype(np.int64))
            rows.append(len(classes[-1]))
            labels = tuple(str(one) for one in file["class_names"])
    all_features = np.concatenate(features)
    scaled = (all_features - features[0].mean(0)) / (features[0].std(0) + 1e-6)
    columns = {"features": scaled.clip(-5, 5).astype(np.float32)}
    size = all_features[0].size * 4 + 1.0
    return Samples(labels, columns, np.concatenate(classes), _train_test(*rows), size)


def read_notes(data: Path) -> Samples:
    """The same windows, each with a note about what the person did; the notes are made up."""
    windows = read_wisdm(data)
    rng = np.random.default_rng(4)
    count = len(windows.target)
    others = rng.integers(0, len(windows.labels), count)
    told = np.where(rng.random(count) < NOTES_WRONG, others, windows.target)
    texts = []
    for one in told:
        activity, when = rng.choice(NOTES[windows.labels[one]]), rng.choice(WHEN)
        texts.append(f"{activity} {when}".strip())
    return replace(windows, columns={**windows.columns, "texts": texts})


def read_banking(data: Path) -> Samples:
    """Questions to a bank: 77 intents."""
    rows = [_read_table(data / "banking77" / f"{name}.tsv.gz") for name in ("train", "dev")]
    labels = tuple(sorted({row["label"] for row in rows[0]}))
    texts = [row["text"] for part in rows for row in part]
    target = np.array([labels.index(row["label"]) for part in rows for row in part])
    size = float(np.mean([len(text.encode()) for text in texts])) + 1
    return Samples(labels, {"texts": texts}, target, _train_test(*map(len, rows)), size)


def read_snli(data: Path) -> Samples:
    """Pairs of sentences: does the second follow from the first?"""
    names = ("snli_train_5k", "snli_extra", "snli_dev_2k")
    pairs = [read_pairs(data / "snli" / f"{name}.tsv.gz") for name in names]
    every = [pair for part in pairs for pair in part]
    columns = {
        "texts": [pair.premise for pair in every],
        "seconds": [pair.hypothesis for pair in every],
    }
    target = np.array([pair.label for pair in every])
    size = float(np.mean([len((p.premise + p.hypothesis).encode()) for p in every])) + 2
    train = len(pairs[0]) + len(pairs[1])
    return Samples(LABELS, columns, target, _train_test(train, len(pairs[2])), size)


def _read_table(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def _train_test(train: int, test: int) -> dict[str, Rows]:
    return {"train": np.arange(train), "test": np.arange(train, train + test)}


TASKS: Final = {
    task.name: task
    for task in (
        Task("digits", read_digits, teacher=500, probe=500, few_of_class=1, hypervector=64),
        Task("wisdm", read_wisdm, teacher=1500, probe=1500, few_of_class=3, hypervector=64),
        Task("notes", read_notes, teacher=1500, probe=1500, few_of_class=3, hypervector=64),
        Task("banking", read_banking, teacher=4900, probe=4900, few_of_class=3, hypervector=128),
        Task("snli", read_snli, teacher=4000, probe=3800, few_of_class=50, hypervector=64),
    )
}
