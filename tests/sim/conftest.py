from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from ternmesh.codec import permutation
from ternmesh.federated import robust
from ternmesh.federated.reputation import Reputations
from ternmesh.generator import Key
from ternmesh.types import Places


@pytest.fixture(autouse=True, scope="module")
def _no_bounds(request: pytest.FixtureRequest) -> Iterator[None]:
    """The ledger compares each global adapter with the plain mean of what was counted."""
    if getattr(request.module, "HAS_BOUNDS", False):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SAMPLES_RATIO", "NORM_RATIO", "HISTORY_RATIO", "STEP_RATIO"):
            patch.setattr(robust, name, 1e9)
        patch.setattr(Reputations, "weight", lambda *_: 1.0)
        patch.setattr(Reputations, "is_proven", lambda *_: True)
        yield


@pytest.fixture(autouse=True, scope="module")
def _permute_once() -> Iterator[None]:
    """All ends of a fleet are in one process: the places of a round are computed once for all."""
    permute, known = permutation.permute, dict[tuple[Key, int], Places]()

    def permute_once(key: Key, index: NDArray[np.uint32], dimension: int) -> Places:
        if (key, index.size) not in known:
            if len(known) > 1000:
                known.clear()
            known[key, index.size] = permute(key, index, dimension)
        return known[key, index.size].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "permute", permute_once)
        yield
