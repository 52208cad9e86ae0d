"""What two ends know of each other's frames, and what they say of it. SPEC.md section 9.3.

A session is one process of a sender, named by its 8 random bytes, with an epoch that only rises.
Claims travel in front of the body of every frame with context 0 (a hello, a welcome, a sync), under
a key that depends on neither: so two ends find each other whatever either of them has lost.
"""

import hashlib
import struct
from dataclasses import dataclass, field

from ternmesh.errors import TrustError, WireError
from ternmesh.trust.identity import FINGERPRINT_SIZE
from ternmesh.trust.window import SIZE, WindowState

INSTANCE_SIZE = 8
LINEAGE_SIZE = 4
NOBODY = bytes(2 * LINEAGE_SIZE)
EPOCH_MAX = 0x7FFFFFFF  # half of what fits, so that the one above it still fits
_CLAIMS = struct.Struct("<4sI8sIQI")
CLAIMS_SIZE = _CLAIMS.size
HIGH_SIZE = 5
CLEAR_SIZE = INSTANCE_SIZE + HIGH_SIZE
SYNC, KEYS = 0x0A, 0x0B
KINDS = (SYNC, KEYS)  # bodies that the sealing itself takes
ANSWER, QUESTION = bytes((SYNC, 0)), bytes((SYNC, 1))
_KEYS = struct.Struct("<BI16sQ")
KEYS_SIZE = _KEYS.size
_SEEN_SIZE = SIZE // 8
_UNUSED = WindowState(0, 0)
_PEER = struct.Struct(f"<{FINGERPRINT_SIZE}s4s8sI?8sIQ{_SEEN_SIZE}s")
_GROUP = struct.Struct(f"<{FINGERPRINT_SIZE}sI16sIQ{_SEEN_SIZE}s")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a sender says of both directions.

    Its own frames are of `epoch`, and what it knows of the receiver began with `lineage`. `echo` is
    the receiver's lineage and the head of its instance, as last heard (zeros for never). Of the
    receiver's frames it takes those from epoch `floor` on, and `seen` is the highest counter that
    it has taken. `group` is the label of the broadcast key that it holds, 0 for none.
    """

    lineage: bytes
    epoch: int
    echo: bytes = NOBODY
    floor: int = 0
    seen: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """The session of one direction: its process and epoch."""

    instance: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class PeerState:
    """What must survive of a peer, whose keys have this `fingerprint`.

    `lineage` is random and as old as this state: who echoes it repeats nothing from before that.
    `heard` is the echo for the peer; `epoch` that of this end's own frames.
    """

    name: str
    fingerprint: bytes
    lineage: bytes
    heard: bytes
    epoch: int
    receiving: Session | None = None
    window: WindowState = _UNUSED


@dataclass(frozen=True, slots=True)
class GroupState:
    """The broadcast key of the hub with this `fingerprint`; it came in its session epoch `given`.

    At the hub itself only the epoch is kept: it makes a new key with each start.
    """

    fingerprint: bytes
    epoch: int
    secret: bytes = field(repr=False)
    given: int = 0
    window: WindowState = _UNUSED


def group_name(secret: bytes) -> bytes:
    """The 16 bytes that name a broadcast key in what is signed for those who hold it."""
    return hashlib.sha256(b"ternmesh broadcast key" + secret).digest()[:16]


def group_label(secret: bytes) -> int:
    """32 bits by which its holder names a broadcast key to the hub."""
    return int.from_bytes(group_name(secret)[:4], "little")


@dataclass(frozen=True, slots=True)
class CloneCount:
    """How often a key was seen in two hands, or one that fell back: that of the peer `name`.

    `name` is "all" for the broadcast key: a member has sealed in the hub's place.
    """

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class SealingState:
    """All that a keyed end must find again. A new end has the defaults."""

    peers: tuple[PeerState, ...] = ()
    group: GroupState | None = None
    clones: tuple[CloneCount, ...] = ()


def write_claims(claims: Claims) -> bytes:
    """The bytes of claims."""
    c = claims
    return _CLAIMS.pack(c.lineage, c.epoch, c.echo, c.floor, c.seen, c.group)


def read_claims(data: bytes) -> tuple[Claims, bytes]:
    """Claims and the body behind them; WireError, also for one of the seals' own that is none."""
    if len(data) <= CLAIMS_SIZE:
        raise WireError("length", "a frame with context 0 has claims and a body")
    claims = Claims(*_CLAIMS.unpack_from(data))
    if not 0 < claims.epoch <= EPOCH_MAX:
        raise WireError("sync", f"the epoch of a session is 1 to {EPOCH_MAX}")
    body = data[CLAIMS_SIZE:]
    _check_own(body)
    return claims, body


def _check_own(body: bytes) -> None:
    """WireError for a body of the seals' own that has not its form."""
    if body[0] == KEYS:
        read_keys(body)
    elif body[0] == SYNC and body not in (ANSWER, QUESTION):
        raise WireError("length", "a sync is of two bytes, and asks for another or does not")


def write_keys(epoch: int, secret: bytes, counter: int) -> bytes:
    """The body that gives a broadcast key away; broadcasts up to `counter` are in the past."""
    return _KEYS.pack(KEYS, epoch, secret, counter)


def read_keys(body: bytes) -> tuple[int, bytes, int]:
    """Epoch, secret and counter of such a body; WireError."""
    if len(body) != _KEYS.size:
        raise WireError("length", f"a broadcast key takes {_KEYS.size} bytes")
    _, epoch, secret, counter = _KEYS.unpack(body)
    if epoch == 0:
        raise WireError("sync", "the first broadcast key has epoch 1")
    return epoch, secret, counter


def write_peer(state: PeerState) -> bytes:
    """A peer's state as stores keep it (its name is the key)."""
    receiving = state.receiving or Session(bytes(INSTANCE_SIZE), 0)
    return _PEER.pack(
        state.fingerprint,
        state.lineage,
        state.heard,
        state.epoch,
        state.receiving is not None,
        receiving.instance,
        receiving.epoch,
        state.window.highest,
        state.window.seen.to_bytes(_SEEN_SIZE, "little"),
    )


def read_peer(name: str, data: bytes) -> PeerState:
    """The state of `write_peer`; TrustError for other bytes."""
    if len(data) != _PEER.size:
        raise TrustError(f"what is kept of {name} is damaged: delete it and start again")
    fingerprint, lineage, heard, epoch, is_known, *session, highest, seen = _PEER.unpack(data)
    receiving = Session(*session) if is_known else None
    window = WindowState(highest, int.from_bytes(seen, "little"))
    return PeerState(name, fingerprint, lineage, heard, epoch, receiving, window)


def write_group(state: GroupState) -> bytes:
    """A broadcast key's state as stores keep it. It is secret."""
    seen = state.window.seen.to_bytes(_SEEN_SIZE, "little")
    g = state
    return _GROUP.pack(g.fingerprint, g.epoch, g.secret, g.given, g.window.highest, seen)


def read_group(data: bytes) -> GroupState:
    """The state of `write_group`; TrustError for other bytes."""
    if len(data) != _GROUP.size:
        raise TrustError("the broadcast key that is kept is damaged: delete it and start again")
    fingerprint, epoch, secret, given, highest, seen = _GROUP.unpack(data)
    window = WindowState(highest, int.from_bytes(seen, "little"))
    return GroupState(fingerprint, epoch, secret, given, window)
