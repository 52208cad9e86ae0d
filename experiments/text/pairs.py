"""Reads labelled sentence pairs and makes the arrays that a text classifier takes."""

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import TernmeshError

LABELS = ("entailment", "neutral", "contradiction")
COLUMNS = ("id", "label", "premise", "hypothesis")
PAIRS_MAX = 1_000_000


class TextError(TernmeshError):
    """An encoder or sentence pairs cannot be used."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences, and whether the second follows from the first."""

    premise: str
    hypothesis: str
    label: int  # an index into LABELS


def read_pairs(path: Path) -> list[Pair]:
    """The pairs in a .tsv.gz file with the columns id, label, premise, hypothesis; TextError."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if missing := set(COLUMNS) - set(rows.fieldnames or ()):
                raise TextError(f"{path} has no column {', '.join(sorted(missing))}")
            pairs = [_pair(path, row) for row in islice(rows, PAIRS_MAX + 1)]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TextError(f"{path} cannot be read: {error}") from error
    if not 0 < len(pairs) <= PAIRS_MAX:
        raise TextError(f"{path} must hold 1 to {PAIRS_MAX} pairs")
    return pairs


def to_arrays(pairs: Sequence[Pair], tokenizer: Any, tokens: int) -> dict[str, NDArray[Any]]:
    """int32 ids and kinds [pairs, tokens], int32 lengths and int64 target [pairs].

    A pair of more than `tokens` tokens loses those of its longer sentence first.
    """
    encoded = tokenizer(
        [pair.premise for pair in pairs],
        [pair.hypothesis for pair in pairs],
        truncation="longest_first",
        max_length=tokens,
        padding="max_length",
        padding_side="right",
        return_token_type_ids=True,
        return_attention_mask=True,
        return_tensors="np",
    )
    return {
        "ids": encoded["input_ids"].astype(np.int32),
        "kinds": encoded["token_type_ids"].astype(np.int32),
        "lengths": encoded["attention_mask"].sum(1).astype(np.int32),
        "target": np.array([pair.label for pair in pairs], dtype=np.int64),
    }


def _pair(path: Path, row: dict[str, str]) -> Pair:
    label, premise, hypothesis = row["label"], row["premise"], row["hypothesis"]
    if label not in LABELS or premise is None or hypothesis is None:
        raise TextError(f"{path}: {row['id']} needs one of {', '.join(LABELS)} and two sentences")
    return Pair(premise, hypothesis, LABELS.index(label))
