"""What keeps a fleet from forgetting: a step to the mean of its adapters after each news.

New samples move the global adapter away from what nodes that left have taught it, and farther than
the samples need. The mean of the adapters at the ends of the news is better for the old samples
(Izmailov et al., "Averaging weights leads to wider optima", UAI 2018), but worse for the newest:
so the host makes one step of `PULL` to it, in a global update that counts nobody.
"""

import struct

import numpy as np

from ternmesh.codec.scale import to_float
from ternmesh.types import ModelQ24, Vector

PULL = 0.25
ENDS_MAX = 8  # beyond it, an older adapter counts less than a newer one
_COUNT = struct.Struct("<I")


class Consolidation:
    """The mean of the global adapters after news.

    The program keeps what `stored` returns on disk; bytes of another size are ignored.
    """

    def __init__(self, dimension: int, stored: bytes = b"") -> None:
        self.mean = np.zeros(dimension, dtype=np.float32)
        self.count = 0  # adapters in the mean, at most `ENDS_MAX`
        if len(stored) == _COUNT.size + self.mean.nbytes:
            (self.count,) = _COUNT.unpack_from(stored)
            self.mean = np.frombuffer(stored, "<f4", offset=_COUNT.size).astype(np.float32)

    def stored(self) -> bytes:
        """Return what must be on disk."""
        return _COUNT.pack(self.count) + self.mean.astype("<f4").tobytes()

    def step(self, model_q24: ModelQ24) -> Vector:
        """Count an adapter that has just learned news; return the step from it (float32, D)."""
        adapter = to_float(model_q24)
        self.count = min(self.count + 1, ENDS_MAX)
        self.mean = self.mean + (adapter - self.mean) / np.float32(self.count)
        step: Vector = np.float32(PULL) * (self.mean - adapter)
        return step
