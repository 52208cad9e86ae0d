"""What the two ends of a split training tell the programs around them. Values only."""

from dataclasses import dataclass

from ternmesh.split.plan import SplitPlan
from ternmesh.swarm.events import CountersReserved, Refused, TrustChanged
from ternmesh.wire.activation import Activation


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The host has taken this board in, or told it anew where it stands.

    Micro-batches go on at `number` or later: `undone` ones before it were sent and their gradients
    lost again, by a restart. Another run than before means: start afresh.
    """

    run: bytes
    number: int
    phase: int
    plan: SplitPlan
    undone: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer that was waited for."""

    item: Activation


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer to micro-batch `number` came in time, or it was refused: it is skipped."""

    number: int


@dataclass(frozen=True, slots=True)
class BoardJoined:
    """A board was taken in. Keep its context."""

    context: int
    name: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A board's activation or gradient, of the right shape and at the right time."""

    context: int
    item: Activation


BoardEvent = CountersReserved | TrustChanged | Refused | Welcomed | Answered | Lost
HostEvent = CountersReserved | TrustChanged | Refused | BoardJoined | Arrived
