"""Samples of a source: a bounded buffer on disk, where they wait for their labels.

Arrays are stored as their raw bytes, whose layout follows from the model package. Samples that
were stored for other tensors, or are rows of another front, are deleted. With a front, the bytes of
what its rows were made of follow those of a sample that waits, until it has its label.
"""

import bisect
import json
import logging
import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.gate import REASON_MAX, SetAside, failing
from edge.data.sources import (
    Label,
    Sample,
    class_count,
    convert,
    input_specs,
    sample_bytes,
    target_specs,
    value_counts,
)
from edge.errors import DataError, ModelError, OutOfMemory
from ternmesh.model_package import FRONT, ModelPackage, TensorSpec
from ternmesh_store import checksums
from ternmesh_store.database import Database
from ternmesh_store.store import StoredValues

KEY_MAX = 128  # characters
RATED_MAX = 128  # samples whose certainty is computed at once
CLOCK_SET = 1_735_689_600  # 2025, in seconds since 1970: a clock that is behind was not set
EXPIRE_S, DAY_S = 3600.0, 86_400.0  # time between two looks for samples that are too old
ASIDE_MAX = 256  # samples that are set aside: of more, the oldest are deleted
_TENSORS = "tensors"

Array = NDArray[Any]
Certainty = Callable[[Mapping[str, Array]], NDArray[np.floating[Any]]]
NOT_RATED: Mapping[str, float] = {}

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplayCounters:
    """What happened to the items of a source since the process began."""

    samples: int = 0
    labels: int = 0
    refused: int = 0  # wrong names, shapes, dtypes or labels, NaN, a key that is no short text
    repeated: int = 0  # samples whose key is in the buffer already
    unmatched: int = 0  # labels without a waiting sample
    corrected: int = 0  # labels of a person, or of a moved file, in place of another one
    evicted: int = 0  # labelled samples that were deleted for newer ones
    expired: int = 0  # the same of samples without a label
    outdated: int = 0  # samples of both kinds that were older than `keep_s`


class WallClock:
    """Seconds since 1970, by a clock that may be set by an hour or more."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._began_s = clock()  # or when it was set
        self._offset_s = self._began_s - monotonic()

    def __call__(self) -> float:
        return self._clock()

    def wrong_since(self) -> float | None:
        """Where it was set since the last call, the time from which on it was wrong."""
        now, began_s = self._clock(), self._began_s
        offset_s = now - self._monotonic()
        if abs(offset_s - self._offset_s) <= EXPIRE_S:
            return None
        self._began_s, self._offset_s = now, offset_s
        return began_s


class ReplayBuffer:
    """Samples with a label, and samples that wait for one, in `database`.

    Each of the two kinds has at most `samples_max` samples and `bytes_max` bytes. Beyond that the
    largest class loses its oldest sample, and the most certain sample waits no longer. `certainty`
    returns that of predictions for inputs by name, with a batch axis: 0 to 1, else it is unknown.
    The buffer commits by itself. Methods may raise StoreError.
    """

    def __init__(
        self,
        database: Database,
        package: ModelPackage,
        samples_max: int,
        bytes_max: int,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        tail, outside = package.tail(), package.outside()
        self.capacity = min(samples_max, bytes_max // sample_bytes(tail))
        self.counters = ReplayCounters()
        self.last_refusal = ""
        self.last_label: tuple[str, int] | None = None  # a key and its class
        self.certainty: Certainty | None = None
        self.package = tail
        self.keep_s = 0.0  # the age at which samples are deleted; 0: no limit
        self._clock = WallClock(clock, monotonic)
        self._expired_at = 0.0
        self._inputs = input_specs(tail)
        self._raw = input_specs(outside) if package.front else ()
        self._targets = target_specs(tail)
        self._counts = value_counts(tail)
        self._size = _layout(self._inputs).itemsize  # bytes of inputs, without those of `_raw`
        raw_size = _layout(self._raw).itemsize
        self._waiting_max = min(samples_max, bytes_max // (sample_bytes(tail) + raw_size))
        self._database = database
        self._labelled: list[int] = []  # ids, oldest first
        self.classes: dict[int, int] = {}  # of labelled samples by id; -1: the model has none
        self._waiting: dict[int, float | None] = {}  # certainties, oldest first; None: not rated
        self._fresh: list[int] = []  # ids that got a label since the last `add`
        self._relabelled: set[int] = set()  # ids that wait and had a label: a later one is no news
        self._moved = ""  # the key of the newest file that was moved: a label comes with it
        self._contents: dict[int, int] | None = None  # ids by CRC-32 of inputs; None: not read
        self.values = StoredValues(database, "replay_value")  # those of others are committed, too
        self._id = 0  # of the newest sample

    def load(self, *, may_clear: bool = True) -> None:
        """Read what is stored, and delete samples of other tensors. DataError if it may not.

        DataError also where no sample fits.
        """
        if self._waiting_max < 1:
            size = sample_bytes(self.package) + _layout(self._raw).itemsize
            raise DataError(
                f"one sample of {self.package.name} has {size} bytes, more than "
                "data.replay_bytes_max: raise that"
            )
        specs: list[Any] = [asdict(spec) for spec in self.package.batch_inputs]
        if self._raw:
            specs.append(self.package.files[FRONT])
        tensors = json.dumps(specs).encode()
        if (stored := self.values.get(_TENSORS)) != tensors:
            if stored and not may_clear:
                raise DataError(f"its samples are not of {self.package.name}: start the node first")
            sql = "SELECT COUNT(*) FROM replay_sample WHERE targets IS NOT NULL"
            if lost := self._database.rows(sql)[0][0]:
                _log.warning("%d labelled samples are deleted: they are of another model", lost)
            self._database.write("DELETE FROM replay_sample")
            self.values.put(_TENSORS, tensors)
        samples = self._database.rows(
            "SELECT id, certainty, had_label, targets FROM replay_sample "
            "WHERE set_aside IS NULL ORDER BY id"
        )
        self.classes = {
            row: self._class_of(targets) for row, _, _, targets in samples if targets is not None
        }
        self._labelled = list(self.classes)
        waiting = [sample for sample in samples if sample[0] not in self.classes]
        self._relabelled = {row for row, _, had_label, _ in waiting if had_label}
        self._waiting = {row: 0.0 if had else certainty for row, certainty, had, _ in waiting}
        self._id = self._database.rows("SELECT COALESCE(MAX(id), 0) FROM replay_sample")[0][0]
        self._trim()  # the settings may allow less than before
        self._database.commit()

    def __len__(self) -> int:
        return len(self._labelled)

    @property
    def waiting(self) -> int:
        """Samples without a label."""
        return len(self._waiting)

    def add(
        self, items: Sequence[Sample | Label], certainties: Mapping[str, float] = NOT_RATED
    ) -> NDArray[np.int64]:
        """Store items in one commit; returns the indexes of the samples that got a label.

        Items that do not fit the model are counted and left out. `certainties` are by key.
        """
        for item in items:
            self._take(item, certainties)
        self._trim()
        now = self._clock()
        if (wrong_since := self._clock.wrong_since()) is not None:
            sql = "UPDATE replay_sample SET added_at = 0 WHERE added_at >= ?"
            self._database.write(sql, int(wrong_since))
        if self.keep_s and abs(now - self._expired_at) >= EXPIRE_S:
            self._expired_at = now
            self.counters.outdated += self._delete(self.older_than(self.keep_s))
        self._database.commit()
        labelled = sorted(row for row in self._fresh if row in self.classes)
        self._fresh.clear()
        places = [bisect.bisect_left(self._labelled, row) for row in labelled]
        return np.array(places, np.int64)

    def rate(self) -> None:
        """Compute the certainty of the newest samples that wait, for another adapter.

        It stays in memory: a write for each of them in each round would wear a disk out.
        """
        rows = [*self._waiting][-RATED_MAX:]
        if self.certainty is None or not rows:
            return
        try:
            values = self.certainty(self.inputs(rows))
        except ModelError as error:
            _log.warning("the certainty of samples is not computed anew: %s", error)
            if not isinstance(error, OutOfMemory):
                self._set_aside(failing(np.array(rows), self._predict))
                self._database.commit()
            return
        self._waiting |= {row: float(v) for row, v in zip(rows, values, strict=True) if 0 <= v <= 1}

    def label(self, *labels: Label) -> int:
        """Take labels in one commit, also in place of others; how many have a sample. DataError."""
        count = sum(self._take_label(label, corrects=True) for label in labels)
        self._database.commit()
        return count

    def unlabel(self, rows: Iterable[int]) -> int:
        """Take labels back in one commit; returns their number.

        These samples are the next to be asked for, and make no room. A later label of one is no
        news for the evaluation, unless the one before was not read yet.
        """
        unlabelled = {row for row in rows if row in self.classes}
        unread = unlabelled.intersection(self._fresh)
        for row in unlabelled:
            sql = "UPDATE replay_sample SET targets = NULL, certainty = NULL, had_label = ? "
            self._database.write(sql + "WHERE id = ?", row not in unread, row)
            del self.classes[row]
        self._labelled = [row for row in self._labelled if row in self.classes]
        self._fresh = [row for row in self._fresh if row not in unread]
        self._relabelled |= unlabelled - unread
        self._waiting = dict(sorted((self._waiting | dict.fromkeys(unlabelled, 0.0)).items()))
        self._trim()
        self._database.commit()
        return len(unlabelled)

    def forget(self, rows: Iterable[int]) -> int:
        """Delete samples, and all their bytes in the file and its WAL; returns their number."""
        count = self._delete(rows)
        self._database.compact()
        return count

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Use these samples, by index, no longer; they stay until somebody deletes them."""
        self._set_aside({self._labelled[at]: reason for at, reason in reasons.items()})
        self._database.commit()

    @property
    def aside(self) -> SetAside:
        """The samples that the model cannot compute."""
        found = SetAside()
        for _, key, reason in self._rows_aside():
            found.add(key, reason)
        return found

    def rows_aside(self) -> list[int]:
        """Their ids, the oldest first."""
        return [row for row, _, _ in self._rows_aside()]

    def groups(self) -> dict[int | None, list[int]]:
        """The ids of samples by class, the oldest first; None: those that wait for a label."""
        groups: dict[int | None, list[int]] = {None: [*self._waiting]} if self._waiting else {}
        for row in self._labelled:
            groups.setdefault(self.classes[row], []).append(row)
        return groups

    def sizes(self) -> tuple[int, int]:
        """The bytes of a sample that waits, and of one with a label."""
        return self._size + _layout(self._raw).itemsize, self._size + _layout(
            self._targets
        ).itemsize

    def key(self, row: int) -> str:
        return str(self._database.rows("SELECT key FROM replay_sample WHERE id = ?", row)[0][0])

    def find(self, key: str) -> int:
        """The id of the sample with this key; 0 where there is none."""
        sql = "SELECT id FROM replay_sample WHERE key = ?"
        rows = self._database.rows(sql, key) if _is_utf8(key) else []
        return rows[0][0] if rows else 0

    def age_s(self, row: int) -> float | None:
        """Where the clock was not set, a sample is as old as the next one at least."""
        now = self._clock()
        times = now >= CLOCK_SET and self._database.rows(
            "SELECT added_at FROM replay_sample WHERE id >= ? AND added_at ORDER BY id LIMIT 1", row
        )
        return max(0.0, now - times[0][0]) if times else None

    def older_than(self, age_s: float) -> list[int]:
        """The ids of older samples; none while the clock is not set."""
        now, is_older, older = self._clock(), False, []
        if now >= CLOCK_SET:
            sql = "SELECT id, added_at FROM replay_sample ORDER BY id DESC"
            for row, added_at in self._database.rows(sql):
                # Without a time of its own, a sample is as old as the next one at least.
                is_older = added_at < now - age_s if added_at else is_older
                if is_older:
                    older.append(row)
        return older

    def certainty_of(self, row: int) -> float | None:
        """That of the prediction for a sample that waits; None where it is unknown."""
        return self._waiting[row]

    def least_certain(self) -> list[int]:
        """The ids of waiting samples, the least certain and then the newest first."""
        # One that nothing has rated comes after all others: it makes room first.
        known = {row: math.inf if rated is None else rated for row, rated in self._waiting.items()}
        return sorted(reversed(known), key=known.__getitem__)

    def inputs(self, rows: Sequence[int]) -> dict[str, Array]:
        """The inputs of samples by name, with a batch axis."""
        return _unpack([inputs[: self._size] for inputs, _ in self._packed(rows)], self._inputs)

    def shown(self, rows: Sequence[int]) -> list[Array]:
        """What people see of samples: the first input, before a front while there still is that."""
        shown = []
        for inputs, _ in self._packed(rows):
            has_raw = len(inputs) > self._size
            part, specs = (inputs[self._size :], self._raw) if has_raw else (inputs, self._inputs)
            shown.append(next(iter(_unpack([part], specs).values()))[0])
        return shown

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, Array]:
        """The arrays of samples by name, with a batch axis. Index 0 is the oldest sample."""
        packed = self._packed([self._labelled[index] for index in indexes])
        inputs = _unpack([inputs[: self._size] for inputs, _ in packed], self._inputs)
        return inputs | _unpack([targets for _, targets in packed], self._targets)

    def _rows_aside(self) -> list[tuple[int, str, str]]:
        sql = "SELECT id, key, set_aside FROM replay_sample WHERE set_aside IS NOT NULL ORDER BY id"
        return self._database.rows(sql)

    def _set_aside(self, reasons: Mapping[int, str]) -> None:
        for row, reason in reasons.items():
            _log.warning("the sample %s is set aside: %s", self.key(row), reason)
            sql = "UPDATE replay_sample SET set_aside = ? WHERE id = ?"
            self._database.write(sql, reason[:REASON_MAX], row)
        self._drop(reasons)
        self._delete(self.rows_aside()[:-ASIDE_MAX])

    def _predict(self, rows: NDArray[np.int64]) -> str:
        """Raise ModelError where the model cannot compute these samples."""
        assert self.certainty is not None
        self.certainty(self.inputs(rows.tolist()))
        return ""

    def _packed(self, rows: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """The stored inputs and targets of samples."""
        sql = (
            "SELECT id, inputs, targets FROM replay_sample "
            "WHERE id IN (SELECT value FROM json_each(?))"
        )
        packed = {row: parts for row, *parts in self._database.rows(sql, json.dumps(rows))}
        return [packed[row] for row in rows]

    def _take(self, item: Sample | Label, certainties: Mapping[str, float]) -> None:
        try:
            if isinstance(item, Label):
                self._take_label(item, corrects=item.key == self._moved)
            elif isinstance(item, Sample):
                self._take_sample(item, certainties)
            else:
                raise DataError(f"a source yields Sample and Label, not {item!r:.100}")
        except (DataError, TypeError, ValueError) as error:  # the source is the user's code
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """Count an item that is not stored."""
        self.counters.refused += 1
        self.last_refusal = str(error)

    def _take_sample(self, sample: Sample, certainties: Mapping[str, float]) -> None:
        packed = _pack(sample.key, sample.inputs, self._inputs, self._counts)
        if self.find(sample.key):
            self.counters.repeated += 1
            return
        if sample.file and (known := self._find_content(packed)):
            self._moved = "" if self.key(known).startswith(f"{sample.file}@") else sample.key
            self._database.write("UPDATE replay_sample SET key = ? WHERE id = ?", sample.key, known)
            self.counters.repeated += 1
            return
        self._id += 1
        now, certainty = self._clock(), certainties.get(sample.key)
        added_at = int(now) if now >= CLOCK_SET else 0
        raw = b"" if sample.raw is None else _pack(sample.key, sample.raw, self._raw, {})
        row = (self._id, sample.key, added_at, certainty, False, None, packed + raw, None)
        self._database.insert("replay_sample", *row)
        self._waiting[self._id] = certainty
        if self._contents is not None:
            self._contents[zlib.crc32(packed)] = self._id
        self.counters.samples += 1

    def _find_content(self, packed: bytes) -> int:
        """The id of the sample with these inputs; 0 where there is none."""
        if self._contents is None:
            sql = f"SELECT {checksums.FUNCTION}(substr(inputs, 1, ?)), id FROM replay_sample"
            self._contents = dict(self._database.rows(sql, self._size))
        row = self._contents.get(zlib.crc32(packed), 0)
        same = "SELECT id FROM replay_sample WHERE id = ? AND substr(inputs, 1, ?) = ?"
        return row if self._database.rows(same, row, self._size, packed) else 0

    def _take_label(self, label: Label, *, corrects: bool = False) -> bool:
        """Store a label; False where no sample takes it."""
        packed = _pack(label.key, label.targets, self._targets, self._counts)
        row = self.find(label.key)
        is_new = row in self._waiting
        if not is_new and not (row in self.classes and corrects):
            self.counters.unmatched += 1
            return False
        self.counters.corrected += not is_new and self._packed([row])[0][1] != packed
        self._database.write("UPDATE replay_sample SET targets = ? WHERE id = ?", packed, row)
        if self._raw and is_new:  # nobody needs what the rows were made of any more
            sql = "UPDATE replay_sample SET inputs = substr(inputs, 1, ?) WHERE id = ?"
            self._database.write(sql, self._size, row)
        self.classes[row] = self._class_of(packed)
        self.last_label = (label.key, self.classes[row])
        if is_new:
            del self._waiting[row]
            bisect.insort(self._labelled, row)
            if row in self._relabelled:
                self._relabelled.remove(row)
            else:
                self._fresh.append(row)
        self.counters.labels += is_new
        return True

    def _class_of(self, targets: bytes) -> int:
        has_class = class_count(self.package) > 0
        return int(np.frombuffer(targets, self._targets[0].dtype)[0]) if has_class else -1

    def _trim(self) -> None:
        """Delete samples beyond the limits."""
        if self.waiting > self._waiting_max:
            self.counters.expired += self._delete(self.least_certain()[self._waiting_max :])
        excess = len(self._labelled) - self.capacity
        if excess > 0:
            groups = [deque(rows) for label, rows in self.groups().items() if label is not None]
            oldest = [max(groups, key=len).popleft() for _ in range(excess)]
            self.counters.evicted += self._delete(oldest)

    def _delete(self, rows: Iterable[int]) -> int:
        """Delete samples; returns their number."""
        deleted = set(rows)
        for row in deleted:
            self._database.write("DELETE FROM replay_sample WHERE id = ?", row)
        if self._contents and deleted:
            self._contents = {h: row for h, row in self._contents.items() if row not in deleted}
        self._drop(deleted)
        return len(deleted)

    def _drop(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._waiting.pop(row, None)
            self._relabelled.discard(row)
            self.classes.pop(row, None)
        if len(self._labelled) != len(self.classes):
            self._labelled = [row for row in self._labelled if row in self.classes]


def _is_utf8(text: str) -> bool:
    """Not so are bytes of a command line that are no UTF-8, and halves of a pair in JSON."""
    return text.encode(errors="replace").decode() == text


def _pack(
    key: str, arrays: Mapping[str, Array], specs: Sequence[TensorSpec], counts: Mapping[str, int]
) -> bytes:
    """The bytes of one sample's arrays in the order of `specs`. DataError where they do not fit."""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX or not _is_utf8(key):
        raise DataError(f"a key is a text of 1 to {KEY_MAX} characters of UTF-8, not {key!r:.100}")
    if set(arrays) != {spec.name for spec in specs}:
        wanted = ", ".join(spec.name for spec in specs)
        raise DataError(f"{key} has {', '.join(map(str, arrays))}: it must have {wanted}")
    parts = []
    for spec in specs:
        array = np.asarray(arrays[spec.name])
        if array.shape != spec.shape[1:]:
            raise DataError(f"{key}: {spec.name} has shape {array.shape}, not {spec.shape[1:]}")
        what = f"{key}: {spec.name}"
        parts.append(convert(array, spec, what, count=counts.get(spec.name)).tobytes())
    return b"".join(parts)


def _unpack(packed: Sequence[bytes], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The reverse of `_pack` for several samples: arrays with a batch axis."""
    table = np.frombuffer(b"".join(packed), dtype=_layout(specs))
    return {spec.name: np.ascontiguousarray(table[spec.name]) for spec in specs}


def _layout(specs: Sequence[TensorSpec]) -> np.dtype[Any]:
    """The layout of one sample's bytes."""
    return np.dtype([(spec.name, spec.dtype, spec.shape[1:]) for spec in specs])
