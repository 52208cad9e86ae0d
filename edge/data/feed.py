"""What a source brings, poll by poll, and its samples beside those of files."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import ceil

import numpy as np
from numpy.typing import NDArray

from edge.data.buffer import NOT_RATED, Array, ReplayBuffer
from edge.data.front import Front
from edge.data.heard import HeardWords
from edge.data.sources import Label, Sample, Source
from edge.errors import DataError, ModelError
from edge.trainer import Dataset
from ternmesh_service.status import LiveStatus

ITEMS_MAX = 4096  # of one poll; the others are left out

_log = logging.getLogger(__name__)


class Rehearsal:
    """Samples with others beside them, so that none is forgotten.

    These are labelled ones of a source beside those of files, a board's own beside what other
    models teach, or its words beside speech. The first come first. While they are few, each stands
    for several: the share `least` of all that is drawn, at least, is theirs.
    """

    def __init__(self, first: Dataset, others: Dataset, least: float = 0.25) -> None:
        self._first = first
        self._others = others
        self._least = least

    def __len__(self) -> int:
        return self._count + len(self._others)

    @property
    def _count(self) -> int:
        first = len(self._first)
        return first and max(first, ceil(len(self._others) * self._least / (1 - self._least)))

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, Array]:
        """The arrays of samples by name, with a batch axis."""
        is_first = indexes < self._count
        parts = []
        if is_first.any():
            parts.append(self._first.batch(indexes[is_first] % len(self._first)))
        if not is_first.all():
            parts.append(self._others.batch(indexes[~is_first] - self._count))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """Use these samples no longer."""
        count = self._count
        first = {at % len(self._first): why for at, why in reasons.items() if at < count}
        self._others.set_aside({at - count: why for at, why in reasons.items() if at >= count})
        self._first.set_aside(first)


class Feed:
    """Polls `source` every `poll_s` and stores its items in `buffer`, past the `front` if any.

    An error of the source is counted, and the source is polled again: a sensor may recover.
    """

    def __init__(
        self,
        source: Source,
        buffer: ReplayBuffer,
        poll_s: float,
        front: Front | None = None,
        words: HeardWords | None = None,
    ) -> None:
        self.buffer = buffer
        self.source = source
        self.words = words  # where a program may listen for some
        self.given: list[Sample | Label] = []  # from elsewhere, for the next poll
        self.failures = 0
        self.floods = 0  # polls with more than `ITEMS_MAX` items, of which the others were left out
        self.last_failure = ""  # empty again once the source works
        self._logged = ""
        self._poll_s = poll_s
        self._front = front
        self._due: float | None = None
        # Predicts new samples: how certain it is of them, by key
        self.predict: Callable[[list[Sample]], Mapping[str, float]] | None = None

    def poll(self, now: float) -> NDArray[np.int64]:
        """Poll the source if it is time; returns the buffer's indexes of newly labelled samples."""
        if self.wait_s(now) > 0.0:
            return np.empty(0, dtype=np.int64)
        self._due = now + self._poll_s
        try:
            items = list(islice(self.source.poll(now), ITEMS_MAX + 1))
            self.floods += len(items) > ITEMS_MAX
            del items[ITEMS_MAX:]
            live = self.status()
            if live is None or live.open:  # a built-in source pauses after a failure
                self.last_failure = ""
        except Exception as error:  # noqa: BLE001  (the user's code may raise anything)
            # Not "FileNotFoundError: [Errno 2]", which says nothing.
            said = f"{type(error).__name__}: {error}"
            self.last_failure = re.sub(r"^(DataError: |\w+: \[Errno \d+\] )", "", said)
            if self.last_failure != self._logged:
                _log.warning("the source failed: %s: it is tried again", self.last_failure)
            self.failures += 1
            self._logged = self.last_failure
            items = []
        items += self.given
        self.given.clear()
        if self._front is not None:
            items = [*self._entered(self._front, items)]
        certainties = NOT_RATED
        if self.predict is not None:
            certainties = self.predict([item for item in items if isinstance(item, Sample)])
        return self.buffer.add(items, certainties)

    def _entered(self, front: Front, items: list[Sample | Label]) -> Iterator[Sample | Label]:
        """The items, with rows in their samples; one that gives none is counted as refused."""
        for item in items:
            try:
                yield front.enter(item) if isinstance(item, Sample) else item
            except (DataError, ModelError, TypeError, ValueError) as error:  # the user's code
                self.buffer.refuse(error)

    def status(self) -> LiveStatus | None:
        """The source's own status, where it has one."""
        from edge.data.live.base import LiveSource  # not where the samples are files alone

        return self.source.status() if isinstance(self.source, LiveSource) else None

    def close(self) -> None:
        close = getattr(self.source, "close", None)
        try:
            if callable(close):
                close()
        except Exception:  # noqa: BLE001  (the user's code may raise anything)
            _log.exception("the source could not be closed")

    def wait_s(self, now: float) -> float:
        """Seconds until the source is polled again."""
        return 0.0 if self._due is None else max(0.0, self._due - now)
