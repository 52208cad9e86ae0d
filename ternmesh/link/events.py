"""The events of a link, and the state that a link needs after a restart. Values only.

After each call the program takes all events, saves them to disk in one commit, and only then sends
frames. So a status never counts a symbol that a crash could remove.
"""

from dataclasses import dataclass, field

from ternmesh.link.messages import Offer
from ternmesh.security.sealing import CountersReserved, SecurityChanged

CANCELLED = "cancelled"  # the reason of `GaveUp` after a call of `cancel`
SUPERSEDED = "superseded"  # the reason of `GaveUp` if a newer object replaces it
ARRIVED_MAX = 64  # stored names of the last objects of each peer


@dataclass(frozen=True, slots=True)
class Queued:
    """An object waits for delivery to `receivers`. Save it."""

    number: int
    peer: str
    receivers: tuple[str, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class TransferBegun:
    """An object will be sent in `slot` only: receivers identify it by its slot."""

    number: int
    slot: int


@dataclass(frozen=True, slots=True)
class RepairsReserved:
    """Repair symbols below `limit` of each generation will be sent."""

    number: int
    limit: int


@dataclass(frozen=True, slots=True)
class ReceiverDone:
    """One receiver of a broadcast holds the object on disk; others still lack it."""

    number: int
    receiver: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """All receivers hold the object on disk: delete it."""

    number: int
    receivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GaveUp:
    """An object was not delivered to `receivers`, for `reason`: delete it."""

    number: int
    receivers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SymbolHeld:
    """A symbol of an incoming object arrived. Save it."""

    peer: str
    offer: Offer
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class IncomingDropped:
    """An incoming object was abandoned: delete its symbols."""

    peer: str
    offer: Offer


@dataclass(frozen=True, slots=True)
class ObjectArrived:
    """A whole object has arrived. Save its name, and the object or its effect."""

    peer: str
    name: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A frame of the protocol above the link, passed on unopened. Save nothing."""

    peer: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """A frame was refused and changed nothing, or a peer has no key."""

    peer: str
    reason: str


LinkEvent = (
    CountersReserved
    | SecurityChanged
    | Queued
    | TransferBegun
    | RepairsReserved
    | ReceiverDone
    | Delivered
    | GaveUp
    | SymbolHeld
    | IncomingDropped
    | ObjectArrived
    | FrameArrived
    | LinkRefused
)


@dataclass(frozen=True, slots=True)
class OutRecord:
    """An object that was queued before a restart. `slot` is None if no symbol was sent."""

    queued: Queued
    repairs: int = 0
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class InRecord:
    """The symbols of an unfinished object that were held before a restart."""

    peer: str
    offer: Offer
    symbols: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state that a link starts from. `arrived`: names of the last objects, by peer."""

    counter: int = 0
    number: int = 0
    outgoing: tuple[OutRecord, ...] = ()
    incoming: tuple[InRecord, ...] = ()
    arrived: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
