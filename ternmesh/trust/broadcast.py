"""Broadcasts: one key that the hub gives to its members, one by one. SPEC.md section 9.3.

Whoever holds the key could forge a broadcast: what matters in one is signed besides.
"""

from dataclasses import replace
from hmac import compare_digest

from ternmesh.errors import SealError, WireError
from ternmesh.trust.identity import FINGERPRINT_SIZE, Identity
from ternmesh.trust.keys import GENERATION_BITS, group_key, group_secret, nonce
from ternmesh.trust.primitives import KEY_SIZE, Ccm
from ternmesh.trust.session import GroupState, group_label, write_keys
from ternmesh.trust.window import MARK_SIZE, Verdict, Window, closed_window
from ternmesh.wire.seal import BROADCAST, TAG_SIZE

BAD_ASK = 4  # broadcasts in a row
LEAP = 1 << 22  # counters; a sender may have gone on so far while this end heard nothing


class _Keys:
    """The ciphers of one broadcast secret."""

    def __init__(self, state: GroupState, suite: int, fleet: bytes) -> None:
        self.state, self.window = state, Window(state.window)
        self._suite, self._fleet = suite, fleet
        self._ciphers: dict[int, Ccm] = {}

    def cipher(self, counter: int) -> Ccm:
        generation = counter >> GENERATION_BITS
        if generation not in self._ciphers:
            state = self.state
            key = group_key(
                state.secret, self._suite, state.fingerprint, self._fleet, state.epoch, counter
            )
            if len(self._ciphers) > 1:
                del self._ciphers[next(iter(self._ciphers))]
            self._ciphers[generation] = Ccm(key)
        return self._ciphers[generation]


class Hub:
    """The sender of broadcasts. Every process has a key of its own."""

    def __init__(
        self, own: Identity, suite: int, fleet: bytes, instance: bytes, state: GroupState | None
    ) -> None:
        self._own, self._suite, self._fleet, self._instance = own, suite, fleet, instance
        epoch = 0 if state is None else state.epoch
        self._keys, self.changed = _Keys(self._new(epoch + 1), suite, fleet), True

    @property
    def state(self) -> GroupState:
        """What must survive: the epoch."""
        return replace(self._keys.state, secret=bytes(KEY_SIZE))

    @property
    def epoch(self) -> int:
        """The epoch of the present key."""
        return self._keys.state.epoch

    def gift(self, counter: int) -> bytes:
        """The body that gives the key away; `counter` is the last one that was used."""
        return write_keys(self._keys.state.epoch, self._keys.state.secret, counter)

    def lacks(self, label: int) -> bool:
        """Whether a member that holds the key with this label must be given another one."""
        return label != group_label(self._keys.state.secret)

    def renew(self) -> None:
        """Go over to a new key; those who are not given it hear nothing more."""
        self._keys = _Keys(self._new(self.state.epoch + 1), self._suite, self._fleet)
        self.changed = True

    def seal(self, head: bytes, counter: int, body: bytes) -> bytes:
        """A frame for all."""
        return head + self._keys.cipher(counter).seal(nonce(BROADCAST, counter), head, body)

    def _new(self, epoch: int) -> GroupState:
        secret = group_secret(self._own, self._suite, self._fleet, epoch, self._instance)
        return GroupState(self._own.public.fingerprint, epoch, secret)


class Listener:
    """The receiver of the broadcasts of one hub."""

    def __init__(self, suite: int, fleet: bytes, state: GroupState | None) -> None:
        self._suite, self._fleet = suite, fleet
        self._keys = None if state is None else _Keys(state, suite, fleet)
        self.changed, self.clones, self._bad = False, 0, 0

    @property
    def is_out_of_step(self) -> bool:
        """Whether the hub should be asked: there is no key, or it opens nothing."""
        return self._keys is None or self._bad >= BAD_ASK

    def label(self, hub: bytes) -> int:
        """The label of the key of the hub with this fingerprint that is held, 0 for none."""
        keys = self._keys
        if keys is None or keys.state.fingerprint != hub:
            return 0
        return group_label(keys.state.secret)

    @property
    def state(self) -> GroupState | None:
        """What must survive."""
        if self._keys is None:
            return None
        s, window = self._keys.state, self._keys.window.state
        return GroupState(s.fingerprint, s.epoch, s.secret, s.given, window)

    def take(self, hub: bytes, given: int, keys: tuple[int, bytes, int]) -> None:
        """Take a key from the hub; one that is older than what is held changes nothing."""
        assert len(hub) == FINGERPRINT_SIZE
        epoch, secret, counter = keys
        held = self._keys
        if held is not None and held.state.fingerprint == hub:
            if (given, epoch) < (held.state.given, held.state.epoch):
                return
            if compare_digest(secret, held.state.secret):
                self.catch_up(counter)
                return
        state = GroupState(hub, epoch, secret, given, closed_window(counter).state)
        self._keys, self.changed = _Keys(state, self._suite, self._fleet), True

    def catch_up(self, counter: int) -> None:
        """The hub has come to this counter: what is far below it will not come any more."""
        if self._keys is not None and counter - self._keys.window.highest > LEAP:
            self._keys.window.close_below(counter)
            self.changed = True

    def open(self, head: bytes, low: int, phase: int, sealed: bytes) -> bytes:
        """The body of a broadcast; WireError.

        The key before is not tried: it may have been changed because somebody lost the right to it.
        """
        keys = self._keys
        self._bad += 1
        if keys is None or keys.state.epoch & 1 != phase:
            raise SealError("seal", "a broadcast under a key that this end was not given")
        counter = keys.window.whole(low)
        body = keys.cipher(counter).open(nonce(BROADCAST, counter), head, sealed)
        self._bad = 0
        self._check(keys.window.take(counter, sealed[-TAG_SIZE:][:MARK_SIZE]))
        self.changed = True
        return body

    def _check(self, verdict: Verdict) -> None:
        if verdict is Verdict.REPLAY:
            raise WireError("replay", "a broadcast that was here before")
        if verdict is Verdict.CLONE:
            self.clones += 1
            raise WireError("clone", "two senders have the same broadcast key")
