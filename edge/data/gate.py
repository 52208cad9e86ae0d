"""Which samples a model cannot compute: they are found one by one, and set aside with a reason.

A batch with one such sample fails as a whole, and onnxruntime does not say which one it was.
"""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edge.errors import ModelError, OutOfMemory
from ternmesh_service.status import AsideStatus

SHOWN_MAX = 20  # of the samples that are set aside
REASON_MAX = 300  # characters

Indexes = NDArray[np.int64]


class SetAside:
    """Samples and whole files that are not used: how many, and the newest with their reasons."""

    def __init__(self) -> None:
        self.count = self.files = 0
        self.newest: deque[tuple[str, str]] = deque(maxlen=SHOWN_MAX)  # name and reason

    def add(self, name: str, reason: str, *, is_file: bool = False) -> None:
        self.files += is_file
        self.count += not is_file
        self.newest.append((name, reason[:REASON_MAX]))


def aside_status(*known: SetAside, in_source: int = 0) -> AsideStatus:
    """What all of these have set aside, of which so many samples are of a source."""
    count, files = sum(one.count for one in known), sum(one.files for one in known)
    newest = tuple(name for one in known for name in one.newest)
    return AsideStatus(count=count, files=files, in_files=count - in_source, newest=newest)


def failing(indexes: Indexes, run: Callable[[Indexes], str]) -> dict[int, str]:
    """Which of these samples fail without the others, and why; none where all fail.

    `run` computes some samples and returns what is wrong with the result, or nothing; ModelError.
    """
    found = _failing(indexes, run)
    return {} if len(found) == indexes.size else found  # the model is at fault, or the board


def _failing(indexes: Indexes, run: Callable[[Indexes], str]) -> dict[int, str]:
    try:
        reason = run(indexes)
    except OutOfMemory:
        raise
    except ModelError as error:
        reason = str(error)
    if not reason or not indexes.size:
        return {}
    if indexes.size == 1:
        return {int(indexes[0]): reason}
    middle = indexes.size // 2
    return _failing(indexes[:middle], run) | _failing(indexes[middle:], run)
