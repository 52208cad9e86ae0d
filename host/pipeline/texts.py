"""Texts as bytes or tokens: what step s reads follows from the seed and s alone; needs no torch."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from host.pipeline.errors import PipelineError

Bytes = npt.NDArray[Any]  # uint8, or int32 where there is a tokenizer
Encode = Callable[[bytes], npt.NDArray[np.int32]]
HELD_OUT = 20  # every such part of a text, its last one, is for validation
TEXT_BYTES_MAX = 1 << 30


class Texts:
    """All texts of a folder: the first 95 % of each to learn from, the rest to judge by."""

    def __init__(self, train: Bytes, validation: Bytes) -> None:
        self.train, self.validation = train, validation

    @property
    def digest(self) -> str:
        """16 hex digits of what is learned from."""
        return hashlib.sha256(self.train.tobytes()).hexdigest()[:16]

    def batch(self, step: int, seed: int, rows: int, length: int) -> npt.NDArray[np.int64]:
        """[rows, length + 1] of step `step`: inputs and, one further, targets."""
        rng = np.random.Generator(np.random.Philox(key=seed, counter=step))
        return _windows(self.train, rng.integers(0, len(self.train) - length, rows), length)

    def judged(self, part: int, rows: int, length: int) -> npt.NDArray[np.int64]:
        """[rows, length + 1] of validation, evenly spread; `part` counts batches from 0."""
        room = len(self.validation) - length
        places = (np.arange(rows) + part * rows) * 7919 * length % room
        return _windows(self.validation, places, length)


def read_texts(folder: Path, length: int, encode: Encode | None = None) -> Texts:
    """The texts of a folder, as bytes unless there is an `encode`; PipelineError if too little."""
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
            f"{folder} has too little text: put *.txt or *.txt.gz files of "
            f"more than {HELD_OUT * length} bytes there"
        )
    return Texts(np.concatenate(train), np.concatenate(validation))


def tokenizer(folder: Path) -> Encode:
    """What makes tokens of UTF-8 text as the model in a folder does; PipelineError."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise PipelineError(
            "tokenizers is not installed: pip install 'ternmesh[pipeline,text]'"
        ) from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise PipelineError(f"{folder} has no tokenizer.json")
    made = Tokenizer.from_file(str(path))

    def encode(text: bytes) -> npt.NDArray[np.int32]:
        ids = made.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
        return np.array(ids, np.int32)

    return encode


def _read(path: Path) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data: bytes = file.read(TEXT_BYTES_MAX + 1)
    if len(data) > TEXT_BYTES_MAX:
        raise PipelineError(f"{path} is longer than {TEXT_BYTES_MAX} bytes: cut it")
    return data


def _windows(data: Bytes, places: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    windows: npt.NDArray[np.int64] = data[places[:, None] + np.arange(length + 1)].astype(np.int64)
    return windows
