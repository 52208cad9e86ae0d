"""What the experiment found, by arm and round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ternmesh.errors import TernmeshError

FLOAT_BYTES = 4


class ExperimentError(TernmeshError):
    """The experiment cannot start or go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round: bytes of each node, and of the downlink, which all nodes receive.

    `loss` is the mean over a node's steps. `accuracy` is that of the global adapter after the
    round, which both nodes hold, on some of the test pairs; None where it was not seen.
    """

    version: int
    bytes_up: Mapping[str, int]
    bytes_down: int
    loss: Mapping[str, float | None] = field(default_factory=dict)
    accuracy: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The result of an arm."""

    name: str
    title: str
    dimension: int  # trained numbers
    rounds: Sequence[Round]
    steps: int  # local steps of each node in the whole run
    accuracy: float  # of the last global adapter, on all test pairs
    seconds: float  # of the rounds, by the clock
    parts: Mapping[str, float]  # mean bytes up of a component (q, k, v, out, head)

    @property
    def bytes_up(self) -> float:
        """Mean bytes of one node in one round."""
        return self.run_bytes_up / sum(len(item.bytes_up) for item in self.rounds)

    @property
    def bytes_down(self) -> float:
        """Mean bytes of the downlink in one round."""
        return self.run_bytes_down / len(self.rounds)

    @property
    def run_bytes_up(self) -> int:
        """Bytes of the whole run from all nodes."""
        return sum(sum(item.bytes_up.values()) for item in self.rounds)

    @property
    def run_bytes_down(self) -> int:
        """Bytes of the whole run's downlink."""
        return sum(item.bytes_down for item in self.rounds)
