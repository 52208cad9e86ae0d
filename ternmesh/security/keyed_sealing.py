"""The keyed seal: each frame has a key of its sender and receiver. SPEC.md sections 3 and 9.3.

It has the layout of the open seal, 14 bytes around a body. Frames with address 0 carry 57 bytes
more; with them two ends find each other whatever state either has lost. As everywhere: open or seal
frames, then store `changes`, then send.
"""

from collections import Counter
from contextlib import suppress

from ternmesh.errors import SealError, SecurityError, WireError
from ternmesh.security.group_keys import GroupKeyReceiver, GroupKeyServer
from ternmesh.security.identity import Identity, PublicIdentity, Role
from ternmesh.security.key_derivation import SUITE_END, SUITE_HOP
from ternmesh.security.membership import Members
from ternmesh.security.peer_session import EXCHANGES_S, PeerSession
from ternmesh.security.primitives import hkdf
from ternmesh.security.sealing import Change, Due
from ternmesh.security.session import (
    ANSWER,
    CLAIMS_SIZE,
    CLEAR_SIZE,
    EPHEMERAL_SIZE,
    KEYS,
    KEYS_SIZE,
    KINDS,
    CloneCount,
    PeerState,
    SealingState,
    read_keys,
)
from ternmesh.timers import earliest
from ternmesh.wire.frame import (
    BROADCAST,
    DOWN,
    FRAME_OVERHEAD,
    HEAD_SIZE,
    TAG_SIZE,
    UNASSIGNED,
    Header,
    read_header,
    write_header,
)

OPENING_SIZE = HEAD_SIZE + CLEAR_SIZE + TAG_SIZE  # a frame with an ephemeral key alone
SYNC_OVERHEAD = FRAME_OVERHEAD + CLEAR_SIZE + TAG_SIZE + CLAIMS_SIZE
FRAME_MIN = SYNC_OVERHEAD + KEYS_SIZE  # the smallest MTU of a bearer, in bytes
NEIGHBOUR = 0x0001  # the address of frames between neighbours in suite 2
_TRAINERS = frozenset({Role.NODE, Role.GATEWAY})
HUBS = frozenset({Role.HOST, Role.GATEWAY, Role.RELAY})
_LEADERS = frozenset({Role.HOST, Role.GATEWAY})  # a gateway may be an aggregator, for its boards
_FORWARDERS = frozenset(set(Role) - {Role.OBSERVER})


class KeyedSealing:
    """The sealing of one end in one layer of a fleet; see `ternmesh.security.sealing.Sealing`.

    `entropy` is 32 random bytes, new for each such object and never stored: the ephemeral key and
    the broadcast keys come from it. `counter` is the first seal counter that was never reserved.
    `hub` is the peer that may broadcast, None if this end is the hub. After each start this end
    sends one frame to every known peer (a node only its hello).
    """

    def __init__(
        self,
        own: Identity,
        member_list: Members,
        suite: int,
        entropy: bytes,
        counter: int,
        state: SealingState,
        *,
        hub: str | None,
    ) -> None:
        if len(entropy) != EPHEMERAL_SIZE or suite not in (SUITE_END, SUITE_HOP):
            raise ValueError(f"a process has {EPHEMERAL_SIZE} random bytes, a keyed suite: 1 or 2")
        self._own = own
        self._member_list = member_list
        self._suite = suite
        self._ephemeral = entropy
        self._unused = counter  # the first seal counter that was certainly never used
        self._is_new = True  # no sync has been queued since the start
        self._hub_name = hub
        self._stored = {peer.name: peer for peer in state.peers}
        self._sessions: dict[str, PeerSession] = {}
        # Names of sessions, so that one frame costs no look at all of them
        self._used: dict[str, None] = {}  # since the last `changes`
        self._asking: dict[str, None] = {}  # used since the last `due`, or with a sync to send
        self._look_at = 0.0  # when `due` looks at all
        self._refused: dict[str, PublicIdentity] = {}  # members whose key gives no shared secret
        self._clones = Counter({known.name: known.count for known in state.clones})
        self._clones_changed: set[str] = set()
        self._run = b""
        fleet = member_list.fleet
        seed = hkdf(entropy, fleet, b"ternmesh broadcasts", EPHEMERAL_SIZE)
        self._hub = GroupKeyServer(own.public, suite, fleet, seed) if hub is None else None
        self._listener = GroupKeyReceiver(suite, fleet, state.group) if hub is not None else None

    is_keyed = True

    def bind(self, run: bytes) -> None:
        self._run = run

    def seal(self, peer: str, address: int, counter: int, body: bytes) -> bytes:
        if address == BROADCAST:
            if self._hub is None:
                raise WireError("role", "only the hub may broadcast")
            head = self._head(self._hub.epoch, address, counter)
            frame = self._hub.seal(head, counter, body)
        else:
            session = self._session(peer)
            head = self._head(0, address, counter)
            if address == UNASSIGNED:
                frame = session.seal_sync(head, address, counter, body, self._held())
            else:
                frame = session.seal(head, address, counter, body, self._run)
        self._unused = max(self._unused, counter + 1)
        return frame

    def open(self, peer: str, frame: bytes) -> tuple[Header, bytes]:
        header = read_header(frame, self._suite)
        address, low, phase = header.address, header.counter, header.key_phase
        head, content = frame[:HEAD_SIZE], frame[HEAD_SIZE:]
        if address == BROADCAST:
            return header, self._open_broadcast(head, low, phase, content)
        session = self._session(peer)
        if not self._may_send(peer, session.other.role, address):
            raise WireError("role", f"{peer} may not send with address {address:#06x}")
        if address == UNASSIGNED:
            body = self._open_sync(peer, session, head, low, content)
        else:
            body = session.open(head, address, low, content, self._run)
        if self._listener is not None and peer == self._hub_name:
            self._listener.heard(session.highest)
        return header, body

    def is_own(self, address: int, body: bytes) -> bool:
        return address == UNASSIGNED and body[0] in KINDS

    def process_of(self, peer: str) -> bytes:
        session = self._sessions.get(peer)
        return b"" if session is None else session.ephemeral

    def due(self, now: float) -> Due:
        messages: Due = []
        if self._is_new:
            self._is_new = False
            for name in dict.fromkeys((*self._stored, *filter(None, (self._hub_name,)))):
                with suppress(WireError):  # not a member, or revoked
                    self._session(name)
        names, self._asking = list(self._asking), {}
        if now >= self._look_at:
            names, self._look_at = list(self._sessions), now + EXCHANGES_S
        for name in names:
            session = self._sessions[name]
            body = session.due(now)
            if session.due_at is not None:
                self._asking[name] = None
            if body is None or not self._is_current(name, session):
                continue
            if body == ANSWER and self._hub is not None and self._hub.lacks(session.held):
                body = self._hub.group_key_message(max(0, self._unused - 1))
            messages.append((name, UNASSIGNED, body))
        return messages

    def next_due(self) -> float | None:
        asking = ((name, self._sessions[name]) for name in self._asking)
        return earliest(*(s.due_at for name, s in asking if self._is_current(name, s)))

    def changes(self) -> tuple[Change, ...]:
        changes: list[Change] = []
        for name in self._used:
            session = self._sessions[name]
            if session.changed and (state := session.state(name)) is not None:
                session.changed = False
                changes.append(state)
        group = self._listener
        if group is not None and group.changed and group.state is not None:
            group.changed = False
            changes.append(group.state)
        self._collect_clones()
        self._used.clear()
        changes += [CloneCount(name, self._clones[name]) for name in sorted(self._clones_changed)]
        self._clones_changed.clear()
        return tuple(changes)

    def rekey(self) -> None:
        """On the hub: change the broadcast key, after a member was revoked."""
        if self._hub is not None:
            self._hub.renew()
            self._asking = dict.fromkeys(self._sessions)
            for session in self._sessions.values():
                if session.ephemeral:
                    session.queue_sync()

    def is_strange(self, peer: str) -> bool:
        """Whether a peer's last frame was for other identities: it may trust an earlier key."""
        session = self._sessions.get(peer)
        return session is not None and session.is_strange

    @property
    def broadcast_name(self) -> bytes:
        """The name of this end's broadcast key (16 bytes), empty for none."""
        ends = (end for end in (self._hub, self._listener) if end is not None)
        return next((end.name for end in ends), b"")

    @property
    def clones(self) -> dict[str, int]:
        """By name, also of this end, how often a clone or an old state was seen (`CloneCount`)."""
        self._collect_clones()
        return dict(sorted(self._clones.items()))

    def _head(self, epoch: int, address: int, counter: int) -> bytes:
        return write_header(Header(address, counter, self._suite, epoch & 1))

    def _collect_clones(self) -> None:
        for end in (*(self._sessions[name] for name in self._used), self._listener):
            if end is not None and (found := +end.clones):
                self._clones += found
                self._clones_changed.update(found)
                end.clones.clear()

    def _may_send(self, peer: str, role: Role, address: int) -> bool:
        if address == UNASSIGNED:
            return True
        if self._suite == SUITE_HOP:
            return role in _FORWARDERS and address == NEIGHBOUR
        return peer == self._hub_name and role in _LEADERS if address & DOWN else role in _TRAINERS

    def _held(self) -> int:
        """The label of the broadcast key that this end holds, 0 for none."""
        if self._listener is None or self._hub_name is None:
            return 0
        return self._listener.label(self._session(self._hub_name).other.fingerprint)

    def _open_sync(
        self, peer: str, session: PeerSession, head: bytes, low: int, content: bytes
    ) -> bytes:
        if len(content) < OPENING_SIZE - HEAD_SIZE:
            raise WireError("length", "a frame with address 0 must have an ephemeral key")
        is_hub = peer == self._hub_name
        body = session.open_sync(head, UNASSIGNED, low, content, self._unused, is_hub=is_hub)
        if self._hub is not None and self._hub.lacks(session.held):
            session.needs_sync = True
        if body[0] == KEYS and self._listener is not None:
            self._listener.take(session.other.fingerprint, session.ephemeral, read_keys(body))
        return body

    def _open_broadcast(self, head: bytes, low: int, phase: int, content: bytes) -> bytes:
        if self._listener is None or self._hub_name is None:
            raise WireError("role", "only this end, the hub, may broadcast")
        hub = self._session(self._hub_name)
        roles = _LEADERS if self._suite == SUITE_END else HUBS
        if hub.other.role not in roles:
            raise WireError("role", f"{self._hub_name} may not broadcast")
        try:
            return self._listener.open(hub.other.fingerprint, head, low, phase, content)
        except SealError:
            if self._listener.is_out_of_step:
                hub.queue_question()
            raise

    def _is_current(self, name: str, session: PeerSession) -> bool:
        try:
            return self._member_list.find(name) == session.other
        except WireError:
            return False

    def _session(self, name: str) -> PeerSession:
        """The session with a peer, a new one for another key; WireError if it is not a member."""
        other = self._member_list.find(name)
        session = self._sessions.get(name)
        if session is not None and session.other == other:
            self._used[name] = self._asking[name] = None
            return session
        stored = self._stored.get(name)
        if stored is not None and stored.fingerprint != other.fingerprint:
            stored = None
        if self._refused.get(name) == other:
            raise WireError("unknown key", f"the key of {name} cannot be used")
        return self._make_session(name, other, stored)

    def _make_session(
        self, name: str, other: PublicIdentity, stored: PeerState | None
    ) -> PeerSession:
        try:
            session = PeerSession(
                self._own, other, self._member_list.fleet, self._suite, self._ephemeral, stored
            )
        except SecurityError as error:
            self._refused[name] = other
            raise WireError("unknown key", str(error)) from error
        if self._suite == SUITE_HOP:
            session.needs_sync = stored is not None or self._hub is None
        elif stored is not None:
            session.needs_sync = self._hub is not None  # a node sends a hello instead
        self._collect_clones()
        self._sessions[name] = session
        self._used[name] = self._asking[name] = None
        return session
