"""The events that a node and the host return to the program that runs them. Values only.

The program takes all events, saves them to disk in one commit, and only then sends frames. So no
frame reports a change that a crash could undo.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ternmesh.codec.encoder import Hypervector
from ternmesh.federated.evaluation import NOT_EVALUATED, Evaluation
from ternmesh.plan import Plan
from ternmesh.security.sealing import CountersReserved as CountersReserved
from ternmesh.security.sealing import SecurityChanged as SecurityChanged
from ternmesh.types import ModelQ24, Vector
from ternmesh.wire.control import Numbers, Report
from ternmesh.wire.global_update import Counted

OTHER = "other"  # counts refusals after too many different reasons
REFUSED_SHOWN_MAX = 1024  # events that may wait before `Refused` events are only counted
FIRST_CONTACT = "sync"  # every first contact begins with a refusal for this reason

# The reason, also on the wire, by which a node refuses a plan that does not fit its bearer.
FRAME_SIZE = "frame size"
# The reason by which a node tells the host that its membership list is an old copy.
OLD_MEMBERS = "old member list"
AWAY = "away"  # ... and that no round has to wait for it until its next update or hello


@dataclass(frozen=True, slots=True)
class Refused:
    """A frame from `peer` was refused. On a node, peer '' means that the host refused a frame."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class SettingsTaken:
    """On a node: the host has set these. Save them: what has a lower number is not taken again."""

    number: int
    settings: Numbers


@dataclass(frozen=True, slots=True)
class BoardChanged:
    """On the host: a board has reported, or its owner has changed its settings."""

    name: str
    number: int  # of the settings that the host wants
    wanted: Numbers
    report: Report | None


SessionEvent = CountersReserved | SecurityChanged | Refused | SettingsTaken | BoardChanged

# Of the node


@dataclass(frozen=True, slots=True)
class SentTo:
    """The host that has got an update."""

    name: str  # `HOST`, or that of an aggregator
    address: int  # of the node there
    via: int  # the address of that aggregator at the host; 0: not known, or it is the host


@dataclass(frozen=True, slots=True)
class Pending:
    """An update that no global update has settled yet.

    `corrected` (float32, D) is the vector it was made from: the residual plus the delta.
    `carried` is what the chunks carry; None if the update was read from disk.
    """

    round: int
    corrected: Vector
    digest: bytes
    bodies: tuple[bytes, ...]  # manifest first, then the chunks in order
    carried: Hypervector | None = None
    sent_to: SentTo | None = None  # who has got it, once its node has gone to another host


@dataclass(frozen=True, slots=True)
class Joined:
    """The host has registered this node. Where the run or its plan is new, begin anew."""

    run: bytes
    address: int
    plan: Plan
    is_new: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Advanced:
    """A global update was applied, and the pending update settled."""

    version: int
    global_hash: bytes
    model_q24: ModelQ24  # the global adapter: the sum of all steps
    residual: Vector
    finished: bool
    content: bytes = b""  # the global update with its certificate; empty for a global snapshot
    oldest: int | None = None  # the oldest version whose global update is kept; None for none
    counts_own: bool = False  # whether it counts an update of this node
    counts_nobody: bool = False  # or that is not known: the node took a snapshot
    probe: Vector | None = None  # to evaluate with the adapter (`reputation`), float32 [D]
    has_returned: bool = False  # to an older version, and what was learned since is dropped
    own_q24: ModelQ24 | None = None  # as in `NodeState`
    rows: bytes = b""  # the proof of what it counts of this node, where it needed one


@dataclass(frozen=True, slots=True)
class UpdateMade:
    """An update is ready. Save it: it is sent until a receipt or the next global update comes.

    The event comes again, with the same digest and bodies, when late work is added to `corrected`.
    """

    pending: Pending


@dataclass(frozen=True, slots=True)
class ResidualChanged:
    """A delta that came too late was added to the residual; no update is pending."""

    residual: Vector


@dataclass(frozen=True, slots=True)
class FellSilent:
    """The delta of this round is too small for an update: it was added to the residual.

    `in_a_row` counts such rounds since the last update, including this round.
    """

    round: int
    residual: Vector
    in_a_row: int


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """The host has saved the whole update of a round to disk."""

    round: int


@dataclass(frozen=True, slots=True)
class WorkReady:
    """Train for this round from the global adapter of the same version, then submit the delta."""

    round: int


NodeEvent = (
    SessionEvent
    | Joined
    | Advanced
    | UpdateMade
    | ResidualChanged
    | FellSilent
    | UpdateReceived
    | WorkReady
)

# Of the host


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node was registered, or said hello again with another number of samples."""

    address: int
    name: str
    samples: int


@dataclass(frozen=True, slots=True)
class BodyAccepted:
    """A new, well-formed body of the open round: a manifest, a chunk or a silence.

    Save it before you send the answer.
    """

    address: int
    round: int
    body: bytes


@dataclass(frozen=True, slots=True)
class UpdateForgotten:
    """The bodies of a node contradict each other: delete all; the node sends them again."""

    address: int
    round: int


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """A round is open until `deadline` (the caller's clock) or until all awaited updates came."""

    round: int
    deadline: float


@dataclass(frozen=True, slots=True)
class RoundExtended:
    """The deadline passed with too few updates; the round stays open."""

    round: int
    deadline: float


@dataclass(frozen=True, slots=True)
class AddedUp:
    """On an aggregator: what the open round comes to, for the host above."""

    round: int
    vector: Vector  # the combined update (float32, D)
    samples: int
    members: int  # boards whose updates it holds
    root: bytes  # of their rows
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class LiarCaught:
    """An aggregator was audited, and has lied: nothing of it counts any more."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class GlobalUpdateMade:
    """The round is closed, and the next global update was made, or was given back by a node."""

    version: int
    global_hash: bytes
    content: bytes  # with its certificate
    model_q24: ModelQ24  # the new global adapter
    residual: Vector  # of the host: what the global update could not carry
    counted: tuple[Counted, ...]
    missing: tuple[int, ...]  # addresses of nodes that were neither counted nor silent
    finished: bool
    standings: bytes = b""  # of the nodes (`Reputations.stored`)
    kept: bytes = b""  # of the round, for the guard; nothing where that is off (`Guard.stored`)
    returns_to: int | None = None  # the older version from which it goes on
    given_by: str = ""  # the node that gave it back to a host that had lost it
    mean: bytes = b""  # of the adapters, if it has changed (`Consolidation.stored`)
    evaluation: Evaluation = NOT_EVALUATED  # by the nodes, of the global adapter before
    evaluations: tuple[tuple[int, Evaluation], ...] = ()  # by the address of the node
    rows: bytes = b""  # as in `ChainLink`


@dataclass(frozen=True, slots=True)
class Proposed:
    """A host with other voters has made a global update, and waits until they agree to it."""

    version: int
    content: bytes  # without a certificate
    returns_to: int | None  # an older version, for the owner


@dataclass(frozen=True, slots=True)
class RunAdopted:
    """The host had lost all of its runs, and goes on with the run that a node has named."""

    run: bytes
    node: str


HostEvent = (
    SessionEvent
    | RunAdopted
    | NodeJoined
    | BodyAccepted
    | UpdateForgotten
    | RoundOpened
    | RoundExtended
    | AddedUp
    | LiarCaught
    | Proposed
    | GlobalUpdateMade
)


def refusals(counted: Mapping[str, int]) -> dict[str, int]:
    """Return refusals by reason, without those of first contacts, which are normal."""
    return {reason: count for reason, count in counted.items() if reason != FIRST_CONTACT}


def known_reason(reason: str, counted: Mapping[str, int], most: int) -> str:
    """Return the reason to count under: `other` beyond `most` reasons, which peers can choose."""
    return reason if reason in counted or len(counted) < most else OTHER
