"""What the built-in sources share: they open again after a failure, limit samples, and count."""

import random
import secrets
from collections import Counter
from collections.abc import Sequence

from edge.data.sources import Label, Sample, input_specs
from edge.errors import DataError
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh.timers import Backoff
from ternmesh_service.status import LiveStatus
from transports.base import TransportError

SHOWN_MAX = 200  # characters of what is left out
PAUSE_S = (1.0, 60.0)  # the first and the longest between two attempts to open


class LeftOut:
    """What a source could not use: how often, by reason, and what came first."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, value: object = None) -> None:
        """Count what is left out; `value` is shown."""
        if not self.counts[reason] and value is not None:
            text = repr(value)
            self.first[reason] = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
        self.counts[reason] += 1


class LiveSource:
    """A source that its first poll opens; after a failure, which `poll` raises, it opens again.

    A subclass has `_open`, `_read` and `close`.
    """

    def __init__(self, rate_max: float) -> None:
        self.left_out = LeftOut()
        self._prefix = secrets.token_hex(4)  # keys differ from those of an earlier process
        self._made = 0
        self._rate_max = rate_max
        self._room = max(1.0, rate_max)  # samples that may come at once
        self._filled_at: float | None = None
        self._is_open = False
        self._pause = Backoff(*PAUSE_S, random.Random())

    def poll(self, now: float) -> Sequence[Sample | Label]:
        """See `edge.data.sources.Source`. OSError, DataError or TransportError."""
        if not self._is_open and self._pause.at is not None and now < self._pause.at:
            return []
        try:
            if not self._is_open:
                self._open(now)
                self._is_open = True
            items = self._read(now)
        except (OSError, DataError, TransportError):
            self.close()
            self._pause.again(now)
            raise
        if items:
            self._pause.stop()
        return [item for item in items if isinstance(item, Label) or self._allows(now)]

    def close(self) -> None:
        """Free what `_open` has opened; may be called twice."""
        self._is_open = False

    def status(self) -> LiveStatus:
        """Whether it is open, and what it left out."""
        return LiveStatus(
            open=self._is_open, left_out=dict(self.left_out.counts), first=dict(self.left_out.first)
        )

    def _open(self, now: float) -> None:
        """Begin, at `now`."""

    def _read(self, now: float) -> list[Sample | Label]:
        """What has come since the last call: a limited amount, without waiting."""
        raise NotImplementedError

    def _key(self) -> str:
        self._made += 1
        return f"{self._prefix}-{self._made}"

    def _free(self, now: float) -> int:
        """How many samples may come now."""
        passed_s = 0.0 if self._filled_at is None else now - self._filled_at
        self._filled_at = now
        self._room = min(max(1.0, self._rate_max), self._room + passed_s * self._rate_max)
        return int(self._room)

    def _allows(self, now: float) -> bool:
        allows = self._free(now) > 0
        self._room -= allows
        if not allows:
            self.left_out.add("more than rate_max")
        return allows


def sole_input(package: ModelPackage) -> TensorSpec:
    """The input of a model that has one; DataError."""
    specs = input_specs(package)
    if len(specs) != 1:
        raise DataError(f"{package.name} has {len(specs)} inputs: use a source of your own")
    return specs[0]
