"""What a bundling gateway keeps, and what it tells the program around it. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass

from ternmesh.hypervector import feedback
from ternmesh.plan import Plan
from ternmesh.swarm.events import CountersReserved, Vector
from ternmesh.swarm.records import NO_RUN
from ternmesh.wire.contributions import Contribution


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle of unknown fate, in the name of `board`, the first of its contributors.

    `wanted` (float32, D, times samples) is what it was made from; `rows` are its contributors'
    packets by context.
    """

    round: int
    board: str
    wanted: Vector
    bodies: tuple[bytes, ...]  # manifest, contributions, then the shares in order
    digest: bytes
    samples: int
    rows: Mapping[int, Contribution]


@dataclass(frozen=True, slots=True)
class RunFollowed:
    """Another run: start from nothing."""

    run: bytes
    plan: Plan


@dataclass(frozen=True, slots=True)
class BundleMade:
    """A bundle is about to be sent. Keep it until it is settled."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class BundleSettled:
    """The bundle's fate is known; `residual` (float32, D, times samples) is what is left."""

    residual: Vector
    is_counted: bool


@dataclass(frozen=True, slots=True)
class VersionReached:
    """A newer reference has passed, or was announced."""

    version: int


BundlerEvent = CountersReserved | RunFollowed | BundleMade | BundleSettled | VersionReached


@dataclass(frozen=True, slots=True)
class BundlerState:
    """What a bundling gateway must find again after a power cut."""

    residual: Vector
    run: bytes = NO_RUN
    plan: Plan | None = None
    version: int = 0
    pending: Bundle | None = None
    counter: int = 0


def new_state(dimension: int) -> BundlerState:
    """The state of a gateway that has bundled nothing yet."""
    return BundlerState(feedback.init(dimension))
