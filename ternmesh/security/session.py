"""Sessions: the replay window, the claims of a sync frame, and the stored state. SPEC.md 9.3, 9.4.

A session is one process of a sender, named by 8 random bytes, with an epoch that only rises. Every
frame with address 0 (a hello, a welcome, a sync) has claims before its body: the sender's view of
both directions. Its key depends on no session state, so two ends can synchronise whatever either of
them has lost.

The replay window knows which counters of a sender have been used. It changes only after a frame's
tag has been checked.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from enum import Enum

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.identity import FINGERPRINT_SIZE
from ternmesh.wire.frame import COUNTER_BITS

SIZE = 1024  # counters in a replay window
COUNTER_MAX = (1 << 64) - 1
MARK_SIZE = 4  # bytes of a frame's tag that a window keeps
INSTANCE_SIZE = 8
LINEAGE_SIZE = 4
NOBODY = bytes(2 * LINEAGE_SIZE)  # the echo of a peer of which no sync has come
EPOCH_MAX = 0x7FFFFFFF  # half of the range, so that the next epoch still fits
HIGH_SIZE = 5  # bytes of a counter above its low 24 bits
CLEAR_SIZE = INSTANCE_SIZE + HIGH_SIZE  # in front of the sealed part of a sync frame
SYNC, KEYS = 0x0A, 0x0B
KINDS = (SYNC, KEYS)  # the bodies that are for the sealing itself
ANSWER, QUESTION = bytes((SYNC, 0)), bytes((SYNC, 1))
_ALL = (1 << SIZE) - 1
_SPAN = 1 << COUNTER_BITS
_SEEN_SIZE = SIZE // 8
_CLAIMS = struct.Struct("<4sI8sIQI")
_KEYS = struct.Struct("<BI16sQ")
_PEER = struct.Struct(f"<{FINGERPRINT_SIZE}s4s8sI?8sIQ{_SEEN_SIZE}s")
_GROUP = struct.Struct(f"<{FINGERPRINT_SIZE}sI16sIQ{_SEEN_SIZE}s")
CLAIMS_SIZE = _CLAIMS.size
KEYS_SIZE = _KEYS.size


class Verdict(Enum):
    """The replay window's result for a frame with a valid tag."""

    NEW = "new"
    REPLAY = "replay"
    CLONE = "clone"  # another frame with a used counter: two senders have the same key


@dataclass(frozen=True, slots=True)
class WindowState:
    """The stored state of a window. Counters below the window count as seen."""

    highest: int
    seen: int  # bit i is counter `highest - i`


_UNUSED = WindowState(0, 0)


class Window:
    """The last 1,024 counters of one sender.

    It also keeps the first bytes of each tag (not over restarts). They distinguish a second sender
    with the same key from a replay.
    """

    def __init__(self, state: WindowState, mark: bytes = b"") -> None:
        self.highest = state.highest  # counter seen
        self._seen = state.seen
        self._marks: bytearray | None = None
        if mark:  # of the frame under the highest counter
            self._set_mark(state.highest, mark)

    @property
    def state(self) -> WindowState:
        """The state to store."""
        return WindowState(self.highest, self._seen)

    def whole(self, low: int) -> int:
        """The counter nearest to the highest one whose low 24 bits are `low`."""
        return whole_counter(self.highest, low)

    def take(self, counter: int, mark: bytes) -> Verdict:
        """Enter a frame with a valid tag; `mark` is the first 4 bytes of that tag."""
        ahead = counter - self.highest
        if ahead > 0:
            self._advance(ahead)
        elif ahead <= -SIZE:
            return Verdict.REPLAY
        elif self._seen >> -ahead & 1:
            is_same = self._mark(counter) in (mark, bytes(MARK_SIZE))
            return Verdict.REPLAY if is_same else Verdict.CLONE
        self._seen |= 1 << max(0, -ahead)
        self._set_mark(counter, mark)
        return Verdict.NEW

    def _mark(self, counter: int) -> bytes:
        """The mark of a counter in the window, zeros if unknown."""
        place = MARK_SIZE * (counter % SIZE)
        return bytes((self._marks or bytes(MARK_SIZE * SIZE))[place : place + MARK_SIZE])

    def _set_mark(self, counter: int, mark: bytes) -> None:
        if self._marks is None:
            self._marks = bytearray(MARK_SIZE * SIZE)
        place = MARK_SIZE * (counter % SIZE)
        self._marks[place : place + MARK_SIZE] = mark

    def _advance(self, ahead: int) -> None:
        self._seen = self._seen << ahead & _ALL if ahead < SIZE else 0
        self.highest += ahead


def whole_counter(near: int, low: int) -> int:
    """The counter nearest to `near` whose low 24 bits are `low`."""
    counter = near + (low - near + _SPAN // 2) % _SPAN - _SPAN // 2
    if counter < 0:
        return counter + _SPAN
    return counter if counter <= COUNTER_MAX else counter - _SPAN


def closed_window(counter: int, mark: bytes = b"") -> Window:
    """A window that has seen all counters up to `counter`, which may have a mark."""
    return Window(WindowState(counter, _ALL), mark)


@dataclass(frozen=True, slots=True)
class Claims:
    """A sender's view of both directions, sent with a sync frame."""

    lineage: bytes  # random name of the sender's stored state of the receiver
    epoch: int  # of the sender's own session
    echo: bytes = NOBODY  # the receiver's lineage and begin of its instance, as last received
    floor: int = 0  # the sender accepts the receiver's frames from this epoch on
    seen: int = 0  # the highest counter of the receiver that the sender has accepted
    group: int = 0  # the label of the broadcast key that the sender holds, 0 for none


@dataclass(frozen=True, slots=True)
class SessionId:
    """The session of one direction: the sender's process and its epoch."""

    instance: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class PeerState:
    """The stored state of a peer."""

    name: str
    fingerprint: bytes  # of the peer's keys
    lineage: bytes  # random, as old as this state: a sync that echoes it is not older
    heard: bytes  # the echo for the peer's next sync (`Claims.echo`)
    epoch: int  # of this end's own session
    receiving: SessionId | None = None  # the peer's session
    window: WindowState = _UNUSED  # of the peer's session


@dataclass(frozen=True, slots=True)
class GroupState:
    """The stored state of a broadcast key. The hub stores only its epoch."""

    fingerprint: bytes  # of the hub's keys
    epoch: int
    secret: bytes = field(repr=False)
    given: int = 0  # the epoch of the hub's session in which the key came
    window: WindowState = _UNUSED


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
class SealingState:
    """The stored state of a keyed end. A new end has the defaults."""

    peers: tuple[PeerState, ...] = ()
    group: GroupState | None = None
    clones: tuple[CloneCount, ...] = ()


def write_claims(claims: Claims) -> bytes:
    """The bytes of claims, which a sync frame has before its body."""
    return _CLAIMS.pack(
        claims.lineage, claims.epoch, claims.echo, claims.floor, claims.seen, claims.group
    )


def read_claims(data: bytes) -> tuple[Claims, bytes]:
    """Claims and the body after them; WireError, also for a malformed body of the sealing."""
    if len(data) <= CLAIMS_SIZE:
        raise WireError("length", "a frame with address 0 must have claims and a body")
    claims = Claims(*_CLAIMS.unpack_from(data))
    if not 0 < claims.epoch <= EPOCH_MAX:
        raise WireError("sync", f"the epoch of a session is 1 to {EPOCH_MAX}")
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
    receiving = state.receiving or SessionId(bytes(INSTANCE_SIZE), 0)
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
    """The state in the bytes of `write_peer`; SecurityError for other bytes."""
    if len(data) != _PEER.size:
        raise SecurityError(f"the stored state of {name} is damaged: delete it and start again")
    fingerprint, lineage, heard, epoch, is_known, *session, highest, seen = _PEER.unpack(data)
    receiving = SessionId(*session) if is_known else None
    window = WindowState(highest, int.from_bytes(seen, "little"))
    return PeerState(name, fingerprint, lineage, heard, epoch, receiving, window)


def write_group(state: GroupState) -> bytes:
    """A broadcast key's state as bytes. They are secret."""
    return _GROUP.pack(
        state.fingerprint,
        state.epoch,
        state.secret,
        state.given,
        state.window.highest,
        state.window.seen.to_bytes(_SEEN_SIZE, "little"),
    )


def read_group(data: bytes) -> GroupState:
    """The state in the bytes of `write_group`; SecurityError for other bytes."""
    if len(data) != _GROUP.size:
        raise SecurityError("the stored broadcast key is damaged: delete it and start again")
    fingerprint, epoch, secret, given, highest, seen = _GROUP.unpack(data)
    window = WindowState(highest, int.from_bytes(seen, "little"))
    return GroupState(fingerprint, epoch, secret, given, window)
