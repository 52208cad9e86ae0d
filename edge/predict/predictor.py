"""Predictions with the newest good adapter of a file, which another process may replace."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.front import Front
from edge.data.sources import input_specs
from edge.errors import ModelError, OutOfMemory
from edge.evaluation import softmax
from edge.onnx.session import Arrays, Inference, LoadedModel, read_adapter

TOP_K = 3  # labels of a prediction

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of one sample: `top` for a classifier, else `output`.

    >>> Prediction(version=3, label="seven", top=(("seven", 0.9), ("one", 0.1))).top[0]
    ('seven', 0.9)
    """

    version: int  # of the global adapter
    label: str | None = None  # the first of `top`; None where that is too uncertain
    top: tuple[tuple[str, float], ...] = ()  # labels and probabilities, the most probable first
    output: NDArray[Any] | None = None  # the model's first output


class Predictor:
    """Predicts with the adapter file at `adapter`, also while a node in any process replaces it.

    Before each batch it looks whether there is another file. One that cannot be loaded, or gives no
    finite numbers, is left out: the last good adapter stays. Labels are those of the model package,
    else the numbers of the classes. A label below `threshold()` is not given. Any thread may call.

    >>> from tempfile import TemporaryDirectory
    >>> from edge.onnx.session import load_model, write_adapter
    >>> from models.zoo import package_path
    >>> loaded = load_model(package_path("keyword"))
    >>> with TemporaryDirectory() as folder:
    ...     adapter = Path(folder, "current.onnx_adapter")
    ...     write_adapter(adapter, loaded.package, loaded.initial, version=1)
    ...     predictor = Predictor(loaded, adapter)
    ...     [prediction] = predictor.predict({"features": np.zeros((1, 50, 32), np.float32)})
    >>> prediction.version, len(prediction.top)
    (1, 3)
    """

    def __init__(
        self,
        loaded: LoadedModel,
        adapter: Path,
        *,
        threads: int = 1,
        threshold: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.package = loaded.package.outside()  # its inputs are those of samples from outside
        self.front = Front(loaded, threads)
        self.row_specs = input_specs(loaded.package.tail())  # once they have passed the front
        self.bad_adapters = 0
        self.last_error = ""  # of an adapter
        self._path = adapter
        self._threshold = threshold
        self._inference = Inference(loaded.folder, loaded.package, threads)
        self._active: tuple[int, Arrays] | None = None  # with its version; exchanged as one
        self._seen: object = None  # what the file was when it was read
        self._refreshing = threading.Lock()

    @property
    def version(self) -> int | None:
        """The version of the global adapter in use; None before the first."""
        return None if self._active is None else self._active[0]

    def refresh(self) -> None:
        """Take over the adapter file if it is another one than at the last call."""
        with self._refreshing:
            if (identity := _identity(self._path)) in (None, self._seen):
                return
            self._seen = identity  # of this file or an older one: it is never missed
            try:
                vector, version = read_adapter(self._path, self.package)
                adapter = self.package.split(vector)
                is_finite = np.isfinite(vector).all() and self._is_finite(adapter)
                if not is_finite and self._is_finite({}):
                    raise ModelError(f"{self._path} gives numbers that are not finite")
            except OutOfMemory as error:  # the file may be good: the next call reads it again
                self._seen, self.last_error = None, str(error)
            except ModelError as error:
                self.bad_adapters += 1
                self.last_error = str(error)
                _log.warning("%s; predictions go on with the last good adapter", error)
            else:
                self._active = version, adapter

    def predict_now(self, inputs: Arrays) -> NDArray[Any]:
        """Probabilities [batch, ..., classes] of a classifier, else the model's first output.

        `inputs` by name have a batch axis. ModelError where the model cannot run with them, or
        there is no good adapter yet.
        """
        return self._predict(self.front.rows(inputs))[1]

    def certainty(self, rows: Arrays) -> NDArray[Any]:
        """The largest probability for each sample in `rows`; NaN for a model without classes."""
        tops = [prediction.top for prediction in self.predict_rows(rows)]
        return np.array([top[0][1] if top else np.nan for top in tops])

    def shares(self, rows: Arrays) -> NDArray[Any]:
        """`predict_now` for samples that have passed the front."""
        return self._predict(rows)[1]

    def predict(self, inputs: Arrays) -> list[Prediction]:
        """The prediction of each sample in `inputs` by name, with a batch axis; ModelError."""
        return self.predict_rows(self.front.rows(inputs))

    def predict_rows(self, rows: Arrays) -> list[Prediction]:
        """The same for samples that have passed the front."""
        version, values = self._predict(rows)
        is_named = self.package.metric == "accuracy" and values.ndim == 2
        return [
            self._named(version, row)
            if is_named and np.isfinite(row).all()
            else Prediction(version, output=row)
            for row in values
        ]

    def _predict(self, rows: Arrays) -> tuple[int, NDArray[Any]]:
        self.refresh()
        if self._active is None:
            why = self.last_error or "start its node"
            raise ModelError(f"there is no good adapter at {self._path} yet: {why}")
        version, adapter = self._active
        output = self._run({**rows, **adapter})
        return version, softmax(output) if self.package.metric == "accuracy" else output

    def _run(self, inputs: Arrays) -> NDArray[Any]:
        return self._inference.predict(inputs)[self.package.outputs[0].name]

    def _is_finite(self, adapter: Arrays) -> bool:
        """Whether the model gives finite numbers for ones, with an adapter or its initial one."""
        specs = self.row_specs
        ones = {spec.name: np.ones((1, *spec.shape[1:]), spec.dtype) for spec in specs}
        return bool(np.isfinite(self._run({**ones, **adapter})).all())

    def _named(self, version: int, row: NDArray[np.float64]) -> Prediction:
        labels = self.package.labels
        best = np.argsort(-row, kind="stable")[:TOP_K]
        top = tuple((labels[at] if labels else str(at), float(row[at])) for at in best)
        label, probability = top[0]
        return Prediction(version, label if probability >= self._threshold() else None, top)


def _identity(path: Path) -> object:
    """What tells a file from the one that it has replaced; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
