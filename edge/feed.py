"""A source that is asked again and again, and the buffer that its samples go into."""

import logging

import numpy as np
from numpy.typing import NDArray

from edge.replay import ReplayBuffer
from edge.sources import Source

_log = logging.getLogger(__name__)


class Feed:
    """Asks `source` every `poll_s` and puts what it has into `buffer`.

    An error of the source is counted, and it is asked again: a sensor may come back.
    """

    def __init__(self, source: Source, buffer: ReplayBuffer, poll_s: float) -> None:
        self.buffer = buffer
        self.failures = 0
        self.last_failure = ""
        self._source = source
        self._poll_s = poll_s
        self._due: float | None = None

    def poll(self, now: float) -> NDArray[np.int64]:
        """The indexes in the buffer of the samples that have just got their label."""
        if self.wait_s(now) > 0.0:
            return np.empty(0, dtype=np.int64)
        self._due = now + self._poll_s
        try:
            items = list(self._source.poll(now))
        except Exception as error:  # noqa: BLE001  (the user's code: anything may come out of it)
            self._note(f"{type(error).__name__}: {error}")
            items = []
        return self.buffer.add(items)

    def wait_s(self, now: float) -> float:
        """How long until the source is asked again."""
        return 0.0 if self._due is None else max(0.0, self._due - now)

    def _note(self, failure: str) -> None:
        self.failures += 1
        if failure != self.last_failure:
            _log.warning("the source failed: %s", failure)
        self.last_failure = failure
