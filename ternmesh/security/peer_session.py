"""One peer: the session with it, its keys and its replay window. SPEC.md section 9.3.

Each process of an end has an ephemeral key, which stands in the clear in every frame with address
0, under a tag that only the two ends can make. The rest of such a frame is sealed for the process
of the peer whose ephemeral key the sender knows:

no session ── opening: only the ephemeral key ──> an answer that is sealed for it
no session, or another one ── frame that opens ──> session with that process of the peer
session known ── frame of an ended process ──> refused, and answered
the process before speaks on, and has opened the answer ──> its session is the present one again

The last line is for two processes with one identity: a copied card, a thief. When one of them is
gone, the other must get through.

An opening changes nothing here: who has stolen this end's identity can forge one. A frame that
opens was sealed for this very process by an end that holds the peer's identity.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from ternmesh.errors import SealError, SecurityError, WireError
from ternmesh.security.identity import Identity, PublicIdentity
from ternmesh.security.key_derivation import (
    GENERATION_BITS,
    SUITE_END,
    nonce,
    opening_key,
    pair_secret,
    session_secrets,
    traffic_key,
)
from ternmesh.security.primitives import Ccm, exchange_key
from ternmesh.security.session import (
    ANSWER,
    CLAIMS_SIZE,
    CLEAR_SIZE,
    EPHEMERAL_SIZE,
    HIGH_SIZE,
    KEYS,
    KINDS,
    MARK_SIZE,
    QUESTION,
    Claims,
    PeerState,
    Verdict,
    Window,
    read_claims,
    write_claims,
)
from ternmesh.wire.frame import COUNTER_BITS, TAG_SIZE

BAD_ASK = 4  # wrong tags in a row, after which the peer is asked for a sync
KEYS_KEPT = 64  # ephemeral keys of the peer that are remembered after their use
DERIVED_MAX = 16  # sessions that are derived and not adopted: a key exchange costs time
EXCHANGES_S = 1.0  # as many key exchanges in this time, for old frames and for new ones
ASK_FIRST_S, ASK_MAX_S = 2.0, 600.0  # pauses between syncs
IN_VAIN_MAX = 3  # syncs without a frame that opens, after which a question ends the pause


@dataclass(slots=True)
class _Session:
    """The session with one process of the peer."""

    ephemeral: bytes  # the public key of that process
    secret_out: bytes
    secret_in: bytes
    window: Window
    begun: int = 0  # the peer's first counter
    begun_own: int = 0  # this end's first counter
    ciphers: dict[tuple[bool, int], Ccm] = field(default_factory=dict)  # by direction, generation

    def cipher(self, counter: int, *, is_out: bool) -> Ccm:
        """The cipher of one direction around this counter."""
        name = is_out, counter >> GENERATION_BITS
        cipher = self.ciphers.get(name)
        if cipher is None:
            if len(self.ciphers) > 3:
                del self.ciphers[next(iter(self.ciphers))]
            secret = self.secret_out if is_out else self.secret_in
            cipher = self.ciphers[name] = Ccm(traffic_key(secret, counter))
        return cipher


class _Keys:
    """The keys between this process and the processes of one peer, and the newest of their ciphers.

    `ephemeral` is the private key of this process. SecurityError if the identities share no secret.
    """

    def __init__(
        self, own: Identity, other: PublicIdentity, fleet: bytes, suite: int, ephemeral: bytes
    ) -> None:
        self._own = own
        self._other = other
        self._fleet = fleet
        self._suite = suite
        self._ephemeral = ephemeral
        self._pair = pair_secret(own, other, fleet)
        self._openings: dict[tuple[bytes, bytes], Ccm] = {}  # by sender and its ephemeral key
        self.derived: dict[bytes, _Session] = {}  # not adopted yet, by the peer's ephemeral key

    @property
    def public(self) -> bytes:
        return exchange_key(self._ephemeral)

    def derive(self, key: bytes) -> _Session:
        """A new session with the peer's process that has this ephemeral key; WireError."""
        own, other = self._own, self._other
        try:
            secrets = session_secrets(own, other, self._fleet, self._suite, self._ephemeral, key)
        except SecurityError as error:
            raise WireError("unknown key", str(error)) from error
        if len(self.derived) >= DERIVED_MAX:
            del self.derived[next(iter(self.derived))]
        self.derived[key] = _Session(key, *secrets, Window(0))
        return self.derived[key]

    def opening(self, sender: bytes, key: bytes) -> Ccm:
        """The cipher that makes the tag over the ephemeral key of a sender."""
        cipher = self._openings.get((sender, key))
        if cipher is None:
            if len(self._openings) > 3:
                del self._openings[next(iter(self._openings))]
            cipher = Ccm(opening_key(self._pair, self._suite, sender, key))
            self._openings[sender, key] = cipher
        return cipher


class PeerSession:
    """What this process knows of one peer. `ephemeral` is the private key of this process.

    Raises SecurityError if the peer's identity gives no shared secret.
    """

    def __init__(
        self,
        own: Identity,
        other: PublicIdentity,
        fleet: bytes,
        suite: int,
        ephemeral: bytes,
        state: PeerState | None,
    ) -> None:
        self.other = other
        self.held = 0  # the label of the broadcast key that the peer holds
        self.needs_sync = False  # a sync should be sent to the peer
        self.needs_reply = False  # and the peer should answer it
        self.is_strange = False  # the last frame was sealed for other identities than these two
        self.changed = False  # the state must be stored
        # How often two senders with one key, or an old state, were seen: of the peer, or of this
        # end, as the peer says
        self.clones: Counter[str] = Counter()
        self.highest = 0 if state is None else state.highest  # counter of the peer's process
        self._own, self._own_name = own.public.fingerprint, own.public.name
        self._keys = _Keys(own, other, fleet, suite, ephemeral)
        self._current: _Session | None = None
        self._before: _Session | None = None  # the one before, for late frames
        self._candidate = b""  # the ephemeral key to answer to, which proves nothing yet
        self._answered: set[bytes] = set()  # candidates since the session began
        self._answering = b""  # the candidate for which the next sync is
        self._ended: deque[bytes] = deque(maxlen=KEYS_KEPT)  # ephemeral keys of past sessions
        self._exchanges: Counter[bool] = Counter()  # since the last refill, see `_check_exchange`
        self._refill_at = 0.0
        self._bad_in_a_row = 0
        self._ask_at = 0.0  # when the next sync may be sent
        self._ask_s = ASK_FIRST_S  # the pause after it
        self._in_vain = 0  # syncs since the last frame of the peer that opened
        self._is_behind = False  # the peer's process began with a counter that was used before
        self._is_behind_noted = False  # the same of this end: it is a copy, or has an old state
        if state is not None:
            self._current = self._session_of(state.ephemeral)
            if suite == SUITE_END:  # what comes may be all that the peer sends: ask at once
                self._bad_in_a_row = BAD_ASK - 1
            self._current.window = Window(self.highest)

    @property
    def ephemeral(self) -> bytes:
        """The ephemeral key of the peer's process, empty while it is unknown."""
        return b"" if self._current is None else self._current.ephemeral

    def state(self, name: str) -> PeerState | None:
        """The state to store, under the peer's name; None while there is none."""
        if self._current is None:
            return None
        return PeerState(name, self.other.fingerprint, self._current.ephemeral, self.highest)

    def queue_sync(self) -> None:
        """Send a sync as soon as possible, without the pause after the last one."""
        self.needs_sync = True
        self._end_pause()

    def queue_question(self) -> None:
        """Send a sync that asks the peer for one, after the pause."""
        self.needs_sync = True
        self.needs_reply = True

    @property
    def due_at(self) -> float | None:
        """When the next sync may be sent; None if there is none to send."""
        return self._ask_at if self.needs_sync or self._candidate else None

    def due(self, now: float) -> bytes | None:
        """The body of the sync to send now, if any. The pause after it doubles each time.

        Syncs for the session and for candidates take turns: a stranger who repeats old openings
        must not hold up the session.
        """
        if now >= self._refill_at:
            self._exchanges.clear()
            self._refill_at = now + EXCHANGES_S
        at = self.due_at
        if at is None or now < at:
            return None
        self._ask_at = now + self._ask_s
        self._ask_s = min(2 * self._ask_s, ASK_MAX_S)
        self._in_vain += 1
        if self._candidate and not (self.needs_sync and self._answering):
            self._answering, self._candidate = self._candidate, b""
            return QUESTION
        self._answering = b""
        body = QUESTION if self.needs_reply else ANSWER
        self.needs_sync = False
        self.needs_reply = False
        return body

    # Sealing

    def seal(self, head: bytes, address: int, counter: int, body: bytes, run: bytes) -> bytes:
        """A frame of the session; its tag also covers `run` (empty for none). WireError."""
        if self._current is None:
            self.queue_question()
            raise WireError("sync", f"{self.other.name} has not answered since this start")
        cipher = self._current.cipher(counter, is_out=True)
        return head + cipher.seal(nonce(address, counter), head + run, body)

    def seal_sync(self, head: bytes, address: int, counter: int, body: bytes, group: int) -> bytes:
        """A frame with this process's ephemeral key; `group` as in `Claims`.

        It is an opening, without `body`, while no ephemeral key of the peer is known.
        """
        key = self._keys.public
        high = (counter >> COUNTER_BITS).to_bytes(HIGH_SIZE, "little")
        head += key + high
        head += self._keys.opening(self._own, key).seal(nonce(address, counter), head, b"")
        session = self._current
        if self._answering and body[0] in KINDS:
            session = self._session_of(self._answering)
        if session is None:
            return head
        seen = self.highest if session is self._current else 0
        content = write_claims(Claims(seen, group, self._is_behind)) + body
        cipher = session.cipher(counter, is_out=True)
        return head + cipher.seal(nonce(address, counter), head, content)

    # Opening

    def open(self, head: bytes, address: int, low: int, sealed: bytes, run: bytes) -> bytes:
        """The body of a frame of the session, or of the one before; WireError."""
        for session in filter(None, (self._current, self._before)):
            counter = session.window.whole(low)
            cipher = session.cipher(counter, is_out=False)
            try:
                body = cipher.open(nonce(address, counter), head + run, sealed)
            except SealError:
                continue
            self._take(session, counter, sealed)
            self.is_strange = False
            self._bad_in_a_row = self._in_vain = 0
            return body
        self._note_bad()
        raise SealError("seal", "the tag is wrong: damaged, forged, or of another session or run")

    def open_sync(
        self, head: bytes, address: int, low: int, content: bytes, unused: int, *, is_hub: bool
    ) -> bytes:
        """The body of a frame with an ephemeral key; WireError.

        `unused` is the first of this end's seal counters that was certainly never used. `is_hub`:
        whether the peer may send a broadcast key.
        """
        key, high = content[:EPHEMERAL_SIZE], content[EPHEMERAL_SIZE:CLEAR_SIZE]
        counter = int.from_bytes(high, "little") << COUNTER_BITS | low
        tag, sealed = content[CLEAR_SIZE : CLEAR_SIZE + TAG_SIZE], content[CLEAR_SIZE + TAG_SIZE :]
        self._check_opening(key, nonce(address, counter), head + content[:CLEAR_SIZE], tag)
        if not sealed:
            self._answer(key)
            raise WireError("sync", "the peer does not know this process yet")
        if len(sealed) <= CLAIMS_SIZE + TAG_SIZE:
            raise WireError("length", "a frame with address 0 must have claims and a body")
        self._check_exchange(key, is_new=counter > self.highest)
        session = self._session_of(key)
        try:
            plain = session.cipher(counter, is_out=False).open(
                nonce(address, counter), head + content[: CLEAR_SIZE + TAG_SIZE], sealed
            )
        except SealError as error:
            self._answer(key)
            raise WireError("sync", "the frame is for an earlier process of this end") from error
        claims, body = read_claims(plain)
        is_late = session is self._before and not self._is_present(claims)
        if body[0] == KEYS and (is_late or not is_hub):
            raise WireError("kind", "only the hub may send a broadcast key, in its own session")
        self._enter(session, claims, counter, sealed, unused)
        self.held = claims.group
        self._bad_in_a_row = 0
        self.needs_reply = False
        if claims.behind and not self._is_behind_noted:
            self.clones[self._own_name] += 1
            self._is_behind_noted = True
        if body == QUESTION:
            self.needs_sync = True
            if self._in_vain >= IN_VAIN_MAX:
                self._end_pause()
        self._in_vain = 0
        return body

    def _check_opening(self, key: bytes, number: bytes, head: bytes, tag: bytes) -> None:
        """Check the tag over an ephemeral key: a stranger must not cost a key exchange."""
        try:
            self._keys.opening(self.other.fingerprint, key).open(number, head, tag)
        except SealError:
            self.is_strange = True
            self._note_bad()
            raise
        self.is_strange = False

    def _check_exchange(self, key: bytes, *, is_new: bool) -> None:
        """Count the key exchange that a frame costs, if it costs one; WireError for too many.

        Whoever repeats old frames of the peer uses up none of the exchanges for new ones.
        """
        if self._find(key) is None:
            if self._exchanges[is_new] >= DERIVED_MAX:
                raise WireError("sync", f"too many keys of {self.other.name} at once: try again")
            self._exchanges[is_new] += 1

    def _enter(
        self, session: _Session, claims: Claims, counter: int, sealed: bytes, unused: int
    ) -> None:
        """Enter a frame that has opened into its session, or begin that session; WireError."""
        last, is_before = self._current, session is self._before
        if session is last:
            self._take(session, counter, sealed)
            return
        if not self._is_present(claims):
            # An ended process may have sent this. A living one will have opened the answer.
            self._answer(session.ephemeral)
            if is_before:
                self._take(session, counter, sealed)
                return
            raise WireError("replay", "a new session must have opened a frame of the present time")
        if last is not None:
            self._is_behind = is_before or counter <= self.highest
            self.clones[self.other.name] += session.ephemeral in self._ended or self._is_behind
            self._ended.append(last.ephemeral)
        self._before, self._current = last, session
        session.begun, session.begun_own = counter, unused
        if not is_before:  # else two processes may take turns for long, at longer and longer pauses
            session.window = Window(counter)
            self._answered.clear()
            self._end_pause()
        self.highest = max(counter, session.window.highest)
        self._keys.derived.pop(session.ephemeral, None)
        self._candidate = b""
        self._take(session, counter, sealed)

    def _is_present(self, claims: Claims) -> bool:
        """Whether a sender has opened a frame of the time since the present session began."""
        return self._current is None or claims.seen >= self._current.begun_own

    def _take(self, session: _Session, counter: int, sealed: bytes) -> None:
        """Enter a frame with a valid tag into its window; WireError."""
        assert self._current is not None
        if session is not self._current and counter >= self._current.begun:
            verdict = Verdict.CLONE  # the process of a session that has ended goes on
            self._answer(session.ephemeral)
        else:
            verdict = session.window.take(counter, sealed[-TAG_SIZE:][:MARK_SIZE])
        if verdict is Verdict.CLONE:
            self.clones[self.other.name] += 1
            raise WireError("clone", "two senders have the same key")
        if verdict is Verdict.REPLAY:
            raise WireError("replay", "this frame has been received before")
        if session is self._current:
            self.highest = max(self.highest, counter)
        self.changed = True

    def _answer(self, key: bytes) -> None:
        """Send a sync for the process with this ephemeral key: without a pause, if it is new."""
        self._candidate = key
        if key not in self._answered and len(self._answered) < KEYS_KEPT:
            self._answered.add(key)
            self._end_pause()

    def _end_pause(self) -> None:
        self._ask_at = 0.0
        self._ask_s = ASK_FIRST_S

    def _note_bad(self) -> None:
        self._bad_in_a_row += 1
        if self._current is None or self._bad_in_a_row >= BAD_ASK:
            self.queue_question()
            self._bad_in_a_row = 0

    # Keys

    def _find(self, key: bytes) -> _Session | None:
        """The session with this ephemeral key of the peer that needs no key exchange."""
        for session in filter(None, (self._current, self._before)):
            if session.ephemeral == key:
                return session
        return self._keys.derived.get(key)

    def _session_of(self, key: bytes) -> _Session:
        """The session with the peer's process that has this ephemeral key; WireError."""
        return self._find(key) or self._keys.derive(key)
