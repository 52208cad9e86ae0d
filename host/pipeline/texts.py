"""Texts as bytes or tokens. The batch of a step depends only on the seed and the step."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from host.pipeline.config import PipelineError
from ternmesh.extras import how_to_install
from ternmesh_store.files import open_regular

Bytes = npt.NDArray[Any]  # uint8, or int32 where there is a tokenizer
Encode = Callable[[bytes], npt.NDArray[np.int32]]
HELD_OUT = 20  # the last 1/20 of each text is for validation
TEXT_BYTES_MAX = 1 << 30


class Texts:
    """All texts of a folder: the first 95 % of each for training, the rest for validation."""

    def __init__(self, train: Bytes, validation: Bytes) -> None:
        self.train = train
        self.validation = validation

    @property
    def digest(self) -> str:
        """16 hex digits that identify the training text."""
        return hashlib.sha256(self.train.tobytes()).hexdigest()[:16]

    def batch(self, step: int, seed: int, rows: int, length: int) -> npt.NDArray[np.int64]:
        """The batch of a step, [rows, length + 1]: inputs, and targets one position further."""
        rng = np.random.default_rng((seed, step))
        return _windows(self.train, rng.integers(0, len(self.train) - length, rows), length)

    def validation_batch(self, part: int, rows: int, length: int) -> npt.NDArray[np.int64]:
        """Batch number `part` of the validation text, [rows, length + 1], evenly spread."""
        room = len(self.validation) - length
        places = (np.arange(rows) + part * rows) * 7919 * length % room
        return _windows(self.validation, places, length)


def read_texts(folder: Path, length: int, encode: Encode | None = None) -> Texts:
    """The texts of a folder, as bytes or as tokens of `encode`; PipelineError if too short."""
    paths = sorted([*folder.glob("*.txt"), *folder.glob("*.txt.gz")])
    train, validation = [], []
    for path in paths:
        text = _read(path)
        data: Bytes = encode(text) if encode else np.frombuffer(text, np.uint8)
        end = len(data) - len(data) // HELD_OUT
        train.append(data[:end])
        validation.append(data[end:])
    if sum(map(len, validation)) <= length:
        raise PipelineError(
            f"{folder} has too little text: put *.txt or *.txt.gz files of more than "
            f"{HELD_OUT * length} bytes there"
        )
    return Texts(np.concatenate(train), np.concatenate(validation))


def tokenizer(folder: Path) -> Encode:
    """A function from UTF-8 text to the tokens of the model in a folder; PipelineError."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise PipelineError(
            f"tokenizers is not installed: {how_to_install('pipeline,text')}"
        ) from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise PipelineError(f"{folder} has no tokenizer.json")
    model = Tokenizer.from_file(str(path))

    def encode(text: bytes) -> npt.NDArray[np.int32]:
        ids = model.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
        return np.array(ids, np.int32)

    return encode


def _read(path: Path) -> bytes:
    with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
        data: bytes = file.read(TEXT_BYTES_MAX + 1)
    if len(data) > TEXT_BYTES_MAX:
        raise PipelineError(f"{path} is longer than {TEXT_BYTES_MAX} bytes: divide it")
    return data


def _windows(data: Bytes, places: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    windows: npt.NDArray[np.int64] = data[places[:, None] + np.arange(length + 1)].astype(np.int64)
    return windows
