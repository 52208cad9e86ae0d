"""What the coordinator keeps: its settings, its nodes, its chain, and the state a host restores."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ternmesh.hypervector import feedback
from ternmesh.swarm.events import Fixed, Vector
from ternmesh.wire.reference import Counted


@dataclass(frozen=True, slots=True)
class Settings:
    """How the host runs rounds; times in seconds. `chain_max` references are kept for catch-up."""

    min_peers: int = 1
    deadline_s: float = 60.0
    nodes_max: int = 1024
    chain_max: int = 256


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A registered node as kept on disk; `counted` is the last entry a reference has of it."""

    context: int
    name: str
    samples: int
    counted: Counted | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One reference of the chain as it travels, and its hash."""

    version: int
    reference: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """What a host must find again after a crash. `bodies` are those accepted in the open round."""

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
    active: bool = True
    heard_at: float | None = None
    caught_up_at: float | None = None
    refused: Counter[str] = field(default_factory=Counter)
