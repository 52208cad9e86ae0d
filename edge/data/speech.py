"""Speech that ternmesh ships: for a model of words, what none of its words is.

It is there as rows of the front that models of words from the shelf have; another front has none.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge.data.heard import OTHER
from edge.data.sources import Array, opened_npz
from models.zoo import speech_path
from ternmesh.model_package import FRONT, ModelPackage

SHARE = 0.5  # of what a board draws, that is its own at least


class Speech:
    """Each clip is as many rows in a row as the model takes, and has the label `other`."""

    def __init__(self, rows: NDArray[np.int8], scale: float, package: ModelPackage) -> None:
        self._inputs, self._targets = package.batch_inputs
        count = self._inputs.shape[1]
        self._clips = np.lib.stride_tricks.sliding_window_view(rows, count, axis=0)
        self._scale = np.float32(scale)
        self._class = package.labels.index(OTHER)

    def __len__(self) -> int:
        return len(self._clips)

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, Array]:
        rows = self._clips[indexes].swapaxes(1, 2).astype(np.float32) * self._scale
        targets = np.full(len(indexes), self._class, self._targets.dtype)
        return {self._inputs.name: rows, self._targets.name: targets}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """A model that cannot compute this speech computes nothing."""


def shipped_speech(package: ModelPackage) -> Speech | None:
    """Speech for the tail of a package with the front of the shelf and the label `other`."""
    if OTHER not in package.labels or len(package.batch_inputs[0].shape) != 3:
        return None
    with opened_npz(speech_path()) as archive:
        if str(archive["front"]) != package.files.get(FRONT):
            return None
        return Speech(archive["rows"], float(archive["scale"]), package)
