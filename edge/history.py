"""What a node remembers of its rounds: how good each reference was here, and what it cost."""

import json
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

ENTRIES_MAX = 256
KEY = "history"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One reference. `metric` is its worth on this node's evaluation data, by the bundle's metric.

    Without such data it is that of the references before, on the samples that have got their label
    since the entry before. `loss` is the mean loss of the local steps that this node took on the
    way to it, None where it took none; bytes are those on the bearer since the entry before,
    seconds likewise.
    """

    version: int
    metric: float | None
    loss: float | None
    bytes_up: int
    bytes_down: int
    seconds: float


class Values(Protocol):
    """Where bytes are kept by key; see `NodeStore`."""

    def get(self, key: str) -> bytes | None:
        """What was kept."""

    def put(self, key: str, value: bytes) -> None:
        """Keep bytes until the next commit makes them durable."""


class History:
    """The newest entries of one run, kept in `values`."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)

    def load(self) -> None:
        """Take up what an earlier process kept; what cannot be read is left out."""
        data = self._values.get(KEY)
        if data is None:
            return
        try:
            self._entries.extend(Entry(**item) for item in json.loads(data))
        except (ValueError, TypeError, RecursionError) as error:
            _log.warning("the history of earlier rounds cannot be read: %s", error)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def last(self) -> Entry | None:
        """The newest entry."""
        return self._entries[-1] if self._entries else None

    def append(self, entry: Entry) -> None:
        """Add an entry; the oldest makes room."""
        self._entries.append(entry)
        self._keep()

    def clear(self) -> None:
        """Forget everything: another run begins."""
        self._entries.clear()
        self._keep()

    def _keep(self) -> None:
        self._values.put(KEY, json.dumps([asdict(entry) for entry in self._entries]).encode())
