"""One peer: the sessions of both directions, their keys and the replay window. SPEC.md section 9.3.

no session of the peer is known ── a sync that echoes our lineage ──> known
known ── such a sync of a higher epoch ──> known, the session before is kept for stragglers
known ── a sync of a lower epoch ──> refused; who echoes this process is an old copy: a clone
"""

from collections import deque
from dataclasses import dataclass, field

from ternmesh.errors import SealError, WireError
from ternmesh.trust.identity import Identity, PublicIdentity
from ternmesh.trust.keys import GENERATION_BITS, nonce, pair_secret, sync_key, traffic_key
from ternmesh.trust.primitives import Ccm
from ternmesh.trust.session import (
    ANSWER,
    CLEAR_SIZE,
    EPOCH_MAX,
    HIGH_SIZE,
    INSTANCE_SIZE,
    KEYS,
    LINEAGE_SIZE,
    NOBODY,
    QUESTION,
    Claims,
    PeerState,
    Session,
    read_claims,
    write_claims,
)
from ternmesh.trust.window import (
    MARK_SIZE,
    Verdict,
    Window,
    WindowState,
    closed_window,
    open_window,
)
from ternmesh.wire.seal import COUNTER_BITS, TAG_SIZE

BAD_MAX = 1 << 10  # wrong tags, after which the peer is asked for another key
BAD_ASK = 4  # in a row, after which it is asked where it stands
RETIRED_MAX = 64
ASK_FIRST_S, ASK_MAX_S = 2.0, 600.0


@dataclass(slots=True)
class _Direction:
    """The session of one direction and its ciphers; `begun` is the counter that it began with."""

    session: Session
    window: Window
    begun: int = 0
    ciphers: dict[int, Ccm] = field(default_factory=dict)


class Pair:
    """This end and one peer. Every process begins a session of a higher epoch.

    `clones` counts the times that two senders with one key, or a sender that fell back, were seen.
    """

    def __init__(
        self,
        own: Identity,
        other: PublicIdentity,
        fleet: bytes,
        suite: int,
        instance: bytes,
        state: PeerState | None,
    ) -> None:
        self.other, self.heard, self.held = other, NOBODY, 0
        self._lineage, epoch = instance[:LINEAGE_SIZE], 1
        self.owes, self.asks, self.changed, self.clones = False, False, True, 0
        self._secret = pair_secret(own, other, fleet)
        self._suite, self._instance = suite, instance
        self._own, self._theirs = own.public.fingerprint, other.fingerprint
        self._in: _Direction | None = None
        if state is not None:
            self._lineage, self.heard, epoch = state.lineage, state.heard, state.epoch + 1
            if state.receiving is not None:
                self._in = _Direction(state.receiving, Window(state.window))
        self._out = _Direction(Session(instance, min(epoch, EPOCH_MAX)), Window(WindowState(0, 0)))
        self._before: _Direction | None = None
        self._retired: deque[Session] = deque(maxlen=RETIRED_MAX)
        self._floor = self._bad = self._in_a_row = 0
        self._ask_at, self._ask_s, self._fell_back = 0.0, ASK_FIRST_S, False
        self._sync_out = Ccm(sync_key(self._secret, suite, self._own, instance))
        self._sync_in: tuple[bytes, Ccm] | None = None
        self._answers = False  # a question was taken, and its sender is to be echoed

    @property
    def epoch(self) -> int:
        """The epoch of the frames that this end sends."""
        return self._out.session.epoch

    @property
    def heard_epoch(self) -> int:
        """The epoch of the peer's frames, 0 while it is not known."""
        return 0 if self._in is None else self._in.session.epoch

    @property
    def highest(self) -> int:
        """The highest counter of the peer's session, 0 while none is known."""
        return 0 if self._in is None else self._in.window.highest

    def state(self, name: str) -> PeerState:
        """What must survive of the peer."""
        known = self._in
        window = WindowState(0, 0) if known is None else known.window.state
        receiving = None if known is None else known.session
        return PeerState(
            name, self._theirs, self._lineage, self.heard, self.epoch, receiving, window
        )

    def begin(self, epoch: int) -> None:
        """Begin another session of this process; the peer must be told."""
        epoch = min(epoch, EPOCH_MAX)
        if epoch <= self.epoch:
            return
        self._out.session = Session(self._instance, epoch)
        self._out.ciphers.clear()
        self.changed = True
        self.tell()

    def tell(self) -> None:
        """Tell the peer something new, without the patience of questions."""
        self.owes, self._ask_at, self._ask_s = True, 0.0, ASK_FIRST_S

    def ask(self) -> None:
        """Ask the peer where it stands, as soon as it may be asked again."""
        self.owes = self.asks = True

    @property
    def due_at(self) -> float:
        """When `due` may speak, if it owes the peer something."""
        return self._ask_at

    def due(self, now: float) -> bytes | None:
        """What to tell the peer now, if anything: each time, the next one is further off."""
        if not self.owes or now < self._ask_at:
            return None
        self._ask_at, self._ask_s = now + self._ask_s, min(2 * self._ask_s, ASK_MAX_S)
        body = QUESTION if self.asks else ANSWER
        self.owes = self.asks = False
        return body

    # Sealing

    def seal(self, head: bytes, context: int, counter: int, body: bytes, run: bytes) -> bytes:
        """A frame of the session. What `run` is (empty for none), both ends must know."""
        cipher = self._cipher(self._out, self._own, counter)
        return head + cipher.seal(nonce(context, counter), head + run, body)

    def seal_sync(self, head: bytes, context: int, counter: int, body: bytes, group: int) -> bytes:
        """A frame that the peer can open whatever it knows; `group` as in `Claims`."""
        clear = self._instance + (counter >> COUNTER_BITS).to_bytes(HIGH_SIZE, "little")
        self._answers, theirs = False, self._in
        floor = max(self._floor, self.heard_epoch)
        seen = 0 if theirs is None else theirs.window.highest
        claims = Claims(self._lineage, self.epoch, self.heard, floor, seen, group)
        content = write_claims(claims) + body
        head += clear
        return head + self._sync_out.seal(nonce(context, counter), head, content)

    # Opening

    def open(
        self, head: bytes, context: int, low: int, phase: int, sealed: bytes, run: bytes
    ) -> bytes:
        """The body of a frame of a session; WireError, after which nothing has changed."""
        for known in (self._in, self._before):
            if known is None or known.session.epoch & 1 != phase:
                continue
            counter = known.window.whole(low)
            cipher = self._cipher(known, self._theirs, counter)
            try:
                body = cipher.open(nonce(context, counter), head + run, sealed)
            except SealError:
                continue
            self._take(known, counter, sealed)
            self._in_a_row = 0
            return body
        self._note_bad()
        raise SealError(
            "seal", "the tag is wrong: damaged, forged, or of another session or another run"
        )

    def open_sync(
        self, head: bytes, context: int, low: int, content: bytes, unused: int, *, is_hub: bool
    ) -> tuple[bytes, int]:
        """The body of a frame with claims, and the epoch of the session that it is of.

        `unused` is the first of this end's seal counters that was certainly never used; `is_hub`
        whether the peer may give a broadcast key. WireError.
        """
        instance, high = content[:INSTANCE_SIZE], content[INSTANCE_SIZE:CLEAR_SIZE]
        counter = int.from_bytes(high, "little") << COUNTER_BITS | low
        head, sealed = head + content[:CLEAR_SIZE], content[CLEAR_SIZE:]
        cipher = self._sync_cipher(instance)
        try:
            plain = cipher.open(nonce(context, counter), head, sealed)
        except SealError:
            self._note_bad()
            raise
        self._sync_in = instance, cipher
        claims, body = read_claims(plain)
        if body[0] == KEYS and not is_hub:
            raise WireError("kind", "a broadcast key comes from nobody but the hub")
        self._place(claims, instance, counter, sealed)
        self.heard, self.held = _echo(claims.lineage, instance), claims.group
        self._in_a_row, self.asks = 0, False
        self._learn(claims, unused)
        self.owes |= body == QUESTION
        self._answers |= body == QUESTION
        return body, claims.epoch

    def _place(self, claims: Claims, instance: bytes, counter: int, sealed: bytes) -> None:
        """Find the session that a frame belongs to, or begin it; WireError."""
        session, known = Session(instance, claims.epoch), self._in
        knows_us = claims.echo[:LINEAGE_SIZE] == self._lineage
        is_live = claims.echo == _echo(self._lineage, self._instance)
        if known is not None and session == known.session:
            self._take(known, counter, sealed)
        elif known is None or session.epoch > known.session.epoch:
            if not knows_us:
                self._ask_for_echo(claims, instance)
                raise WireError("sync", "who says this must first show that it hears us")
            self.clones += known is not None and counter <= known.window.highest
            self._adopt(session, counter, _mark(sealed))
        elif self._before is not None and session == self._before.session:
            self._take(self._before, counter, sealed)
        elif is_live and session not in self._retired:
            # No two processes of one disk have one epoch. A lower one may be an old disk, which
            # then counts itself, or a frame of a short life that was long under way.
            is_copy = session.epoch == known.session.epoch
            self._floor = min(known.session.epoch + 1, EPOCH_MAX)
            self._retired.append(session)  # once: a recording must not do it again and again
            self.clones += is_copy
            self._ask_for_echo(claims, instance)
            reason = "clone" if is_copy else "replay"
            raise WireError(reason, "a sender is behind what it has sent: a copy, or an old disk")
        else:
            self._ask_for_echo(claims, instance)
            raise WireError("replay", "a frame of a session that is over")

    def _adopt(self, session: Session, counter: int, mark: bytes) -> None:
        """Go over to a session. What was sent of it before may be old only if we have forgotten."""
        if self._in is None:
            window = closed_window(counter, mark)
        else:
            window = open_window(counter, mark)
            self._before = self._in
            self._retired.append(self._in.session)
        self._in = _Direction(session, window, counter)
        self._floor = self._bad = 0
        self._ask_at, self._ask_s, self.changed = 0.0, ASK_FIRST_S, True

    def _take(self, known: _Direction, counter: int, sealed: bytes) -> None:
        """Enter a frame with a right tag into its window; WireError."""
        assert self._in is not None
        if known is not self._in and counter >= self._in.begun:
            verdict = Verdict.CLONE  # nobody goes back to a session that is over
        else:
            verdict = known.window.take(counter, _mark(sealed))
        if verdict is Verdict.CLONE:
            self.clones += 1
            raise WireError("clone", "two senders have the same key")
        if verdict is Verdict.REPLAY:
            raise WireError("replay", "a frame that was here before")
        self.changed = True

    def _learn(self, claims: Claims, unused: int) -> None:
        """What the peer says of this end's frames."""
        if claims.floor > self.epoch:
            self.begin(claims.floor + 1)
        if claims.seen >= unused and not self._fell_back:
            self.clones += 1  # we are the copy, or our disk is an old one
            self._fell_back = True

    def _note_bad(self) -> None:
        self._bad, self._in_a_row = self._bad + 1, self._in_a_row + 1
        if self._in is None or self._in_a_row >= BAD_ASK:
            self.ask()
            self._in_a_row = 0
        if self._bad >= BAD_MAX and self._in is not None:
            self._floor = min(self._in.session.epoch + 1, EPOCH_MAX)
            self._bad, self.owes = 0, True

    def _ask_for_echo(self, claims: Claims, instance: bytes) -> None:
        if not self._answers:  # or a recording would keep the answer from its sender
            self.heard = _echo(claims.lineage, instance)
        self.ask()

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
