"""Sessions: the replay window, the claims of a sync frame, and the stored state. SPEC.md 9.3, 9.4.

A session belongs to one process of each end: its keys come from the ephemeral keys of both
(`ternmesh.security.key_derivation`). Every frame with address 0 (a hello, a welcome, a sync) begins
with the sender's ephemeral key, and has claims before its body.

The replay window knows which counters of a sender have been used. It changes only after a frame's
tag has been checked.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from enum import Enum

from ternmesh.errors import WireError
from ternmesh.security.host_keys import HostKeys
from ternmesh.security.identity import FINGERPRINT_SIZE
from ternmesh.wire.frame import COUNTER_BITS

SIZE = 1024  # counters in a replay window
COUNTER_MAX = (1 << 64) - 1
MARK_SIZE = 4  # bytes of a frame's tag that a window keeps
EPHEMERAL_SIZE = 32  # of an X25519 key
HIGH_SIZE = 5  # bytes of a counter above its low 24 bits
CLEAR_SIZE = EPHEMERAL_SIZE + HIGH_SIZE  # in front of the opening tag of a sync frame
SYNC, KEYS = 0x0A, 0x0B
KINDS = (SYNC, KEYS)  # the bodies that are for the sealing itself
ANSWER, QUESTION = bytes((SYNC, 0)), bytes((SYNC, 1))
_ALL = (1 << SIZE) - 1
_SPAN = 1 << COUNTER_BITS
_CLAIMS = struct.Struct("<QI")
_BEHIND_BIT = 63  # of the first field
_KEYS = struct.Struct("<BI16sQ")
_PEER = struct.Struct(f"<{FINGERPRINT_SIZE}s{EPHEMERAL_SIZE}sQ")
_GROUP = struct.Struct(f"<{FINGERPRINT_SIZE}sI16s{EPHEMERAL_SIZE}sQ")
CLAIMS_SIZE = _CLAIMS.size
KEYS_SIZE = _KEYS.size


class Verdict(Enum):
    """The replay window's result for a frame with a valid tag."""

    NEW = "new"
    REPLAY = "replay"
    CLONE = "clone"  # another frame with a used counter: two senders have the same key


class Window:
    """The last 1,024 counters of one sender. Counters below the window count as used.

    It also keeps the first bytes of each tag. They distinguish a second sender with the same key
    from a replay. `highest` is a counter near which the first one will be.
    """

    def __init__(self, highest: int) -> None:
        self.highest = highest  # counter seen
        self._seen = 0  # bit i is counter `highest - i`
        self._marks: dict[int, bytes] = {}  # by place in the window

    def whole(self, low: int) -> int:
        """The counter nearest to the highest one whose low 24 bits are `low`."""
        return whole_counter(self.highest, low)

    def take(self, counter: int, mark: bytes) -> Verdict:
        """Enter a frame with a valid tag; `mark` is the first 4 bytes of that tag."""
        ahead = counter - self.highest
        if ahead > 0:
            self._seen = self._seen << ahead & _ALL if ahead < SIZE else 0
            self.highest = counter
        elif ahead <= -SIZE:
            return Verdict.REPLAY
        elif self._seen >> -ahead & 1:
            is_same = self._marks.get(counter % SIZE) == mark
            return Verdict.REPLAY if is_same else Verdict.CLONE
        self._seen |= 1 << max(0, -ahead)
        self._marks[counter % SIZE] = mark
        return Verdict.NEW


def whole_counter(near: int, low: int) -> int:
    """The counter nearest to `near` whose low 24 bits are `low`."""
    counter = near + (low - near + _SPAN // 2) % _SPAN - _SPAN // 2
    if counter < 0:
        return counter + _SPAN
    return counter if counter <= COUNTER_MAX else counter - _SPAN


@dataclass(frozen=True, slots=True)
class Claims:
    """What a sender says in a sync frame about the frames of its receiver."""

    seen: int = 0  # the highest counter that the sender has accepted of the receiver's process
    group: int = 0  # the label of the broadcast key that the sender holds, 0 for none
    behind: bool = False  # the receiver's process began with a counter that was used before


@dataclass(frozen=True, slots=True)
class PeerState:
    """The stored state of a peer."""

    name: str
    fingerprint: bytes  # of the peer's keys
    ephemeral: bytes  # the public key of the peer's process, 32 bytes
    highest: int  # the highest counter of that process that was accepted


@dataclass(frozen=True, slots=True)
class GroupState:
    """The stored state of a member's broadcast key. The hub makes a new one in every process."""

    fingerprint: bytes  # of the hub's keys
    epoch: int  # rises within a process of the hub
    secret: bytes = field(repr=False)
    given: bytes  # the hub's ephemeral key in the session in which this key came
    highest: int = 0  # the highest counter of a broadcast under this key


def group_name(secret: bytes) -> bytes:
    """The 16 bytes that name a broadcast key in signed broadcasts."""
    return hashlib.sha256(b"ternmesh broadcast key" + secret).digest()[:16]


def group_label(secret: bytes) -> int:
    """The 32 bits that name a broadcast key in claims."""
    return int.from_bytes(group_name(secret)[:4], "little")


@dataclass(frozen=True, slots=True)
class CloneCount:
    """How often two senders with the same key were seen, or a sender with an old state."""

    name: str  # of the peer; "all" for the broadcast key, with which a member has sealed
    count: int


@dataclass(frozen=True, slots=True)
class ListNumber:
    """The highest number of its membership list that the host has announced."""

    number: int


@dataclass(frozen=True, slots=True)
class HostRotated:
    """The host's keys after a rotation; the sessions of the old one are over."""

    hosts: HostKeys


@dataclass(frozen=True, slots=True)
class SealingState:
    """The stored state of a keyed end. A new end has the defaults."""

    peers: tuple[PeerState, ...] = ()
    group: GroupState | None = None
    clones: tuple[CloneCount, ...] = ()


def write_claims(claims: Claims) -> bytes:
    """The bytes of claims, which a sync frame has before its body."""
    return _CLAIMS.pack(claims.seen | claims.behind << _BEHIND_BIT, claims.group)


def read_claims(data: bytes) -> tuple[Claims, bytes]:
    """Claims and the body after them; WireError, also for a malformed body of the sealing."""
    if len(data) <= CLAIMS_SIZE:
        raise WireError("length", "a frame with address 0 must have claims and a body")
    seen, group = _CLAIMS.unpack_from(data)
    claims = Claims(seen & (1 << _BEHIND_BIT) - 1, group, bool(seen >> _BEHIND_BIT))
    body = data[CLAIMS_SIZE:]
    if body[0] == KEYS:
        read_keys(body)
    elif body[0] == SYNC and body not in (ANSWER, QUESTION):
        raise WireError("length", "a sync has two bytes, and the second is 0 or 1")
    return claims, body


def write_keys(epoch: int, secret: bytes, counter: int) -> bytes:
    """The body that carries a broadcast key; broadcasts up to `counter` are in the past."""
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
    """A peer's state as bytes, without its name."""
    return _PEER.pack(state.fingerprint, state.ephemeral, state.highest)


def read_peer(name: str, data: bytes) -> PeerState:
    return PeerState(name, *_PEER.unpack(data))


def write_group(state: GroupState) -> bytes:
    """A broadcast key's state as bytes. They are secret."""
    return _GROUP.pack(state.fingerprint, state.epoch, state.secret, state.given, state.highest)


def read_group(data: bytes) -> GroupState:
    return GroupState(*_GROUP.unpack(data))
