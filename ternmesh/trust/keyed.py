"""The keyed seal: every frame under a key of its sender and receiver. SPEC.md sections 3 and 9.3.

It has the layout of the open seal, 14 bytes around a body. Frames with context 0 carry 49 bytes
more: they open whatever their receiver has lost. Order as everywhere: frames in or sealed, then
`changes` onto disk, then frames out.
"""

import struct
from collections import Counter
from contextlib import suppress

from ternmesh.errors import SealError, TrustError, WireError
from ternmesh.trust.broadcast import Hub, Listener
from ternmesh.trust.identity import Identity, PublicIdentity, Role
from ternmesh.trust.keys import SUITE_END, SUITE_HOP
from ternmesh.trust.neighbours import Members
from ternmesh.trust.pair import Pair
from ternmesh.trust.roster import ALL
from ternmesh.trust.sealing import Change, Due
from ternmesh.trust.session import (
    ANSWER,
    CLAIMS_SIZE,
    CLEAR_SIZE,
    INSTANCE_SIZE,
    KEYS,
    KEYS_SIZE,
    KINDS,
    CloneCount,
    PeerState,
    SealingState,
    read_keys,
)
from ternmesh.wire.seal import (
    BROADCAST,
    DOWN,
    ENROL,
    HEAD_SIZE,
    OVERHEAD,
    VERSION,
    Header,
    suite_of,
)

SYNC_OVERHEAD = OVERHEAD + CLEAR_SIZE + CLAIMS_SIZE
FRAME_MIN = SYNC_OVERHEAD + KEYS_SIZE  # bytes that frames of a bearer must hold at least
NEIGHBOUR = 0x0001  # the context of suite 2 from one neighbour to another
_HEAD = struct.Struct("<BH3s")
_COUNTER_LOW = (1 << 24) - 1
_UP = frozenset({Role.NODE, Role.GATEWAY})
HUBS = frozenset({Role.HOST, Role.GATEWAY, Role.RELAY})
_FORWARDERS = frozenset(set(Role) - {Role.OBSERVER})


class KeyedSealing:
    """One end of one layer of a fleet; see `ternmesh.trust.sealing.Sealing`.

    `instance` is 8 random bytes that no other such object ever had; `counter` the first seal
    counter that was never reserved; `hub` the peer whose broadcasts count, None where this end is
    the hub. Each start costs a frame to every peer that is known (nothing for a node, which begins
    with a hello anyway): so no copy of a disk can repeat a nonce.
    """

    def __init__(
        self,
        own: Identity,
        roster: Members,
        suite: int,
        instance: bytes,
        counter: int,
        state: SealingState,
        *,
        hub: str | None,
    ) -> None:
        if len(instance) != INSTANCE_SIZE or suite not in (SUITE_END, SUITE_HOP):
            raise ValueError(f"a process has {INSTANCE_SIZE} random bytes, a keyed suite is 1 or 2")
        self._own, self._roster, self._suite, self._instance = own, roster, suite, instance
        self._unused, self._is_new, self._hub_name = counter, True, hub
        self._kept = {peer.name: peer for peer in state.peers}
        self._pairs: dict[str, Pair] = {}
        self._refused: dict[str, PublicIdentity] = {}  # keys of which no secret comes
        self._clones = Counter({known.name: known.count for known in state.clones})
        self._unkept: set[str] = set()  # whose count is not among the changes yet
        self._run = b""
        fleet = roster.fleet
        self._hub = Hub(own, suite, fleet, instance, state.group) if hub is None else None
        self._listener = Listener(suite, fleet, state.group) if hub is not None else None

    asks = True

    def bind(self, run: bytes) -> None:
        """See `Sealing`."""
        self._run = run

    # The verbs

    def seal(self, peer: str, context: int, counter: int, body: bytes) -> bytes:
        """The frame that carries `body`; WireError where this end has no key for `peer`."""
        low = (counter & _COUNTER_LOW).to_bytes(3, "little")
        if context == BROADCAST:
            if self._hub is None:
                raise WireError("role", "only the hub speaks to all")
            head = self._head(self._hub.epoch, context, low)
            frame = self._hub.seal(head, counter, body)
        else:
            pair = self._pair(peer)
            head = self._head(pair.epoch, context, low)
            if context == ENROL:
                frame = pair.seal_sync(head, context, counter, body, self._held())
            else:
                frame = pair.seal(head, context, counter, body, self._run)
        self._unused = max(self._unused, counter + 1)
        return frame

    def open(self, peer: str, frame: bytes) -> tuple[Header, bytes]:
        """Header and body of a frame; WireError where nothing may be believed."""
        suite = suite_of(frame)
        if suite != self._suite:
            raise WireError("suite", f"seal suite {suite} is not in use here")
        first, context, low_bytes = _HEAD.unpack_from(frame)
        low, phase = int.from_bytes(low_bytes, "little"), first >> 1 & 1
        head, content = frame[:HEAD_SIZE], frame[HEAD_SIZE:]
        header = Header(context, low, self._suite, phase)
        if context == BROADCAST:
            return header, self._open_broadcast(head, low, phase, content)
        pair = self._pair(peer)
        if not self._may_speak(pair.other.role, context):
            raise WireError("role", f"{peer} may not speak in context {context:#06x}")
        if context == ENROL:
            body = self._open_sync(peer, pair, head, low, content)
        else:
            body = pair.open(head, context, low, phase, content, self._run)
        if self._listener is not None and peer == self._hub_name:
            self._listener.heard(pair.highest)
        return header, body

    def is_own(self, context: int, body: bytes) -> bool:
        """Whether the sealing has taken this body for itself."""
        return context == ENROL and body[0] in KINDS

    def due(self, now: float) -> Due:
        """(peer, context, body) that the sealing wants sent, with a patience that grows."""
        found: Due = []
        if self._is_new:
            # Before the first frame: its session is on disk then, and no other process begins it.
            self._is_new = False
            for name in dict.fromkeys((*self._kept, *filter(None, (self._hub_name,)))):
                self.meet(name)
        for name, pair in tuple(self._pairs.items()):
            body = pair.due(now)
            if body is None or not self._is_current(name, pair):
                continue
            if body == ANSWER and self._hub is not None and self._hub.lacks(pair.held):
                body = self._hub.gift(max(0, self._unused - 1))
            found.append((name, ENROL, body))
        return found

    def next_due(self) -> float | None:
        """When `due` has something to say, if ever."""
        waiting = [(name, pair) for name, pair in self._pairs.items() if pair.owes]
        return min((p.due_at for name, p in waiting if self._is_current(name, p)), default=None)

    def meet(self, peer: str) -> None:
        """Make ready to speak to a peer: what that changes goes onto disk before it is said."""
        with suppress(WireError):  # no member, or not any more
            self._pair(peer)

    def changes(self) -> tuple[Change, ...]:
        """What must be on disk before the next frame is sent."""
        found: list[Change] = []
        for name, pair in self._pairs.items():
            if pair.changed:
                pair.changed = False
                found.append(pair.state(name))
        for group in (self._hub, self._listener):
            if group is not None and group.changed and group.state is not None:
                group.changed = False
                found.append(group.state)
        self._gather_clones()
        found += [CloneCount(name, self._clones[name]) for name in sorted(self._unkept)]
        self._unkept.clear()
        return tuple(found)

    def rekey(self) -> None:
        """As the hub, go over to a new broadcast key: when somebody was revoked."""
        if self._hub is not None:
            self._hub.renew()
            for pair in self._pairs.values():
                if pair.heard_epoch:
                    pair.tell()

    @property
    def broadcast_name(self) -> bytes:
        """The name of the broadcast key that is in force at this end (16 bytes), empty for none."""
        ends = (end for end in (self._hub, self._listener) if end is not None)
        return next((end.name for end in ends), b"")

    @property
    def clones(self) -> dict[str, int]:
        """By peer, how often its key was seen in two hands, or fell back (`CloneCount`)."""
        self._gather_clones()
        return dict(sorted(self._clones.items()))

    # Inside

    def _head(self, epoch: int, context: int, low: bytes) -> bytes:
        return _HEAD.pack(VERSION << 5 | self._suite << 2 | (epoch & 1) << 1, context, low)

    def _gather_clones(self) -> None:
        for name, end in (*self._pairs.items(), (ALL, self._listener)):
            if end is not None and end.clones:
                self._clones[name] += end.clones
                self._unkept.add(name)
                end.clones = 0

    def _may_speak(self, role: Role, context: int) -> bool:
        if context == ENROL:
            return True
        if self._suite == SUITE_HOP:
            return role in _FORWARDERS and context == NEIGHBOUR
        return role is Role.HOST if context & DOWN else role in _UP

    def _held(self) -> int:
        """The label of the hub's broadcast key that this end holds."""
        if self._listener is None or self._hub_name is None:
            return 0
        return self._listener.label(self._pair(self._hub_name).other.fingerprint)

    def _open_sync(self, peer: str, pair: Pair, head: bytes, low: int, content: bytes) -> bytes:
        if len(content) <= SYNC_OVERHEAD - HEAD_SIZE:
            raise WireError("length", "a frame with context 0 has claims and a body")
        is_hub = peer == self._hub_name
        body, epoch = pair.open_sync(head, ENROL, low, content, self._unused, is_hub=is_hub)
        if self._hub is not None and self._hub.lacks(pair.held):
            pair.owes = True
        if body[0] == KEYS and self._listener is not None:
            self._listener.take(pair.other.fingerprint, epoch, read_keys(body))
        return body

    def _open_broadcast(self, head: bytes, low: int, phase: int, content: bytes) -> bytes:
        if self._listener is None or self._hub_name is None:
            raise WireError("role", "nobody but this end speaks to all")
        hub = self._pair(self._hub_name)
        roles = {Role.HOST} if self._suite == SUITE_END else HUBS
        if hub.other.role not in roles:
            raise WireError("role", f"{self._hub_name} may not speak to all")
        try:
            return self._listener.open(hub.other.fingerprint, head, low, phase, content)
        except SealError:
            if self._listener.is_out_of_step:
                hub.ask()
            raise

    def _is_current(self, name: str, pair: Pair) -> bool:
        try:
            return self._roster.find(name) == pair.other
        except WireError:
            return False

    def _pair(self, name: str) -> Pair:
        """The state of a peer; a rotated key begins anew. WireError for strangers and revoked."""
        other = self._roster.find(name)
        pair = self._pairs.get(name)
        if pair is not None and pair.other == other:
            return pair
        kept = self._kept.get(name)
        if kept is not None and kept.fingerprint != other.fingerprint:
            kept = None
        if self._refused.get(name) == other:
            raise WireError("unknown key", f"the key of {name} cannot be used")
        return self._make_pair(name, other, kept)

    def _make_pair(self, name: str, other: PublicIdentity, kept: PeerState | None) -> Pair:
        try:
            pair = Pair(self._own, other, self._roster.fleet, self._suite, self._instance, kept)
        except TrustError as error:
            self._refused[name] = other
            raise WireError("unknown key", str(error)) from error
        if self._suite == SUITE_HOP:
            pair.owes = kept is not None or self._hub is None
        elif kept is not None:
            pair.owes = self._hub is not None  # or it says hello
        self._gather_clones()
        self._pairs[name] = pair
        return pair
