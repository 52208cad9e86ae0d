"""What another model knows of the probe set, as samples to train on beside the board's own.

A soft label is drawn as a class, anew for each batch: the gradient of the usual loss is then on
average that of the cross-entropy with the soft label. So every model package can learn from it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.trainer import Arrays, Dataset, Indexes
from ternmesh.codec.soft_labels import UNITS, Units

OWN_SHARE = 4  # a quarter of all that is drawn, at least, is of the board's own samples


class WithKnowledge:
    """A data set that also holds samples of the probe set, once `teach` has said what they are.

    `probe` has the input arrays of the probe set by name. `target` is the tensor of the classes.
    """

    def __init__(self, own: Dataset, probe: Arrays, target: str) -> None:
        self.own = own
        self._probe = probe
        self._target = target
        self._rows: Indexes = np.empty(0, dtype=np.int64)  # each as often as its weight says
        self._units: Units = np.empty((0, 1), dtype=np.uint8)

    def teach(self, units: Units, weights: NDArray[np.floating[Any]]) -> None:
        """Replace what is known by soft labels of all samples of the probe set, uint8 [rows, C].

        `weights` [rows] are between 0 and 1: the chance that a sample is drawn where it could be.
        """
        wanted = (weights > 0) & (units.sum(axis=1) == UNITS)
        self._rows = np.flatnonzero(wanted)
        self._units = units
        self._weights = weights

    def __len__(self) -> int:
        return self._own_count + len(self._rows)

    @property
    def _own_count(self) -> int:
        own = len(self.own)
        return own and max(own, -(-len(self._rows) // (OWN_SHARE - 1)))

    def batch(self, indexes: Indexes) -> dict[str, NDArray[Any]]:
        """The arrays of samples by name; first the board's own. The same indexes give the same."""
        is_own = indexes < self._own_count
        own = len(self.own)
        if is_own.all():
            return dict(self.own.batch(indexes % own))
        rng = np.random.default_rng(indexes)
        rows = self._rows[indexes[~is_own] - self._own_count]
        # A sample of little weight often makes room for one that is drawn by weight.
        kept = rng.random(rows.size) < self._weights[rows]
        share = self._weights[self._rows] / self._weights[self._rows].sum()
        rows = np.where(kept, rows, rng.choice(self._rows, rows.size, p=share))
        drawn = rng.integers(0, UNITS, rows.size)
        classes = (drawn[:, None] >= self._units[rows].cumsum(axis=1)).sum(axis=1)
        taught = {name: array[rows] for name, array in self._probe.items()}
        taught[self._target] = classes.astype(np.int64)
        if not is_own.any():
            return taught
        parts = self.own.batch(indexes[is_own] % own), taught
        return {name: np.concatenate([part[name] for part in parts]) for name in taught}
