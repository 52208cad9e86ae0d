"""What a sensor has recorded already: a file or a folder as samples to train and to evaluate on.

They are .npz files in the state folder, which the board reads beside its source.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from edge.data.live.csv_file import CsvSource
from edge.data.live.folder import FolderSource
from edge.data.live.options import CsvOptions, FolderOptions, read_options
from edge.data.sources import BYTES_MAX, HELD_OUT, HISTORY, TRAIN, Arrays, Label, sample_bytes
from edge.errors import DataError, NoData
from ternmesh.config import Table
from ternmesh.model_package import ModelPackage
from ternmesh_service.status import reasons
from ternmesh_store.files import PRIVATE, make_private_folder, unfinished_file

RATE_MAX = 1000.0  # samples in one poll
SAMPLE_COST = 1024  # bytes of memory beside a sample's numbers
UNLABELLED, NO_LABEL = "without a label", "no label"  # as the second, they are counted already
WAITING_MAX = 1 << 14  # samples whose label may still come


@dataclass(frozen=True, slots=True)
class History:
    """Labelled samples in their order, and how many things were left out, by reason."""

    samples: Sequence[Arrays]
    left_out: dict[str, int]
    first: dict[str, str]  # what was left out first, by reason


def read_history(path: Path, package: ModelPackage, options: Table) -> History:
    """The labelled samples in a CSV file or in a folder of sound, numbers or pictures; DataError.

    `options` are those of the source of rows that goes on with them.
    """
    package = package.outside()
    source = _source(path, package, options)
    inputs: dict[str, Arrays] = {}
    samples: list[Arrays] = []
    is_first, now = True, 0.0
    samples_max = BYTES_MAX // (SAMPLE_COST + sample_bytes(package))
    try:
        while is_first or source.has_more:
            for item in source.poll(now):
                if not isinstance(item, Label):
                    inputs[item.key] = item.inputs
                elif item.key in inputs:
                    samples.append({**inputs.pop(item.key), **item.targets})
                if len(inputs) > WAITING_MAX:
                    _leave_out(source, inputs)
            if len(samples) > samples_max:
                raise DataError(f"{path} has more than {samples_max} samples: import a part of it")
            is_first, now = False, now + 1.0
        while inputs:
            _leave_out(source, inputs)
        status = source.status()
    finally:
        source.close()
    left_out = Counter(status.left_out)
    if isinstance(source, CsvSource) and not samples and not left_out[UNLABELLED]:
        left_out[f"file without the {source.mapper.rows} good rows that one sample takes"] = 1
    left_out[UNLABELLED] -= sum(count for why, count in left_out.items() if NO_LABEL in why)
    first = {why: value for why, value in status.first.items() if left_out[why] > 0}
    return History(samples, dict(+left_out), first)


def write_history(
    folder: Path, history: History, share: float, *, by_order: bool
) -> tuple[int, int]:
    """Write the sets of a state folder; how many samples each has. NoData for too few.

    The last `share` is held out, or with `by_order` false as much by chance that the content
    decides: neighbours in time are alike, and must not be in both.
    """
    if len(history.samples) < 2:
        why = "".join(f"; left out: {one}" for one in reasons(history.left_out, history.first))
        raise NoData(f"{len(history.samples)} samples have a label: two are the least{why}")
    order = list(range(len(history.samples)))
    if not by_order:
        order.sort(key=lambda at: _digest(history.samples[at]))
    count = min(len(order) - 1, max(1, round(share * len(order))))
    make_private_folder(folder / HISTORY)
    for name, chosen in ((TRAIN, order[:-count]), (HELD_OUT, order[-count:])):
        rows = [history.samples[at] for at in chosen]
        arrays: dict[str, Any] = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        unfinished = unfinished_file(folder / HISTORY / name, PRIVATE)
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
        unfinished.replace(folder / HISTORY / name)
    return len(order) - count, count


def _source(path: Path, package: ModelPackage, options: Table) -> CsvSource | FolderSource:
    if not os.path.exists(path):
        raise DataError(f"{path} is not there, or may not be read by this user: check its name")
    if path.is_dir():
        return FolderSource(FolderOptions(path=str(path), rate_max=RATE_MAX), package)
    known = {item.name: options[item.name] for item in fields(CsvOptions) if item.name in options}
    if "columns" not in known:
        raise DataError(f"{path} is no folder: of a CSV file say --columns or data.options.columns")
    known |= {"path": str(path), "rate_max": RATE_MAX}
    return CsvSource(cast(CsvOptions, read_options("csv", known)), package, from_start=True)


def _leave_out(source: CsvSource | FolderSource, inputs: dict[str, Arrays]) -> None:
    """Count the sample that has waited the longest for its label, and forget it."""
    key = next(iter(inputs))
    del inputs[key]
    # The key of a row says nothing.
    source.left_out.add(UNLABELLED, key if isinstance(source, FolderSource) else None)


def _digest(sample: Arrays) -> bytes:
    parts = b"".join(np.ascontiguousarray(array).tobytes() for array in sample.values())
    return hashlib.sha256(parts).digest()
