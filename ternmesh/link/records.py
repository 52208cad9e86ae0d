"""What the link tells its program, and what it must find again after a restart. Values only.

The order is that of the swarm: take frames or a timeout, take all events, put them on disk in one
commit, and only then send. A status then never counts a symbol that a crash could take back.
"""

from dataclasses import dataclass, field

from ternmesh.link.frames import Offer
from ternmesh.trust.sealing import Change

SUPERSEDED = "superseded"  # why an object was given up: a newer one takes its place
ARRIVED_MAX = 64  # names of the objects that came last, remembered of each peer


@dataclass(frozen=True, slots=True)
class LinkCountersReserved:
    """Seal counters below `limit` are about to be used."""

    limit: int


@dataclass(frozen=True, slots=True)
class SealsChanged:
    """Where the link's seals stand (`Sealing.changes`); before whatever else is made durable."""

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """An object waits for delivery to `receivers`; its sender must not forget it."""

    number: int
    peer: str
    receivers: tuple[str, ...]
    payload: bytes
    priority: int
    key: str | None


@dataclass(frozen=True, slots=True)
class TransferBegun:
    """An object is about to be sent in `slot`, and in no other: receivers know it by that."""

    number: int
    slot: int


@dataclass(frozen=True, slots=True)
class RepairsReserved:
    """Repair symbols below `limit` of each generation are about to be sent."""

    number: int
    limit: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """All receivers in the list hold the object on disk: its sender may forget it."""

    number: int
    receivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GaveUp:
    """An object was not delivered to `receivers`, for `reason`."""

    number: int
    receivers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SymbolHeld:
    """A symbol of an object that is on its way in."""

    peer: str
    offer: Offer
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class IncomingDropped:
    """The symbols of an object were forgotten: damaged, or others needed the room."""

    peer: str
    offer: Offer


@dataclass(frozen=True, slots=True)
class ObjectArrived:
    """A whole object. Keep it, or what it led to, and its name before anything is sent."""

    peer: str
    name: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A frame that is not the link's own: it passes as it is, unopened. Nothing to keep."""

    peer: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """Bytes that break the rules, and changed nothing; or a peer for whom there is no key."""

    peer: str
    reason: str


LinkEvent = (
    LinkCountersReserved
    | SealsChanged
    | Queued
    | TransferBegun
    | RepairsReserved
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
    """An object that was queued before a restart, and what of it is known.

    `slot` is None where nothing of it was sent.
    """

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
    """What a link begins with. `arrived` has the names of objects that came last, by peer."""

    counter: int = 0
    number: int = 0
    outgoing: tuple[OutRecord, ...] = ()
    incoming: tuple[InRecord, ...] = ()
    arrived: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
