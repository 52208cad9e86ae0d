"""What both sides keep: the states that they restore; the host's settings, nodes and chain."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ternmesh.hypervector import feedback
from ternmesh.plan import Plan
from ternmesh.swarm.events import Fixed, Pending, Vector
from ternmesh.wire.reference import COUNTED_MAX, Counted

NO_RUN = bytes(8)
NO_REFERENCE = bytes(16)
NODES_BUNDLED_MAX = COUNTED_MAX * 2 // 3  # a bundle of two has a third row of its own


@dataclass(frozen=True, slots=True)
class MemberState:
    """What a node must find again after a power cut. A new node has the defaults."""

    fixed: Fixed
    residual: Vector
    run: bytes = NO_RUN
    context: int = 0
    plan: Plan | None = None
    version: int = 0
    reference: bytes = NO_REFERENCE
    finished: bool = False
    pending: Pending | None = None
    received: bool = False  # whether the pending packet has its receipt
    counter: int = 0
    silent: bool = False  # in the round of `version`: its work is done, and no packet was made
    silences: int = 0  # silent rounds since the last packet


@dataclass(frozen=True, slots=True)
class Settings:
    """How the host runs rounds; times in seconds. `chain_max` references are kept for catch-up.

    `bundles`: whether packets that a gateway has added up are believed.
    """

    min_peers: int = 1
    deadline_s: float = 60.0
    nodes_max: int = 1024
    chain_max: int = 256
    bundles: bool = False

    @property
    def places(self) -> int:
        """How many nodes the host takes: those of a reference must fit it."""
        return min(self.nodes_max, NODES_BUNDLED_MAX if self.bundles else COUNTED_MAX)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A registered node as kept on disk; `counted` is the last entry a reference has of it.

    `bundle` is that of the bundle in which it was counted, if it was in one.
    """

    context: int
    name: str
    samples: int
    counted: Counted | None = None
    bundle: Counted | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One reference of the chain as it travels, and its hash."""

    version: int
    reference: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """What a host must find again after a crash. `bodies` are those of the open round, by place."""

    fixed: Fixed
    residual: Vector
    version: int = 0
    reference: bytes = b""
    started: bool = False
    finished: bool = False
    nodes: tuple[NodeRecord, ...] = ()
    chain: tuple[Link, ...] = ()
    bodies: tuple[tuple[int, bytes], ...] = ()
    counter: int = 0


def new_state(dimension: int) -> CoordinatorState:
    """The state of a run that has not begun."""
    return CoordinatorState(np.zeros(dimension, dtype=np.int32), feedback.init(dimension))


@dataclass(slots=True)
class Node:
    """What the coordinator knows of a node while it runs."""

    context: int
    name: str
    samples: int
    counted: Counted | None = None
    bundle: Counted | None = None
    active: bool = True
    heard_at: float | None = None
    refused: Counter[str] = field(default_factory=Counter)
