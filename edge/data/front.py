"""The frozen front of a model package: samples become rows once, where they enter the board.

The front always gets exactly one window, with a batch axis of 1: the row of a window is then the
same in a clip as in a stream. What follows (buffer, training, evaluation) sees rows alone.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.config import NodeConfig
from edge.data.sources import Array, Arrays, FolderData, Sample, convert, opened_npz
from edge.errors import DataError, ModelError, OutOfMemory
from edge.onnx.session import FrontGraph, LoadedModel
from ternmesh.model_package import FRONT
from ternmesh_service.notify import no_beat
from ternmesh_store.files import PRIVATE, make_private_folder, unfinished_file

CACHE = "rows"  # in a state folder: the rows of files, by what they were made of
RECENT_MAX = 32  # rows
SAID_EVERY = 1000  # samples, between two lines of the log

Row = NDArray[np.float32]
Beat = Callable[[], None]

_log = logging.getLogger(__name__)


class Front:
    """Makes rows of samples; without a front, samples stay as they are. One thread may call.

    `cache` is the folder that keeps the rows of files. `beat` is called after each row.
    """

    def __init__(
        self, loaded: LoadedModel, threads: int = 1, cache: Path | None = None, beat: Beat = no_beat
    ) -> None:
        self.spec = loaded.package.front
        self._package = loaded.package
        self._graph = FrontGraph(loaded.folder, loaded.package, threads)
        self._cache = cache
        self._beat = beat
        # The samples of a recording share windows.
        self._recent = lru_cache(RECENT_MAX)(lambda one: self.row(np.frombuffer(one, np.float32)))
        self._used: set[Path] = set()  # files of the cache

    def row(self, window: Row) -> Row:
        """The row, float32 [width], of a window or of a whole sample; ModelError."""
        assert self.spec is not None
        row = self._graph.run((window * np.float32(self.spec.scale))[None])
        self._beat()
        if row.size != (width := self._package.batch_inputs[0].shape[-1]):
            raise ModelError(
                f"{FRONT} makes rows of {row.size} numbers, and its tail takes {width}"
            )
        return row

    def rows(self, inputs: Arrays) -> dict[str, Array]:
        """The tail's inputs by name for those of the package, with a batch axis; ModelError."""
        if self.spec is None:
            return dict(inputs)
        [samples], rows = inputs.values(), self._package.batch_inputs[0]
        made = [self._rows_of(one) for one in samples]
        return {rows.name: np.array(made, np.float32).reshape(len(samples), *rows.shape[1:])}

    def _rows_of(self, sample: Array) -> list[Row]:
        spec = self.spec
        if spec is None or not spec.window:
            return [self.row(sample)]
        windows = (sample[at * spec.hop :][: spec.window] for at in range(spec.rows))
        return [self._recent(np.float32(window).tobytes()) for window in windows]

    def enter(self, sample: Sample) -> Sample:
        """The sample with rows as its inputs, and its own ones as `raw`; DataError, ModelError."""
        if self.spec is None:
            return sample
        [spec] = self._package.inputs
        shapes = {name: np.shape(array) for name, array in sample.inputs.items()}
        if shapes != {spec.name: spec.shape[1:]}:
            raise DataError(f"{sample.key} has {shapes}: it must have {spec.name} {spec.shape[1:]}")
        raw = {spec.name: convert(np.asarray(sample.inputs[spec.name]), spec, sample.key)}
        [(name, rows)] = self.rows({spec.name: raw[spec.name][None]}).items()
        return replace(sample, inputs={name: rows[0]}, raw=raw)

    def data(self, data: FolderData) -> FolderData:
        """The samples of files as rows; one without finite rows is set aside. ModelError."""
        if self.spec is None:
            return data
        rows = self._convert(data) if self._cache is None else self._cached(self._cache, data)
        made = data.with_inputs(self._package.tail(), {self._package.batch_inputs[0].name: rows})
        bad = np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)).all(1)).tolist()
        made.set_aside(dict.fromkeys(bad, f"{FRONT} makes no finite numbers of it"))
        return made

    def prune(self) -> None:
        """Delete the rows of files that are no longer read."""
        for path in () if self._cache is None else self._cache.glob("*.npz"):
            if path not in self._used:
                path.unlink()

    def _cached(self, folder: Path, data: FolderData) -> Row:
        digest = hashlib.sha256(f"{self._package.files[FRONT]} {self.spec}".encode())
        for sample in self._samples(data):
            digest.update(*map(np.ndarray.tobytes, sample.values()))
        path = folder / f"{digest.hexdigest()}.npz"
        self._used.add(path)
        with suppress(DataError), opened_npz(path) as archive:  # missing, or damaged
            return np.asarray(archive["rows"])
        rows = self._convert(data)
        try:
            make_private_folder(folder)
            unfinished = unfinished_file(path, PRIVATE)
            with unfinished.open("wb") as file:
                np.savez(file, rows=rows)
            unfinished.replace(path)
        except OSError as error:
            _log.warning(
                "%s cannot be written: the next start makes its rows again: %s", path, error
            )
        return rows

    def _samples(self, data: FolderData) -> Iterator[Arrays]:
        """Each sample with a batch axis of 1: floats of all would need much memory."""
        raw = self._package.inputs[0].name
        return ({raw: data.batch(np.array([at]))[raw]} for at in range(len(data)))

    def _convert(self, data: FolderData) -> Row:
        """The rows of all samples, NaN where the front cannot run."""
        rows = np.full((len(data), *self._package.batch_inputs[0].shape[1:]), np.nan, np.float32)
        failed: ModelError | None = None
        for at, sample in enumerate(self._samples(data)):
            if at % SAID_EVERY == 0:
                _log.info("%d of %d samples have passed %s", at, len(data), FRONT)
            try:
                [rows[at : at + 1]] = self.rows(sample).values()
            except OutOfMemory:
                raise
            except ModelError as error:
                failed = error
        if failed is not None and np.isnan(rows).all():
            raise failed
        return rows


def front_of(config: NodeConfig, loaded: LoadedModel, beat: Beat) -> Front:
    """The front of a board's model, with the cache in its state folder."""
    return Front(loaded, config.training.threads, Path(config.state_dir, CACHE), beat)
