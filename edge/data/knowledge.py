"""What another model knows of the probe set, as samples to train on beside the board's own.

A soft label is drawn as a class, anew for each batch and round: the gradient of the usual loss is
then on average that of the cross-entropy with the soft label. So every model package can learn it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.trainer import Arrays, Dataset, Indexes
from ternmesh.codec.soft_labels import UNITS, Units
from ternmesh.model_package import TensorSpec

ROUNDING = 1e-6  # of a sum of weights of 1
OWN_SHARE = 4  # a quarter of all that is drawn, at least, is of the board's own samples


class WithKnowledge:
    """A data set that also holds samples of the probe set, once `teach` has said what they are.

    `probe` has the input arrays of the probe set by name. `target` is the tensor of the classes.
    """

    def __init__(self, own: Dataset, probe: Arrays, target: TensorSpec) -> None:
        self.own = own
        self._probe = probe
        self._target = target
        self._units: Units = np.empty((0, 1), dtype=np.uint8)
        self._sums = np.empty(0)  # of the weights, up to and with each sample
        self.round = 0  # each draws other classes from the soft labels

    def teach(self, units: Units, weights: NDArray[np.floating[Any]]) -> None:
        """Replace what is known by soft labels of all samples of the probe set, uint8 [rows, C].

        `weights` [rows] are between 0 and 1: a sample of weight 0.5 is drawn half as often.
        """
        self._units = units
        self._sums = np.where(units.sum(axis=1) == UNITS, weights, 0).cumsum(dtype=np.float64)

    def __len__(self) -> int:
        return self._own_count + self._taught_count

    @property
    def _taught_count(self) -> int:
        return int(self._sums[-1] + ROUNDING) if self._sums.size else 0

    @property
    def _own_count(self) -> int:
        own = len(self.own)
        return own and max(own, -(-self._taught_count // (OWN_SHARE - 1)))

    def batch(self, indexes: Indexes) -> dict[str, NDArray[Any]]:
        """The arrays of samples by name; first the board's own. The same indexes give the same.

        That is so within one `round`.
        """
        is_own = indexes < self._own_count
        if is_own.all():
            return dict(self.own.batch(indexes % len(self.own)))
        rng = np.random.default_rng([self.round, *indexes])
        # One draw from each stretch of length 1 of the summed weights
        places = indexes[~is_own] - self._own_count + rng.random(np.count_nonzero(~is_own))
        last = np.searchsorted(self._sums, self._sums[-1])  # the last one with any weight
        rows = np.searchsorted(self._sums, places, side="right").clip(max=last)
        drawn = rng.integers(0, UNITS, rows.size)
        classes = (drawn[:, None] >= self._units[rows].cumsum(axis=1)).sum(axis=1)
        taught = {name: array[rows] for name, array in self._probe.items()}
        taught[self._target.name] = classes.astype(self._target.dtype)
        if not is_own.any():
            return taught
        parts = self.own.batch(indexes[is_own] % len(self.own)), taught
        return {name: np.concatenate([part[name] for part in parts]) for name in taught}
