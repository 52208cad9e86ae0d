"""The frozen front of a model package: samples become rows once, where they enter the board.

The front always gets exactly one window, with a batch axis of 1: the row of a window is then the
same in a clip as in a stream. What follows (buffer, training, evaluation) sees rows alone.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.data.sources import Array, Arrays, FolderData, Sample, convert, input_specs, opened_npz
from edge.errors import DataError, ModelError
from edge.onnx.session import FrontGraph, LoadedModel
from ternmesh.model_package import FRONT, FrontSpec
from ternmesh_service.notify import no_beat
from ternmesh_store.files import PRIVATE, make_private_folder, unfinished_file

CACHE = "rows"  # in a state folder: the rows of files, by what they were made of
SAID_EVERY = 1000  # samples, between two lines of the log

Row = NDArray[np.float32]

_log = logging.getLogger(__name__)


class Front:
    """Makes rows of samples; without a front, samples stay as they are. One thread may call.

    `cache` is the folder that keeps the rows of files. `beat` is called after each sample.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        threads: int = 1,
        cache: Path | None = None,
        beat: Callable[[], None] = no_beat,
    ) -> None:
        self._package = loaded.package
        self._graph = FrontGraph(loaded.folder, loaded.package, threads)
        self._cache = cache
        self._beat = beat
        self._used: set[Path] = set()  # files of the cache

    @property
    def spec(self) -> FrontSpec | None:
        return self._package.front

    def row(self, window: Row) -> Row:
        """The row, float32 [width], of a window or of a whole sample; ModelError."""
        assert self.spec is not None
        row = self._graph.run((window * np.float32(self.spec.scale))[None])
        width = self._package.batch_inputs[0].shape[-1]
        if row.shape != (width,):
            raise ModelError(
                f"{FRONT} of {self._package.name} makes rows of {row.size} numbers, and its tail "
                f"takes {width}: build the package again"
            )
        return row

    def rows(self, inputs: Arrays) -> dict[str, Array]:
        """The tail's inputs by name for those of the package, with a batch axis; ModelError."""
        if self.spec is None:
            return dict(inputs)
        [samples], rows = inputs.values(), self._package.batch_inputs[0]
        made = [np.concatenate(self._rows_of(np.asarray(one, np.float32))) for one in samples]
        return {rows.name: np.reshape(made, (len(samples), *rows.shape[1:])).astype(np.float32)}

    def _rows_of(self, sample: Row) -> list[Row]:
        assert self.spec is not None
        return RowStream(self).take(sample) if self.spec.window else [self.row(sample)]

    def enter(self, sample: Sample) -> Sample:
        """The sample with rows as its inputs, and its own ones as `raw`; DataError, ModelError."""
        if self.spec is None:
            return sample
        [spec] = input_specs(self._package.outside())
        shapes = {name: np.shape(array) for name, array in sample.inputs.items()}
        if shapes != {spec.name: spec.shape[1:]}:
            raise DataError(f"{sample.key} has {shapes}: it must have {spec.name} {spec.shape[1:]}")
        raw = {spec.name: convert(np.asarray(sample.inputs[spec.name]), spec, sample.key)}
        rows = self.rows({spec.name: raw[spec.name][None]})
        return Sample(sample.key, {k: array[0] for k, array in rows.items()}, sample.file, raw)

    def data(self, data: FolderData) -> FolderData:
        """The samples of files as rows, from the cache where it has them.

        Those that give no rows of finite numbers are set aside. ModelError where none gives any.
        """
        if self.spec is None or not len(data):
            return data
        raw, rows = self._package.inputs[0].name, self._package.batch_inputs[0]
        path = None if self._cache is None else self._cache / f"{self._digest(data, raw)}.npz"
        held = None if path is None else _read(path)
        if held is None or held.shape != (len(data), *rows.shape[1:]):
            held = self._convert(data, raw)
            if path is not None:
                make_private_folder(path.parent)
                unfinished = unfinished_file(path, PRIVATE)
                with unfinished.open("wb") as file:
                    np.savez(file, rows=held)
                unfinished.replace(path)
        self._used |= set() if path is None else {path}
        made = data.with_inputs(self._package.tail(), {rows.name: held})
        finite = np.isfinite(held).all(axis=tuple(range(1, held.ndim)))
        made.set_aside(dict.fromkeys(np.flatnonzero(~finite).tolist(), f"{FRONT} cannot take it"))
        return made

    def prune(self) -> None:
        """Delete the rows of files that are no longer read."""
        for path in set() if self._cache is None else {*self._cache.glob("*.npz")} - self._used:
            path.unlink(missing_ok=True)

    def _convert(self, data: FolderData, raw: str) -> Row:
        shape = self._package.batch_inputs[0].shape[1:]
        held = np.full((len(data), *shape), np.nan, np.float32)
        failed: ModelError | None = None
        for at in range(len(data)):
            if at % SAID_EVERY == 0:
                _log.info("%d of %d samples have passed %s", at, len(data), FRONT)
            try:
                [rows] = self.rows({raw: data.batch(np.array([at]))[raw]}).values()
                held[at] = rows[0]
            except ModelError as error:  # this sample alone is set aside
                failed = error
            self._beat()
        if failed is not None and np.isnan(held).all():
            raise failed
        return held

    def _digest(self, data: FolderData, raw: str) -> str:
        digest = hashlib.sha256(f"{self._package.files[FRONT]} {self.spec}".encode())
        for at in range(len(data)):
            digest.update(data.batch(np.array([at]))[raw].tobytes())
        return digest.hexdigest()


class RowStream:
    """Rows of one stream of sound or numbers, one a hop."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._held = np.zeros(0, np.float32)  # what the next window begins with
        self._skipped = 0  # numbers up to the next window, where a hop is longer than a window

    def take(self, sound: Row) -> list[Row]:
        """The rows whose windows end in `sound`, float32 [numbers]; ModelError."""
        spec = self._front.spec
        assert spec is not None
        skipped = min(self._skipped, len(sound))
        self._skipped -= skipped
        self._held = np.concatenate([self._held, sound[skipped:]])
        rows = []
        while len(self._held) >= spec.window:
            rows.append(self._front.row(self._held[: spec.window]))
            hop = spec.hop or spec.window
            self._skipped = max(0, hop - len(self._held))
            self._held = self._held[hop:]
        return rows


def _read(path: Path) -> Row | None:
    """The rows in a file of the cache; None where there are none, or it is damaged."""
    if not path.exists():
        return None
    try:
        with opened_npz(path) as archive:
            return np.asarray(archive["rows"], np.float32)
    except DataError:
        return None
