"""Broadcasts: one group key that the hub sends to each member. SPEC.md section 9.3.

A member that holds the key could forge a broadcast, so the content of broadcasts is also signed.
"""

from collections import Counter
from dataclasses import replace
from hmac import compare_digest

from ternmesh.errors import SealError, WireError
from ternmesh.security.identity import PublicIdentity
from ternmesh.security.key_derivation import GENERATION_BITS, group_key, group_secret, nonce
from ternmesh.security.membership import ALL
from ternmesh.security.primitives import Ccm
from ternmesh.security.session import (
    SIZE,
    GroupState,
    group_label,
    group_name,
    whole_counter,
    write_keys,
)
from ternmesh.wire.frame import BROADCAST, TAG_SIZE

BAD_ASK = 2  # broadcasts in a row that do not open, after which the hub is asked for the key
LATE_MAX = 1 << 16  # how far a broadcast's counter may be behind the hub's latest known counter
TAGS_MAX = 8  # tags that are kept for one counter


class _GroupCiphers:
    def __init__(self, state: GroupState, suite: int, fleet: bytes) -> None:
        self.state = state
        self._suite = suite
        self._fleet = fleet
        self._ciphers: dict[int, Ccm] = {}  # by key generation

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


class GroupKeyServer:
    """The hub: it makes the group key, anew in every process, and seals broadcasts.

    `seed` is 32 random bytes of this process.
    """

    def __init__(self, own: PublicIdentity, suite: int, fleet: bytes, seed: bytes) -> None:
        self._own = own
        self._suite = suite
        self._fleet = fleet
        self._seed = seed  # of the next key
        self.epoch = 0  # of the current key
        self.renew()

    def group_key_message(self, counter: int) -> bytes:
        """The body that carries the key to a member; `counter` is the last one that was used."""
        return write_keys(self.epoch, self._secret, counter)

    @property
    def name(self) -> bytes:
        """The name of the current key (16 bytes)."""
        return group_name(self._secret)

    def lacks(self, label: int) -> bool:
        """Whether a member that holds the key with this label needs the current key."""
        return label != group_label(self._secret)

    def renew(self) -> None:
        """Change to a new key. Members that do not get it can no longer open broadcasts."""
        self.epoch += 1
        self._secret, self._seed = group_secret(self._seed)
        state = GroupState(self._own.fingerprint, self.epoch, self._secret, b"")
        self._keys = _GroupCiphers(state, self._suite, self._fleet)

    def seal(self, head: bytes, counter: int, body: bytes) -> bytes:
        """The frame of a broadcast: `head`, then the sealed body and its tag."""
        return head + self._keys.cipher(counter).seal(nonce(BROADCAST, counter), head, body)


class GroupKeyReceiver:
    """A member: it receives the group key and opens the hub's broadcasts.

    Any member can seal with any counter, so a broadcast must not close the window for another one.
    The current counter comes only from the hub's own frames to this end. Of the broadcasts only
    their tags are kept, to recognise replays.
    """

    def __init__(self, suite: int, fleet: bytes, state: GroupState | None) -> None:
        self.changed = False  # the state must be stored
        self.clones: Counter[str] = Counter()  # pairs of frames with the same counter
        self._suite = suite
        self._fleet = fleet
        self._keys = None if state is None else _GroupCiphers(state, suite, fleet)
        highest = 0 if state is None else state.highest
        self._highest = highest  # counter of all broadcasts, also forged ones
        self._near = highest  # counter of the hub's latest frame to this end
        # Broadcasts up to this counter are refused. After a restart it may come from a forged
        # broadcast; the hub's next frame to this end corrects it.
        self._floor = highest
        self._tags: dict[int, list[bytes]] = {}  # of received broadcasts, by counter
        self._bad = 0  # broadcasts in a row that did not open

    @property
    def is_out_of_step(self) -> bool:
        """Whether the hub should be asked for the key."""
        return self._keys is None or self._bad >= BAD_ASK

    @property
    def name(self) -> bytes:
        """The name of this end's key (16 bytes), empty for none."""
        return b"" if self._keys is None else group_name(self._keys.state.secret)

    def label(self, hub: bytes) -> int:
        """The label of this end's key from the hub with this fingerprint, 0 for none."""
        keys = self._keys
        if keys is None or keys.state.fingerprint != hub:
            return 0
        return group_label(keys.state.secret)

    @property
    def state(self) -> GroupState | None:
        if self._keys is None:
            return None
        return replace(self._keys.state, highest=self._highest)

    def take(self, hub: bytes, given: bytes, keys: tuple[int, bytes, int]) -> None:
        """Use a key of the hub, whose present process has the ephemeral key `given`.

        WireError "replay" if it is not newer than another key of the same process.
        """
        epoch, secret, counter = keys
        if self._keys is not None and self._keys.state.fingerprint == hub:
            held = self._keys.state
            if compare_digest(secret, held.secret):
                return
            if given == held.given and epoch <= held.epoch:
                raise WireError("replay", "this broadcast key is not newer than the one in force")
        self._keys = _GroupCiphers(GroupState(hub, epoch, secret, given), self._suite, self._fleet)
        self._floor = self._highest = counter
        self._tags.clear()
        self.changed = True

    def heard(self, counter: int) -> None:
        """Note the highest counter of the hub's own frames to this end."""
        self._near = counter
        self._floor = min(self._floor, counter)

    def open(self, hub: bytes, head: bytes, low: int, phase: int, sealed: bytes) -> bytes:
        """The body of a broadcast of the hub with this fingerprint; WireError.

        The previous key is not tried: it may have been changed because a member was revoked.
        """
        if self._keys is not None and self._keys.state.fingerprint != hub:
            self._keys = None  # the hub has been replaced, or has rotated its keys
        keys = self._keys
        self._bad += 1
        if keys is None or keys.state.epoch & 1 != phase:
            raise SealError("seal", "this end does not have the key of this broadcast")
        counter = whole_counter(self._near, low)
        body = keys.cipher(counter).open(nonce(BROADCAST, counter), head, sealed)
        self._bad = 0
        self._note(counter, sealed[-TAG_SIZE:])
        return body

    def _note(self, counter: int, tag: bytes) -> None:
        """Enter a frame with a valid tag; WireError for a replay.

        Of two frames with the same counter one is forged, but it is unknown which: both are taken.
        """
        tags = self._tags.get(counter, [])
        if tag in tags or counter <= max(self._floor, self._near - LATE_MAX):
            raise WireError("replay", "this broadcast has been received before")
        self.clones[ALL] += bool(tags)
        self._tags[counter] = [*tags, tag][-TAGS_MAX:]
        if len(self._tags) > SIZE:
            del self._tags[next(iter(self._tags))]
        self._highest = max(self._highest, counter)
        self.changed = True
