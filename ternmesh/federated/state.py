"""The state of node and host: the phases, and what is restored after a restart."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import numpy as np

from ternmesh.codec.encoder import zero_residual
from ternmesh.errors import StateError
from ternmesh.federated.events import Pending
from ternmesh.federated.rules import AggregationSettings
from ternmesh.plan import Plan
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire.control import FINISHED, GATHERING, INTEGER_MAX, OPEN
from ternmesh.wire.global_update import COUNTED_MAX, NO_GLOBAL_HASH, Counted

NO_RUN = bytes(8)
LATE_KEPT = 16  # deadlines in whose time a node that is on time makes up for a late one

State = TypeVar("State", bound=Enum)
Step = TypeVar("Step", bound=Enum)


def next_state(legal: Mapping[State, Mapping[Step, State]], state: State, step: Step) -> State:
    """Return the state after a step. Raises StateError if the state does not allow the step.

    `legal` has, for each state, the steps that it allows and the state after each.
    """
    if step not in legal[state]:
        raise StateError(f"a step that is not allowed in the state {state.value!r}: {step.value}")
    return legal[state][step]


class RunState(Enum):
    """The state of a run on its host."""

    GATHERING = "waiting for nodes"
    GATHERING_BEHIND = "waiting for nodes, and for global updates that this host has lost"
    OPEN = "a round is open"
    BEHIND = "waiting for global updates that this host has lost"
    FINISHED = "finished"

    @property
    def is_behind(self) -> bool:
        """Whether a node may have global updates that this host has lost."""
        return self in (RunState.GATHERING_BEHIND, RunState.BEHIND)


class RunStep(Enum):
    """The step that takes a run on its host from one state to another."""

    ENOUGH_JOINED = "as many nodes have joined as the run needs"
    ADVANCED = "a global update was made, or came back from a node"
    RUN_ENDED = "so was the last one"
    CLAIM_HEARD = "a node has newer global updates of this run"
    CLAIMS_OVER = "no node has newer global updates any more"


RUN_LEGAL: Mapping[RunState, Mapping[RunStep, RunState]] = {
    RunState.GATHERING: {
        RunStep.ENOUGH_JOINED: RunState.OPEN,
        RunStep.CLAIM_HEARD: RunState.GATHERING_BEHIND,
    },
    RunState.GATHERING_BEHIND: {
        RunStep.CLAIM_HEARD: RunState.GATHERING_BEHIND,
        RunStep.CLAIMS_OVER: RunState.GATHERING,
        RunStep.ADVANCED: RunState.BEHIND,
        RunStep.RUN_ENDED: RunState.FINISHED,
    },
    RunState.OPEN: {
        RunStep.ADVANCED: RunState.OPEN,
        RunStep.RUN_ENDED: RunState.FINISHED,
        RunStep.CLAIM_HEARD: RunState.BEHIND,
    },
    RunState.BEHIND: {
        RunStep.CLAIM_HEARD: RunState.BEHIND,
        RunStep.CLAIMS_OVER: RunState.OPEN,
        RunStep.ADVANCED: RunState.BEHIND,
        RunStep.RUN_ENDED: RunState.FINISHED,
    },
    RunState.FINISHED: {},
}
# The phase that nodes are told
WIRE_PHASES: Mapping[RunState, int] = {
    RunState.GATHERING: GATHERING,
    RunState.GATHERING_BEHIND: GATHERING,
    RunState.OPEN: OPEN,
    RunState.BEHIND: OPEN,
    RunState.FINISHED: FINISHED,
}


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One global update of the chain, as sent, and its hash.

    `rows` proves what it counts where it has no list: on a host to nodes (`wire.proof.RoundRows`),
    on a node that of itself (`wire.proof.Proof`).
    """

    version: int
    global_hash: bytes
    content: bytes
    rows: bytes = b""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a run has taught a node or the host, to carry over to another run."""

    model_q24: ModelQ24  # the global adapter (int32, D)
    residual: Vector  # what no update, or no global update, has carried yet (float32, D)


# The node


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state that a node needs after a restart. A new node has the defaults."""

    model_q24: ModelQ24  # the global adapter (int32, D)
    residual: Vector  # what no update has carried yet (float32, D)
    run: bytes = NO_RUN
    address: int = 0
    plan: Plan | None = None
    version: int = 0
    global_hash: bytes = NO_GLOBAL_HASH
    finished: bool = False
    pending: Pending | None = None
    received: bool = False  # whether the host has the whole pending update
    counter: int = 0  # the first seal counter that was never reserved
    silent: bool = False  # in the round of `version`
    silences: int = 0  # silent rounds since the last update
    chain: tuple[ChainLink, ...] = ()  # the newest global updates, for a host that lost them
    before: Learned | None = None  # of the run before, until this one has a global update
    own_q24: ModelQ24 | None = None  # what it keeps beside the global adapter; None for nothing


def new_node_state(dimension: int) -> NodeState:
    """Return the state of a node that has never joined; its adapter has `dimension` numbers."""
    return NodeState(np.zeros(dimension, dtype=np.int32), zero_residual(dimension))


# The host


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How the host runs rounds; times in seconds.

    `chain_max` global updates are kept for nodes that missed some. `has_voters`: whether other
    hosts must agree to a global update before it is certified; then whole updates alone count.
    `bears_liars`: whether these may lie.
    `is_aggregator`: whether a host above makes the global updates, of what this one adds up.

    >>> HostSettings(min_peers=2, deadline_s=120.0).nodes_max
    1024
    """

    min_peers: int = 1
    deadline_s: float = 60.0
    nodes_max: int = 1024
    chain_max: int = 256
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    has_voters: bool = False
    bears_liars: bool = False
    is_aggregator: bool = False
    listed_max: int = 32  # rows of a global update; of more it has the root, and nodes get proofs

    @property
    def decides_alone(self) -> bool:
        """Whether this host makes and signs the global updates by itself."""
        return not (self.has_voters or self.is_aggregator)

    @property
    def deadline_ms(self) -> int:
        """The time of a round, as nodes are told."""
        return min(INTEGER_MAX, round(1000 * self.deadline_s))

    @property
    def places(self) -> int:
        """The largest number of nodes: the list in a global update must have room for all."""
        return min(self.nodes_max, COUNTED_MAX)


@dataclass(slots=True)
class RegisteredNode:
    """A registered node. The first five fields survive a restart of the host."""

    address: int
    name: str
    samples: int = 0
    counted: Counted | None = None  # the last row that a global update has of it
    active: bool = True  # a frame of it has come since the last deadline without one
    late: int = 0  # deadlines missed, see `was_on_time`
    late_until: float = 0.0  # until then `late` does not fall
    rests_until: int = 0  # the version from which rounds may wait for it again
    heard_at: float | None = None
    members: int = 0  # boards of an aggregator, as its last update says
    in_step: bool = False  # it has shown since the host's start that it is at the host's version
    refused: Counter[str] = field(default_factory=Counter)  # by reason

    def heard(self, now: float) -> None:
        self.heard_at = now
        self.active = True

    def is_awaited(self, version: int, now: float) -> bool:
        return self.active and (version >= self.rests_until or now >= self.late_until)

    def rest(self, version: int, now: float, deadline_s: float) -> None:
        """Note that the round of `version` waited for this node until its deadline, in vain.

        The rounds that do not wait grow fourfold each time, up to the time of `LATE_KEPT`
        deadlines: a node that withholds its updates, or only says hello, costs few deadlines, and
        a slow one can come back.
        """
        self.late, self.late_until = self.late + 1, now + LATE_KEPT * deadline_s
        self.rests_until = version + 4 ** (self.late if self.active else self.late - 1)

    def was_on_time(self, now: float, deadline_s: float) -> None:
        """Note that a round had this node's update, or its silence, when it closed.

        It makes up for one deadline, and that slowly: a node that is late and on time in turn costs
        one deadline in the time of `LATE_KEPT`.
        """
        if self.late and now >= self.late_until:
            self.late, self.late_until = self.late - 1, now + LATE_KEPT * deadline_s


@dataclass(frozen=True, slots=True)
class HostState:
    """The state that a host needs after a restart, which takes over the nodes.

    `bodies` are those of the open round, by place.
    """

    model_q24: ModelQ24
    residual: Vector
    version: int = 0
    global_hash: bytes = b""
    started: bool = False
    finished: bool = False
    nodes: tuple[RegisteredNode, ...] = ()
    chain: tuple[ChainLink, ...] = ()
    bodies: tuple[tuple[int, bytes], ...] = ()
    counter: int = 0  # the first seal counter that was never reserved
    is_first: bool = False  # the host knows no run before this one: it may have lost it
    mean: bytes = b""  # of the adapters, in a run without an end (`Consolidation.stored`)
    standings: bytes = b""  # of the nodes (`Reputations.stored`)
    kept: tuple[bytes, ...] = ()  # rounds, for the guard (`Guard.stored`), in any order

    @property
    def run_state(self) -> RunState:
        """The state to continue in."""
        if self.finished:
            return RunState.FINISHED
        return RunState.OPEN if self.started else RunState.GATHERING


def new_host_state(dimension: int) -> HostState:
    """Return the state of a run that has not begun."""
    return HostState(np.zeros(dimension, dtype=np.int32), zero_residual(dimension))
