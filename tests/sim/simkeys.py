"""Keys for a simulated fleet, the disk of its seals, and a sealing that remembers its frames."""

import random

from simledger import MODEL

from ternmesh.swarm.events import TrustChanged
from ternmesh.swarm.member import HOST
from ternmesh.trust.identity import Role, make_identity
from ternmesh.trust.notary import Trust, make_trust
from ternmesh.trust.roster import Roster, found_fleet
from ternmesh.trust.sealing import Change
from ternmesh.trust.session import CloneCount, GroupState, PeerState, SealingState
from ternmesh.trust.signing import SIGNED
from ternmesh.wire import seal
from ternmesh.wire.seal import Header

SIGNATURE = 64


class SealDisk:
    """What must survive of seals; lost in a crash unless it was committed."""

    def __init__(self) -> None:
        self._committed: dict[tuple[type, str], Change] = {}
        self._working: dict[tuple[type, str], Change] = {}

    def record(self, event: object) -> None:
        if isinstance(event, TrustChanged):
            for change in event.changes:
                self._working[type(change), getattr(change, "name", "")] = change

    def commit(self) -> None:
        self._committed = dict(self._working)

    def forget(self) -> None:
        self._working = dict(self._committed)

    @property
    def state(self) -> SealingState:
        kept = self._committed
        peers = tuple(s for s in kept.values() if isinstance(s, PeerState))
        clones = tuple(s for s in kept.values() if isinstance(s, CloneCount))
        return SealingState(peers, kept.get((GroupState, "")), clones)  # type: ignore[arg-type]


class Keys:
    """The identities of a fleet."""

    def __init__(self, rng: random.Random, names: list[str]) -> None:
        self._rng = rng
        self._own = {HOST: make_identity(HOST, Role.HOST, rng.randbytes(64))}
        self._own |= {name: make_identity(name, Role.NODE, rng.randbytes(64)) for name in names}

    def trust(self, name: str, counter: int, state: SealingState) -> Trust:
        """What a new process of this end is given."""
        roster = Roster(found_fleet("sim", self._own[HOST].public))
        for own in self._own.values():
            if own.public.name != HOST:
                roster.enrol(own.public)
        instance = self._rng.randbytes(8)
        trust = make_trust(self._own[name], roster, MODEL, instance, counter, state)
        return Trust(RecordingSealing(trust.sealing), trust.notary)


class RecordingSealing:
    """A sealing that remembers what is in the frames that it has sealed."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.bodies: dict[bytes, bytes] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def seal(self, peer: str, context: int, counter: int, body: bytes) -> bytes:
        frame = self._inner.seal(peer, context, counter, body)
        self.bodies[frame] = body[1 + SIGNATURE :] if body[0] == SIGNED else body
        return frame


def header_of(frame: bytes) -> Header:
    """What a frame says of itself without its seal being opened."""
    context = int.from_bytes(frame[1:3], "little")
    return Header(context, int.from_bytes(frame[3:6], "little"), seal.suite_of(frame))
