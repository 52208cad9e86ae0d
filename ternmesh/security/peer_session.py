"""One peer: the sessions of both directions, their keys and the replay window. SPEC.md section 9.3.

no session of the peer ── sync that echoes our lineage ──> session known
session known ── such a sync of a higher epoch ──> new session; the last one is kept for late frames
session known ── sync of a lower epoch ──> refused; a clone if it echoes this process
"""

from collections import deque
from dataclasses import dataclass, field, replace

from ternmesh.errors import SealError, WireError
from ternmesh.security.identity import Identity, PublicIdentity
from ternmesh.security.key_derivation import (
    GENERATION_BITS,
    nonce,
    pair_secret,
    sync_key,
    traffic_key,
)
from ternmesh.security.primitives import Ccm
from ternmesh.security.session import (
    ANSWER,
    CLEAR_SIZE,
    EPOCH_MAX,
    HIGH_SIZE,
    INSTANCE_SIZE,
    KEYS,
    LINEAGE_SIZE,
    MARK_SIZE,
    NOBODY,
    QUESTION,
    Claims,
    PeerState,
    SessionId,
    Verdict,
    Window,
    WindowState,
    closed_window,
    read_claims,
    write_claims,
)
from ternmesh.wire.frame import COUNTER_BITS, TAG_SIZE

BAD_MAX = 1 << 10  # wrong tags, after which the peer must begin a new session
BAD_ASK = 4  # wrong tags in a row, after which the peer is asked for a sync
RETIRED_MAX = 64  # past sessions of the peer that are kept
ASK_FIRST_S, ASK_MAX_S = 2.0, 600.0  # pauses between syncs


@dataclass(slots=True)
class _Direction:
    session: SessionId
    window: Window
    begun: int = 0  # its first counter
    ciphers: dict[int, Ccm] = field(default_factory=dict)  # by key generation


class PeerSession:
    """The sessions between this end and one peer. Every process begins one of a higher epoch."""

    def __init__(
        self,
        own: Identity,
        other: PublicIdentity,
        fleet: bytes,
        suite: int,
        instance: bytes,
        state: PeerState | None,
    ) -> None:
        self.other = other
        self.heard = NOBODY  # the echo for the peer's next sync
        self.held = 0  # the label of the broadcast key that the peer holds
        self.needs_sync = False  # a sync should be sent to the peer
        self.needs_reply = False  # and the peer should answer it
        self.changed = True  # the state must be stored
        self.clones = 0  # how often two senders with one key, or an old state, were seen
        self._lineage = instance[:LINEAGE_SIZE]
        self._secret = pair_secret(own, other, fleet)
        self._suite = suite
        self._instance = instance
        self._own = own.public.fingerprint
        self._theirs = other.fingerprint
        self._receiving: _Direction | None = None  # the peer's session
        self._receiving_before: _Direction | None = None  # the one before, for late frames
        epoch = 1
        if state is not None:
            self._lineage = state.lineage
            self.heard = state.heard
            epoch = min(state.epoch + 1, EPOCH_MAX)
            if state.receiving is not None:
                self._receiving = _Direction(state.receiving, Window(state.window))
        self._sending = _Direction(SessionId(instance, epoch), Window(WindowState(0, 0)))
        self._retired: deque[SessionId] = deque(maxlen=RETIRED_MAX)
        self._floor = 0  # the peer is asked for an epoch of at least this
        self._bad = 0  # wrong tags in this session
        self._bad_in_a_row = 0
        self.due_at = 0.0  # when the next sync may be sent, if `needs_sync`
        self._ask_s = ASK_FIRST_S  # the pause after it
        self._is_behind_noted = False  # this end was found to be a copy or an old state
        self._sync_out = Ccm(sync_key(self._secret, suite, self._own, instance))
        self._sync_in: tuple[bytes, Ccm] | None = None  # with the peer's instance
        self._echoes_question = False  # the next sync answers a question and echoes its sender

    @property
    def epoch(self) -> int:
        """The epoch of this end's session."""
        return self._sending.session.epoch

    @property
    def heard_epoch(self) -> int:
        """The epoch of the peer's session, 0 while it is unknown."""
        return 0 if self._receiving is None else self._receiving.session.epoch

    @property
    def highest(self) -> int:
        """The highest counter of the peer's session, 0 while it is unknown."""
        return 0 if self._receiving is None else self._receiving.window.highest

    def state(self, name: str) -> PeerState:
        """The state to store, under the peer's name."""
        state = PeerState(name, self._theirs, self._lineage, self.heard, self.epoch)
        if self._receiving is None:
            return state
        window = self._receiving.window.state
        return replace(state, receiving=self._receiving.session, window=window)

    def begin(self, epoch: int) -> None:
        """Begin another session of this process, and announce it to the peer."""
        epoch = min(epoch, EPOCH_MAX)
        if epoch <= self.epoch:
            return
        self._sending.session = SessionId(self._instance, epoch)
        self._sending.ciphers.clear()
        self.changed = True
        self.queue_sync()

    def queue_sync(self) -> None:
        """Send a sync as soon as possible, without the pause after the last one."""
        self.needs_sync = True
        self.due_at = 0.0
        self._ask_s = ASK_FIRST_S

    def queue_question(self) -> None:
        """Send a sync that asks the peer for one, after the pause."""
        self.needs_sync = True
        self.needs_reply = True

    def due(self, now: float) -> bytes | None:
        """The body of the sync to send now, if any. The pause after it doubles each time."""
        if not self.needs_sync or now < self.due_at:
            return None
        self.due_at = now + self._ask_s
        self._ask_s = min(2 * self._ask_s, ASK_MAX_S)
        body = QUESTION if self.needs_reply else ANSWER
        self.needs_sync = False
        self.needs_reply = False
        return body

    # Sealing

    def seal(self, head: bytes, address: int, counter: int, body: bytes, run: bytes) -> bytes:
        """A frame of the session; its tag also covers `run` (empty for none)."""
        cipher = self._cipher(self._sending, self._own, counter)
        return head + cipher.seal(nonce(address, counter), head + run, body)

    def seal_sync(self, head: bytes, address: int, counter: int, body: bytes, group: int) -> bytes:
        """A sync frame, which the peer can open in any state; `group` as in `Claims`."""
        clear = self._instance + (counter >> COUNTER_BITS).to_bytes(HIGH_SIZE, "little")
        self._echoes_question = False
        floor = max(self._floor, self.heard_epoch)
        claims = Claims(self._lineage, self.epoch, self.heard, floor, self.highest, group)
        content = write_claims(claims) + body
        head += clear
        return head + self._sync_out.seal(nonce(address, counter), head, content)

    # Opening

    def open(
        self, head: bytes, address: int, low: int, phase: int, sealed: bytes, run: bytes
    ) -> bytes:
        """The body of a frame of the peer's session, or of the one before; WireError."""
        for known in (self._receiving, self._receiving_before):
            if known is None or known.session.epoch & 1 != phase:
                continue
            counter = known.window.whole(low)
            cipher = self._cipher(known, self._theirs, counter)
            try:
                body = cipher.open(nonce(address, counter), head + run, sealed)
            except SealError:
                continue
            self._take(known, counter, sealed)
            self._bad_in_a_row = 0
            return body
        self._note_bad()
        raise SealError("seal", "the tag is wrong: damaged, forged, or of another session or run")

    def open_sync(
        self, head: bytes, address: int, low: int, content: bytes, unused: int, *, is_hub: bool
    ) -> tuple[bytes, int]:
        """The body of a sync frame, and the epoch of the peer's session; WireError.

        `unused` is the first of this end's seal counters that was certainly never used. `is_hub`:
        whether the peer may send a broadcast key.
        """
        instance, high = content[:INSTANCE_SIZE], content[INSTANCE_SIZE:CLEAR_SIZE]
        counter = int.from_bytes(high, "little") << COUNTER_BITS | low
        head, sealed = head + content[:CLEAR_SIZE], content[CLEAR_SIZE:]
        cipher = self._sync_cipher(instance)
        try:
            plain = cipher.open(nonce(address, counter), head, sealed)
        except SealError:
            self._note_bad()
            raise
        self._sync_in = instance, cipher
        claims, body = read_claims(plain)
        if body[0] == KEYS and not is_hub:
            raise WireError("kind", "only the hub may send a broadcast key")
        self._enter(claims, instance, counter, sealed)
        self.heard = _echo(claims.lineage, instance)
        self.held = claims.group
        self._bad_in_a_row = 0
        self.needs_reply = False
        self._compare_own_state(claims, unused)
        if body == QUESTION:
            self.needs_sync = True
            self._echoes_question = True
        return body, claims.epoch

    def _enter(self, claims: Claims, instance: bytes, counter: int, sealed: bytes) -> None:
        """Enter a sync frame into its session, or begin that session; WireError."""
        session = SessionId(instance, claims.epoch)
        known = self._receiving
        knows_us = claims.echo[:LINEAGE_SIZE] == self._lineage
        is_live = claims.echo == _echo(self._lineage, self._instance)
        if known is not None and session == known.session:
            self._take(known, counter, sealed)
        elif known is None or session.epoch > known.session.epoch:
            if not knows_us:
                self._request_echo(claims, instance)
                raise WireError("sync", "a new session must echo this end's lineage first")
            self.clones += known is not None and counter <= known.window.highest
            self._adopt(session, counter, _mark(sealed))
        elif self._receiving_before is not None and session == self._receiving_before.session:
            self._take(self._receiving_before, counter, sealed)
        elif is_live and session not in self._retired:
            # Two processes with the same disk never have the same epoch. A lower epoch may be an
            # old disk, which then notices that itself, or a very late frame.
            is_copy = session.epoch == known.session.epoch
            self._floor = min(known.session.epoch + 1, EPOCH_MAX)
            self._retired.append(session)  # only once: a replay must not repeat this
            self.clones += is_copy
            self._request_echo(claims, instance)
            reason = "clone" if is_copy else "replay"
            raise WireError(reason, "the peer sent a stale epoch: it is a copy, or has an old disk")
        else:
            self._request_echo(claims, instance)
            raise WireError("replay", "this frame is of a session that has ended")

    def _adopt(self, session: SessionId, counter: int, mark: bytes) -> None:
        """Change to a new session of the peer.

        Its earlier frames are accepted late, unless this end has lost its state: then they may be
        replays.
        """
        if self._receiving is None:
            window = closed_window(counter, mark)
        else:
            window = Window(WindowState(counter, 1), mark)
            self._receiving_before = self._receiving
            self._retired.append(self._receiving.session)
        self._receiving = _Direction(session, window, counter)
        self._floor = 0
        self._bad = 0
        self.due_at = 0.0
        self._ask_s = ASK_FIRST_S
        self.changed = True

    def _take(self, known: _Direction, counter: int, sealed: bytes) -> None:
        """Enter a frame with a valid tag into its window; WireError."""
        assert self._receiving is not None
        if known is not self._receiving and counter >= self._receiving.begun:
            verdict = Verdict.CLONE  # a sender never returns to a session that has ended
        else:
            verdict = known.window.take(counter, _mark(sealed))
        if verdict is Verdict.CLONE:
            self.clones += 1
            raise WireError("clone", "two senders have the same key")
        if verdict is Verdict.REPLAY:
            raise WireError("replay", "this frame has been received before")
        self.changed = True

    def _compare_own_state(self, claims: Claims, unused: int) -> None:
        """Compare the peer's claims about this end's frames with this end's own state."""
        if claims.floor > self.epoch:
            self.begin(claims.floor + 1)
        if claims.seen >= unused and not self._is_behind_noted:
            self.clones += 1  # this end is the copy, or has an old disk
            self._is_behind_noted = True

    def _note_bad(self) -> None:
        self._bad += 1
        self._bad_in_a_row += 1
        if self._receiving is None or self._bad_in_a_row >= BAD_ASK:
            self.queue_question()
            self._bad_in_a_row = 0
        if self._bad >= BAD_MAX and self._receiving is not None:
            self._floor = min(self._receiving.session.epoch + 1, EPOCH_MAX)
            self._bad = 0
            self.needs_sync = True

    def _request_echo(self, claims: Claims, instance: bytes) -> None:
        if not self._echoes_question:  # else a replay would take the echo from the real sender
            self.heard = _echo(claims.lineage, instance)
        self.queue_question()

    # Keys

    def _cipher(self, direction: _Direction, sender: bytes, counter: int) -> Ccm:
        generation = counter >> GENERATION_BITS
        found = direction.ciphers.get(generation)
        if found is None:
            session = direction.session
            key = traffic_key(
                self._secret, self._suite, sender, session.instance, session.epoch, counter
            )
            if len(direction.ciphers) > 1:
                del direction.ciphers[next(iter(direction.ciphers))]
            found = direction.ciphers[generation] = Ccm(key)
        return found

    def _sync_cipher(self, instance: bytes) -> Ccm:
        if self._sync_in is not None and self._sync_in[0] == instance:
            return self._sync_in[1]
        return Ccm(sync_key(self._secret, self._suite, self._theirs, instance))


def _mark(sealed: bytes) -> bytes:
    return sealed[-TAG_SIZE:][:MARK_SIZE]


def _echo(lineage: bytes, instance: bytes) -> bytes:
    return lineage + instance[:LINEAGE_SIZE]
