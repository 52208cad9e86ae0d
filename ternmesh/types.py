"""The arrays that most modules exchange, each with one name.

Q24 is fixed point: an integer counts units of 2**-24, so that sums are equal on every processor.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""Trained numbers, a delta or a residual: float32 [D]."""

Trits = NDArray[np.int8]
"""A ternary vector: int8 in -1, 0, 1."""

ModelQ24 = NDArray[np.int32]
"""A global adapter, relative to the initial one: int32 [D] in units of 2**-24."""

DeltaQ24 = NDArray[np.int64]
"""A change of the global adapter, or a sum of changes: int64 [D] in units of 2**-24."""

Places = NDArray[np.int64]
"""A permutation: the coordinate of the adapter vector at each place of a hypervector, int64 [D]."""
