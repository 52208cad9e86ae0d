"""A bounded buffer of samples on disk that waits for their labels.

Arrays are stored as their plain bytes; what they mean follows from the bundle, and what was stored
for other tensors is deleted.
"""

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import DataError
from edge.sources import Label, Sample, convert, input_specs, sample_bytes, target_specs
from ternmesh.bundle import Bundle, TensorSpec
from ternmesh_store.database import Database, Schema

SCHEMA = Schema(
    application=0x544D5250,  # "TMRP"
    version=1,
    statements=(
        """CREATE TABLE sample (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,
            inputs BLOB NOT NULL,
            targets BLOB
        )""",
    ),
)
KEY_MAX = 128  # characters
ID_MAX = 1 << 62
_TENSORS = "tensors"

Array = NDArray[Any]


@dataclass(slots=True)
class ReplayCounters:
    """What happened to items since the process began."""

    samples: int = 0
    labels: int = 0
    refused: int = 0  # wrong names, shapes or dtypes, NaN, or a key that is not a short text
    repeated: int = 0  # a sample whose key is here already
    unmatched: int = 0  # a label without a waiting sample
    evicted: int = 0  # labelled samples that made room
    expired: int = 0  # samples that made room and never had a label


class ReplayBuffer:
    """The newest labelled samples, as many as fit; besides them the newest that still wait.

    Each of the two kinds has at most `samples_max` samples of at most `bytes_max` bytes together.
    Methods may raise StoreError.
    """

    def __init__(self, path: Path, bundle: Bundle, samples_max: int, bytes_max: int) -> None:
        self.capacity = min(samples_max, bytes_max // sample_bytes(bundle))
        self.counters = ReplayCounters()
        self.last_refusal = ""
        self._bundle = bundle
        self._inputs, self._targets = input_specs(bundle), target_specs(bundle)
        self._database = Database(path, SCHEMA)
        self._labelled: list[int] = []  # ids, oldest first
        self._waiting: list[int] = []
        self._id = 0  # the last one given

    def open(self) -> None:
        """Open or make the file; what an earlier process committed is there."""
        if self.capacity < 1:
            raise DataError(
                f"one sample of {self._bundle.name} has {sample_bytes(self._bundle)} bytes, more "
                "than data.replay_bytes_max: raise that"
            )
        self._database.open()
        self._load()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._database.close()

    def __len__(self) -> int:
        return len(self._labelled)

    @property
    def waiting(self) -> int:
        """Samples without a label."""
        return len(self._waiting)

    def add(self, items: Sequence[Sample | Label]) -> NDArray[np.int64]:
        """Take items, all in one commit; returns the indexes of the samples that got a label.

        Items that do not fit the model are counted and left out.
        """
        labelled = sorted(row for item in items if (row := self._take(item)) is not None)
        self._trim()
        self._database.commit()
        kept = [row for row in labelled if row >= self._labelled[0]]
        return np.searchsorted(self._labelled, kept)

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, Array]:
        """The arrays of the given samples (0 is the oldest) by name."""
        rows = [self._labelled[index] for index in indexes]
        parts = [
            self._database.rows("SELECT inputs, targets FROM sample WHERE id = ?", row)[0]
            for row in rows
        ]
        inputs = _unpack([inputs for inputs, _ in parts], self._inputs)
        return inputs | _unpack([targets for _, targets in parts], self._targets)

    def _take(self, item: Sample | Label) -> int | None:
        """The id of the sample that `item` gave its label to, if it did."""
        try:
            if isinstance(item, Label):
                return self._take_label(item)
            if not isinstance(item, Sample):
                raise DataError(f"a source yields Sample and Label, not {item!r:.100}")
            self._take_sample(item)
        except (DataError, TypeError, ValueError) as error:  # a source is the user's code
            self.counters.refused += 1
            self.last_refusal = str(error)
        return None

    def _take_sample(self, sample: Sample) -> None:
        packed = _pack(sample.key, sample.inputs, self._inputs)
        if self._database.rows("SELECT 1 FROM sample WHERE key = ?", sample.key):
            self.counters.repeated += 1
            return
        self._id += 1
        self._database.write(
            "INSERT INTO sample VALUES (?, ?, ?, NULL)", self._id, sample.key, packed
        )
        self._waiting.append(self._id)
        self.counters.samples += 1

    def _take_label(self, label: Label) -> int | None:
        packed = _pack(label.key, label.targets, self._targets)
        found = self._database.rows(
            "SELECT id FROM sample WHERE key = ? AND targets IS NULL", label.key
        )
        if not found:
            self.counters.unmatched += 1
            return None
        row: int = found[0][0]
        self._database.write("UPDATE sample SET targets = ? WHERE id = ?", packed, row)
        del self._waiting[bisect.bisect_left(self._waiting, row)]
        bisect.insort(self._labelled, row)
        self.counters.labels += 1
        return row

    def _load(self) -> None:
        tensors = json.dumps([asdict(spec) for spec in self._bundle.batch_inputs]).encode()
        if self._database.get(_TENSORS) != tensors:
            self._database.write("DELETE FROM sample")
            self._database.put(_TENSORS, tensors)
        self._drop_damaged()
        rows = self._database.rows("SELECT id, targets IS NULL FROM sample ORDER BY id")
        self._labelled = [row for row, is_waiting in rows if not is_waiting]
        self._waiting = [row for row, is_waiting in rows if is_waiting]
        self._id = rows[-1][0] if rows else 0
        self._trim()  # The settings may have shrunk.
        self._database.commit()

    def _drop_damaged(self) -> None:
        """Delete what no version of us has written: SQLite checks its pages, not their bits."""
        self._database.write(
            "DELETE FROM sample WHERE length(inputs) != ? OR length(targets) != ? "
            "OR id NOT BETWEEN 1 AND ?",
            _layout(self._inputs).itemsize,
            _layout(self._targets).itemsize,
            ID_MAX,
        )

    def _trim(self) -> None:
        """Delete the oldest of what is too much."""
        self.counters.evicted += self._drop_oldest(self._labelled)
        self.counters.expired += self._drop_oldest(self._waiting)

    def _drop_oldest(self, rows: list[int]) -> int:
        excess = rows[: max(0, len(rows) - self.capacity)]
        self._database.write_many("DELETE FROM sample WHERE id = ?", [(row,) for row in excess])
        del rows[: len(excess)]
        return len(excess)


def _pack(key: str, arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> bytes:
    """The bytes of one sample's arrays in the order of `specs`; DataError where they do not fit."""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX:
        raise DataError(f"a key is a text of 1 to {KEY_MAX} characters, not {key!r:.100}")
    if set(arrays) != {spec.name for spec in specs}:
        wanted = ", ".join(spec.name for spec in specs)
        raise DataError(f"{key} has {', '.join(map(str, arrays))}: it must have {wanted}")
    parts = []
    for spec in specs:
        array = np.asarray(arrays[spec.name])
        if array.shape != spec.shape[1:]:
            raise DataError(f"{key}: {spec.name} has shape {array.shape}, not {spec.shape[1:]}")
        parts.append(convert(array, spec, f"{key}: {spec.name}").tobytes())
    return b"".join(parts)


def _unpack(packed: Sequence[bytes], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The reverse of `_pack` for several samples: arrays with a batch axis."""
    table = np.frombuffer(b"".join(packed), dtype=_layout(specs))
    return {spec.name: np.ascontiguousarray(table[spec.name]) for spec in specs}


def _layout(specs: Sequence[TensorSpec]) -> np.dtype[Any]:
    """How the arrays of one sample lie in their bytes."""
    return np.dtype([(spec.name, spec.dtype, spec.shape[1:]) for spec in specs])
