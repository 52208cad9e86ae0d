"""What the two state machines tell the program around them. Values only.

The program handles all events, makes them durable in one commit, and only then sends frames: so
nothing is promised to a peer that a crash could take back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.plan import Plan
from ternmesh.trust.sealing import Change
from ternmesh.wire.reference import Counted

Vector = NDArray[np.float32]
Fixed = NDArray[np.int32]

OTHER = "other"
REFUSED_SHOWN_MAX = 1024  # in a burst the counters go on, but no more `Refused` events wait
FIRST_CONTACT = "sync"  # the reason of a refusal that every first contact begins with


@dataclass(frozen=True, slots=True)
class CountersReserved:
    """Seal counters below `limit` are about to be used. Keep it before anything is sent."""

    limit: int


@dataclass(frozen=True, slots=True)
class TrustChanged:
    """What the seals know of their peers has changed. Keep it before anything is sent."""

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Something from `peer` was refused (on a node, peer '' means that the host refused ours)."""

    peer: str
    reason: str


# Of the node


@dataclass(frozen=True, slots=True)
class Pending:
    """A packet of unknown fate; `corrected` (float32, D) is what it was made from."""

    round: int
    corrected: Vector
    digest: bytes
    bodies: tuple[bytes, ...]  # manifest first, then the shares in order


@dataclass(frozen=True, slots=True)
class Joined:
    """The host has taken this node in. A run other than before means: start from nothing."""

    run: bytes
    context: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Advanced:
    """A reference was applied, and the pending packet settled; `fixed` is the sum of all steps."""

    version: int
    reference: bytes
    fixed: Fixed
    residual: Vector
    finished: bool


@dataclass(frozen=True, slots=True)
class PacketMade:
    """A packet is ready to be sent. Keep it: it is sent until a receipt or the next reference.

    It comes again, with the same digest and bodies, when late work is folded into `corrected`.
    """

    pending: Pending


@dataclass(frozen=True, slots=True)
class ResidualChanged:
    """Work that came too late was folded into the residual; no packet is pending."""

    residual: Vector


@dataclass(frozen=True, slots=True)
class FellSilent:
    """The work of this round is too little for a packet: it is all in the residual now.

    `in_a_row` counts such rounds since the last packet, this one included.
    """

    round: int
    residual: Vector
    in_a_row: int


@dataclass(frozen=True, slots=True)
class PacketReceived:
    """The host holds the whole packet of a round on disk."""

    round: int


@dataclass(frozen=True, slots=True)
class WorkReady:
    """Train for this round from the reference of the same number, then submit the delta."""

    round: int


NodeEvent = (
    CountersReserved
    | TrustChanged
    | Refused
    | Joined
    | Advanced
    | PacketMade
    | ResidualChanged
    | FellSilent
    | PacketReceived
    | WorkReady
)

# Of the host


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node was taken in, or said hello again with another sample count."""

    context: int
    name: str
    samples: int


@dataclass(frozen=True, slots=True)
class BodyAccepted:
    """A body of the open round, new and well-formed: a manifest, a share, or a word of silence.

    Keep it before it is answered. `context` is its place: the node's context, or that with a mark
    (`open_round.BUNDLE`) for what belongs to a gateway's bundle in the node's name.
    """

    context: int
    round: int
    body: bytes


@dataclass(frozen=True, slots=True)
class PacketForgotten:
    """What was accepted at a place does not add up: delete it all, it will be sent again."""

    context: int
    round: int


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """A round is open until `deadline` (the caller's clock), or until all that are waited for."""

    round: int
    deadline: float


@dataclass(frozen=True, slots=True)
class RoundExtended:
    """The deadline passed with too few packets; the round stays open."""

    round: int
    deadline: float


@dataclass(frozen=True, slots=True)
class ReferenceMade:
    """The round is closed: `content` is the certified object, `fixed` and `residual` the new state.

    `missing` are the contexts of known nodes that it does not count and that were not silent;
    `bundles` has for each node that was counted in a gateway's bundle the row of that bundle.
    """

    version: int
    reference: bytes
    content: bytes
    fixed: Fixed
    residual: Vector
    counted: tuple[Counted, ...]
    missing: tuple[int, ...]
    finished: bool
    bundles: tuple[tuple[int, Counted], ...] = ()


HostEvent = (
    CountersReserved
    | TrustChanged
    | Refused
    | NodeJoined
    | BodyAccepted
    | PacketForgotten
    | RoundOpened
    | RoundExtended
    | ReferenceMade
)


def refusals(counted: Mapping[str, int]) -> dict[str, int]:
    """Refusals by reason without first contacts, which every healthy fleet has."""
    return {reason: count for reason, count in counted.items() if reason != FIRST_CONTACT}


def known_reason(reason: str, counted: Mapping[str, int], most: int) -> str:
    """The reason to count under: `other` beyond so many, for another end may choose the words."""
    return reason if reason in counted or len(counted) < most else OTHER
