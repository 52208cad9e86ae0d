"""Keyed seals: frames of strangers, of members that lie, and frames that come again or late.

Nobody guesses a tag, so liars here have keys: what is fuzzed is behind the proof.
"""

from collections import deque
from collections.abc import Iterator

from bench.fuzz_targets.seals import fleet, member
from bench.fuzz_targets.target import Target, joined, number, parts, same
from bench.fuzz_targets.trust import someone
from ternmesh.errors import WireError
from ternmesh.trust import identity, roster
from ternmesh.trust.identity import Role
from ternmesh.trust.keyed import KeyedSealing
from ternmesh.trust.keys import nonce, sync_key
from ternmesh.trust.primitives import Ccm
from ternmesh.trust.session import (
    ANSWER,
    HIGH_SIZE,
    INSTANCE_SIZE,
    Claims,
    GroupState,
    PeerState,
    SealingState,
    read_group,
    read_peer,
    write_claims,
    write_group,
    write_keys,
    write_peer,
)
from ternmesh.wire.seal import BROADCAST, DOWN, ENROL

UP = 3
HELLO = b"\x01hello"
_SUITE = 1
_STEPS_MAX = 32
_SENT_MAX = 32  # frames that are remembered, to be delivered again or late


class End:
    """One end and its disk, on which states are the bytes of `write_peer` and `write_group`."""

    def __init__(self, own: identity.Identity, state: roster.RosterState, hub: str | None) -> None:
        self.own, self.roster, self.hub = own, roster.Roster(state), hub
        self.counter = self.lives = 0
        self.peers: dict[str, bytes] = {}
        self.group = b""
        self.taken: set[bytes] = set()
        self.was_late = False  # whether frames have come in another order than they were sealed
        self.boot()

    def boot(self) -> None:
        """Start a process from the disk."""
        self._backup = self.counter, dict(self.peers), self.group
        self.lives += 1
        instance = self.own.public.fingerprint[:7] + bytes((self.lives & 0xFF,))
        peers = tuple(read_peer(name, data) for name, data in self.peers.items())
        state = SealingState(peers, read_group(self.group) if self.group else None)
        self.sealing = KeyedSealing(
            self.own, self.roster, _SUITE, instance, self.counter, state, hub=self.hub
        )
        if self.was_late:  # a late word of the hub lowers the mark under which broadcasts are old
            self.taken = {frame for frame in self.taken if not _is_broadcast(frame)}

    def fall_back(self) -> None:
        """Start from a copy of the disk as it was at the start before: all since is forgotten."""
        self.counter, self.peers, self.group = self._backup
        self.taken.clear()
        self.boot()

    def save(self) -> None:
        """Put onto the disk what has changed."""
        for change in self.sealing.changes():
            if isinstance(change, PeerState):
                self.peers[change.name] = write_peer(change)
            elif isinstance(change, GroupState):
                self.group = write_group(change)

    def say(self, peer: str, context: int, body: bytes) -> bytes:
        """The frame of a body, under a fresh counter."""
        frame = self.sealing.seal(peer, context, self.counter, body)
        self.counter += 1
        self.save()
        return frame

    def hear(self, peer: str, frame: bytes) -> bytes:
        """The body of a frame, empty where it is refused; AssertionError for one taken twice."""
        before = self._window(peer) if frame in self.taken else None
        try:
            _, body = self.sealing.open(peer, frame)
        except WireError:
            if before is not None:
                same(self._window(peer), before, "the window after a frame that was here before")
            return b""
        self.save()
        if frame in self.taken:
            raise AssertionError("a frame was taken twice")
        self.taken.add(frame)
        return body

    def _window(self, peer: str) -> object:
        state = self.sealing._pair(peer).state(peer)
        return state.receiving, state.window


class _Talk:
    """A host and a member, what was sent between them, and whether somebody lied."""

    def __init__(self) -> None:
        self.host = End(someone("base", Role.HOST), fleet(), None)
        self.node = End(member(), fleet(), "host")
        self.lied = False
        self._sent: deque[tuple[End, str, bytes]] = deque(maxlen=_SENT_MAX)

    def step(self, choice: int, said: bytes, now: float) -> None:
        """One thing that happens."""
        is_down = bool(choice & 8)
        sender, receiver = (self.host, self.node) if is_down else (self.node, self.host)
        name, to = ("host", "ada") if is_down else ("ada", "host")
        context = UP | (DOWN if is_down else 0)
        match choice & 7:
            case 0 if choice & 16:  # a frame that was sent before: again, or late
                self._repeat(number(said, 0, 1))
            case 0:  # a stranger
                receiver.hear(name, said)
            case 1:  # a member's own words
                context = ENROL if choice & 16 else context
                frame = sender.say(to, context, said or b"\0")
                self._deliver(receiver, name, frame, is_lost=bool(choice & 32))
            case 2:
                self.lied = True
                self.host.hear("ada", _lie(self.node, said, own_instance=bool(choice & 16)))
            case 3:
                frame = self.host.say("all", BROADCAST, said or b"\0")
                self._deliver(self.node, "host", frame, is_lost=bool(choice & 32))
            case 4 if choice & 16:
                self.lied = True
                receiver.fall_back()
            case 4:
                receiver.save()
                receiver.boot()
            case 5:
                for peer, place, body in sender.sealing.due(now):
                    self._deliver(receiver, name, sender.say(peer, place, body))
            case 6:  # damage on the way
                sent = bytearray(sender.say(to, context, b"body"))
                sent[number(said, 0, 1) % len(sent)] ^= number(said, 1, 1)
                self._deliver(receiver, name, bytes(sent))
            case 7:
                self.host.sealing.rekey()

    def _deliver(self, to: End, name: str, frame: bytes, *, is_lost: bool = False) -> None:
        self._sent.append((to, name, frame))
        if not is_lost:
            to.hear(name, frame)

    def _repeat(self, index: int) -> None:
        if self._sent:
            to, name, frame = self._sent[-1 - index % len(self._sent)]
            to.was_late |= frame not in to.taken
            to.hear(name, frame)


def _is_broadcast(frame: bytes) -> bool:
    return number(frame, 1, 2) == BROADCAST


def _lie(node: End, said: bytes, *, own_instance: bool) -> bytes:
    """A frame with context 0 whose claims and body are `said`, under the right key."""
    pair = node.sealing._pair("host")
    instance = pair._instance if own_instance else said[:INSTANCE_SIZE].ljust(INSTANCE_SIZE, b"\0")
    cipher = Ccm(sync_key(pair._secret, _SUITE, pair._own, instance))
    node.counter += 1
    low = (node.counter & 0xFFFFFF).to_bytes(3, "little")
    head = node.sealing._head(pair.epoch, ENROL, low) + instance + bytes(HIGH_SIZE)
    return head + cipher.seal(nonce(ENROL, node.counter), head, said)


def _check_keyed(data: bytes) -> None:
    talk, now = _Talk(), 0.0
    for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        now += 1.0
        talk.step(number(item, 0, 1), item[1:], now)
    if not talk.lied:
        meet(talk.host, talk.node)


def meet(host: End, node: End) -> None:
    """Honest ends find each other, whatever strangers and power cuts have done before."""
    for _ in range(4):
        if host.hear("ada", node.say("host", ENROL, HELLO)) == HELLO:
            break
        node.hear("host", host.say("ada", ENROL, b"\x01refusal"))
    same(node.hear("host", host.say("ada", ENROL, b"\x01welcome")), b"\x01welcome", "a welcome")
    same(host.hear("ada", node.say("host", UP, b"packet")), b"packet", "a packet")


def _conversations() -> Iterator[bytes]:
    claims = write_claims(Claims(b"line", 7, bytes(8), 3, 9)) + HELLO
    keys = write_keys(2, bytes(range(16)), 7)
    greeted = [b"\x11" + HELLO, b"\x19\x01refusal", b"\x11" + HELLO, b"\x19\x01welcome"]
    yield joined([*greeted[:3], b"\x19" + keys, b"\x03x"])
    yield joined([b"\x12" + claims, b"\x02" + claims, b"\x19" + ANSWER, b"\x0d", b"\x05", b"\x04"])
    yield joined(
        [b"\x11" + HELLO, b"\x0c", b"\x0d", b"\x06\x08\x01", b"\x07", b"\x03all", b"\x00a"]
    )
    again = [b"\x10\x00", b"\x10\x02", b"\x04", b"\x10\x00", b"\x0c", b"\x10\x01"]
    yield joined([*greeted, b"\x0d", b"\x01one", b"\x09two", b"\x03all", *again])
    yield joined([*greeted, b"\x01one", b"\x01two", b"\x1c", b"\x01three", b"\x01four", b"\x0d"])
    twin = b"\x12" + write_claims(Claims(b"line", 1)) + HELLO  # the next frame has its counter
    yield joined([*greeted, twin, b"\x01one", twin])
    late = [b"\x10\x03", b"\x10\x02", b"\x10\x01", b"\x10\x00"]
    yield joined([*greeted, b"\x0d", b"\x21a", b"\x29b", b"\x23c", b"\x01d", *late, b"\x04", *late])


TARGETS = (Target("keyed", _check_keyed, _conversations),)
