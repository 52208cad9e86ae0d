"""Samples of a source: a bounded buffer on disk where they wait for their labels, and its feed.

Arrays are stored as their raw bytes, whose layout follows from the model package. Samples that
were stored for other tensors are deleted.
"""

import bisect
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.sources import (
    Label,
    Sample,
    Source,
    convert,
    input_specs,
    label_classes,
    sample_bytes,
    target_specs,
)
from edge.errors import DataError
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh_store.database import Database
from ternmesh_store.store import StoredValues

KEY_MAX = 128  # characters
ID_MAX = 1 << 62
_TENSORS = "tensors"

Array = NDArray[Any]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplayCounters:
    """What happened to the items of a source since the process began."""

    samples: int = 0
    labels: int = 0
    refused: int = 0  # wrong names, shapes, dtypes or labels, NaN, a key that is no short text
    repeated: int = 0  # samples whose key is in the buffer already
    unmatched: int = 0  # labels without a waiting sample
    evicted: int = 0  # labelled samples that were deleted for newer ones
    expired: int = 0  # the same of samples without a label


class ReplayBuffer:
    """The newest samples with a label, and the newest that wait for one, in `database`.

    Each of the two kinds has at most `samples_max` samples and `bytes_max` bytes. The buffer
    commits by itself. Methods may raise StoreError.
    """

    def __init__(
        self, database: Database, package: ModelPackage, samples_max: int, bytes_max: int
    ) -> None:
        self.capacity = min(samples_max, bytes_max // sample_bytes(package))
        self.counters = ReplayCounters()
        self.last_refusal = ""
        self._package = package
        self._inputs = input_specs(package)
        self._targets = target_specs(package)
        self._classes = label_classes(package)
        self._database = database
        self._labelled: list[int] = []  # ids, oldest first
        self._waiting: list[int] = []
        self._id = 0  # of the newest sample

    def load(self) -> None:
        """Read what an earlier process has stored. DataError where no sample fits."""
        if self.capacity < 1:
            raise DataError(
                f"one sample of {self._package.name} has {sample_bytes(self._package)} bytes, more "
                "than data.replay_bytes_max: raise that"
            )
        tensors = json.dumps([asdict(spec) for spec in self._package.batch_inputs]).encode()
        values = StoredValues(self._database, "replay_value")
        if values.get(_TENSORS) != tensors:
            self._database.write("DELETE FROM replay_sample")
            values.put(_TENSORS, tensors)
        self._drop_damaged()
        rows = self._database.rows("SELECT id, targets IS NULL FROM replay_sample ORDER BY id")
        self._labelled = [row for row, is_waiting in rows if not is_waiting]
        self._waiting = [row for row, is_waiting in rows if is_waiting]
        self._id = rows[-1][0] if rows else 0
        self._trim()  # the settings may allow less than before
        self._database.commit()

    def __len__(self) -> int:
        return len(self._labelled)

    @property
    def waiting(self) -> int:
        """Samples without a label."""
        return len(self._waiting)

    def add(self, items: Sequence[Sample | Label]) -> NDArray[np.int64]:
        """Store items in one commit; returns the indexes of the samples that got a label.

        Items that do not fit the model are counted and left out.
        """
        labelled = sorted(row for item in items if (row := self._take(item)) is not None)
        self._trim()
        self._database.commit()
        kept = [row for row in labelled if row >= self._labelled[0]]
        return np.searchsorted(self._labelled, kept)

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, Array]:
        """The arrays of samples by name, with a batch axis. Index 0 is the oldest sample."""
        rows = [self._labelled[index] for index in indexes]
        parts = [
            self._database.rows("SELECT inputs, targets FROM replay_sample WHERE id = ?", row)[0]
            for row in rows
        ]
        inputs = _unpack([inputs for inputs, _ in parts], self._inputs)
        return inputs | _unpack([targets for _, targets in parts], self._targets)

    def _take(self, item: Sample | Label) -> int | None:
        """Store an item; returns the id of the sample that it is the label of."""
        try:
            if isinstance(item, Label):
                return self._take_label(item)
            if not isinstance(item, Sample):
                raise DataError(f"a source yields Sample and Label, not {item!r:.100}")
            self._take_sample(item)
        except (DataError, TypeError, ValueError) as error:  # the source is the user's code
            self.counters.refused += 1
            self.last_refusal = str(error)
        return None

    def _take_sample(self, sample: Sample) -> None:
        packed = _pack(sample.key, sample.inputs, self._inputs, {})
        if self._database.rows("SELECT 1 FROM replay_sample WHERE key = ?", sample.key):
            self.counters.repeated += 1
            return
        self._id += 1
        self._database.insert("replay_sample", self._id, sample.key, packed, None)
        self._waiting.append(self._id)
        self.counters.samples += 1

    def _take_label(self, label: Label) -> int | None:
        packed = _pack(label.key, label.targets, self._targets, self._classes)
        found = self._database.rows(
            "SELECT id FROM replay_sample WHERE key = ? AND targets IS NULL", label.key
        )
        if not found:
            self.counters.unmatched += 1
            return None
        row: int = found[0][0]
        self._database.write("UPDATE replay_sample SET targets = ? WHERE id = ?", packed, row)
        del self._waiting[bisect.bisect_left(self._waiting, row)]
        bisect.insort(self._labelled, row)
        self.counters.labels += 1
        return row

    def _drop_damaged(self) -> None:
        """Delete samples that were never written so: SQLite checks its pages, not their bits."""
        self._database.write(
            "DELETE FROM replay_sample WHERE length(inputs) != ? OR length(targets) != ? "
            "OR id NOT BETWEEN 1 AND ?",
            _layout(self._inputs).itemsize,
            _layout(self._targets).itemsize,
            ID_MAX,
        )

    def _trim(self) -> None:
        """Delete the oldest samples beyond the limits."""
        self.counters.evicted += self._drop_oldest(self._labelled)
        self.counters.expired += self._drop_oldest(self._waiting)

    def _drop_oldest(self, rows: list[int]) -> int:
        excess = rows[: max(0, len(rows) - self.capacity)]
        for row in excess:
            self._database.write("DELETE FROM replay_sample WHERE id = ?", row)
        del rows[: len(excess)]
        return len(excess)


def _pack(
    key: str, arrays: Mapping[str, Array], specs: Sequence[TensorSpec], classes: Mapping[str, int]
) -> bytes:
    """The bytes of one sample's arrays in the order of `specs`. DataError where they do not fit."""
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
        what = f"{key}: {spec.name}"
        parts.append(convert(array, spec, what, classes=classes.get(spec.name)).tobytes())
    return b"".join(parts)


def _unpack(packed: Sequence[bytes], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The reverse of `_pack` for several samples: arrays with a batch axis."""
    table = np.frombuffer(b"".join(packed), dtype=_layout(specs))
    return {spec.name: np.ascontiguousarray(table[spec.name]) for spec in specs}


def _layout(specs: Sequence[TensorSpec]) -> np.dtype[Any]:
    """The layout of one sample's bytes."""
    return np.dtype([(spec.name, spec.dtype, spec.shape[1:]) for spec in specs])


class Feed:
    """Polls `source` every `poll_s` and stores its items in `buffer`.

    An error of the source is counted, and the source is polled again: a sensor may recover.
    """

    def __init__(self, source: Source, buffer: ReplayBuffer, poll_s: float) -> None:
        self.buffer = buffer
        self.failures = 0
        self.last_failure = ""
        self._source = source
        self._poll_s = poll_s
        self._due: float | None = None

    def poll(self, now: float) -> NDArray[np.int64]:
        """Poll the source if it is time; returns the buffer's indexes of newly labelled samples."""
        if self.wait_s(now) > 0.0:
            return np.empty(0, dtype=np.int64)
        self._due = now + self._poll_s
        try:
            items = list(self._source.poll(now))
        except Exception as error:  # noqa: BLE001  (the user's code may raise anything)
            failure = f"{type(error).__name__}: {error}"
            if failure != self.last_failure:
                _log.warning("the source failed: %s", failure)
            self.failures += 1
            self.last_failure = failure
            items = []
        return self.buffer.add(items)

    def wait_s(self, now: float) -> float:
        """Seconds until the source is polled again."""
        return 0.0 if self._due is None else max(0.0, self._due - now)
