"""Broadcasts: one key that the hub gives to its members, one by one. SPEC.md section 9.3.

Whoever holds the key could forge a broadcast: what matters in one is signed besides.
"""

from dataclasses import replace
from hmac import compare_digest

from ternmesh.errors import SealError, WireError
from ternmesh.trust.identity import FINGERPRINT_SIZE, Identity
from ternmesh.trust.keys import GENERATION_BITS, group_key, group_secret, nonce
from ternmesh.trust.primitives import KEY_SIZE, Ccm
from ternmesh.trust.session import GroupState, group_label, group_name, write_keys
from ternmesh.trust.window import SIZE, closed_window, whole_counter
from ternmesh.wire.seal import BROADCAST, TAG_SIZE

BAD_ASK = 4  # broadcasts in a row
LATE_MAX = 1 << 16  # counters; so far may a broadcast be behind what the hub has said to this end
TAGS_MAX = 8  # under one counter


class _Keys:
    """The ciphers of one broadcast secret."""

    def __init__(self, state: GroupState, suite: int, fleet: bytes) -> None:
        self.state = state
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

    @property
    def name(self) -> bytes:
        """The name of the present key (16 bytes)."""
        return group_name(self._keys.state.secret)

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
    """The receiver of the broadcasts of one hub.

    Whoever holds the key can seal under any counter, so no broadcast closes the way for another:
    where they stand is what the hub itself has said, under the key of the pair. What is kept of the
    broadcasts is only which frames were here, so that a recording is told from news.
    """

    def __init__(self, suite: int, fleet: bytes, state: GroupState | None) -> None:
        self._suite, self._fleet = suite, fleet
        self._keys = None if state is None else _Keys(state, suite, fleet)
        # Up to `floor` all is in the past. After a restart that is the highest that was here, which
        # may have been a lie: the next word of the hub itself corrects it.
        self._floor = self._near = self._highest = 0 if state is None else state.window.highest
        self._tags: dict[int, list[bytes]] = {}  # of those that were here, by counter
        self.changed, self.clones, self._bad = False, 0, 0

    @property
    def is_out_of_step(self) -> bool:
        """Whether the hub should be asked: there is no key, or it opens nothing."""
        return self._keys is None or self._bad >= BAD_ASK

    @property
    def name(self) -> bytes:
        """The name of the key that is held (16 bytes), empty for none."""
        return b"" if self._keys is None else group_name(self._keys.state.secret)

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
        return replace(self._keys.state, window=closed_window(self._highest).state)

    def take(self, hub: bytes, given: int, keys: tuple[int, bytes, int]) -> None:
        """Take a key that came in a frame of the session `given` of the hub.

        WireError "replay" for one that is not newer than another that is held: by the epoch of the
        session that it came in, then by its own.
        """
        assert len(hub) == FINGERPRINT_SIZE
        epoch, secret, counter = keys
        if self._keys is not None and self._keys.state.fingerprint == hub:
            held = self._keys.state
            if compare_digest(secret, held.secret):
                return
            if (given, epoch) <= (held.given, held.epoch):
                raise WireError("replay", "a broadcast key that is not newer than the one in force")
        self._keys = _Keys(GroupState(hub, epoch, secret, given), self._suite, self._fleet)
        self._floor = self._highest = counter
        self._tags.clear()
        self.changed = True

    def heard(self, counter: int) -> None:
        """The hub itself, under the key of the pair, has come to this counter and not beyond it."""
        self._near, self._floor = counter, min(self._floor, counter)

    def open(self, hub: bytes, head: bytes, low: int, phase: int, sealed: bytes) -> bytes:
        """The body of a broadcast of the hub with this fingerprint; WireError.

        The key before is not tried: it may have been changed because somebody lost the right to it.
        """
        if self._keys is not None and self._keys.state.fingerprint != hub:
            self._keys = None  # the hub is another one by now, or has other keys
        keys = self._keys
        self._bad += 1
        if keys is None or keys.state.epoch & 1 != phase:
            raise SealError("seal", "a broadcast under a key that this end was not given")
        counter = whole_counter(self._near, low)
        body = keys.cipher(counter).open(nonce(BROADCAST, counter), head, sealed)
        self._bad = 0
        self._note(counter, sealed[-TAG_SIZE:])
        return body

    def _note(self, counter: int, tag: bytes) -> None:
        """Remember a frame with a right tag; WireError for one that was here before.

        Of two frames under one counter somebody has forged one, nobody knows which: both are taken.
        """
        tags = self._tags.get(counter, [])
        if tag in tags or counter <= max(self._floor, self._near - LATE_MAX):
            raise WireError("replay", "a broadcast that was here before")
        self.clones += bool(tags)
        self._tags[counter] = [*tags, tag][-TAGS_MAX:]
        if len(self._tags) > SIZE:
            del self._tags[next(iter(self._tags))]
        self._highest, self.changed = max(self._highest, counter), True
