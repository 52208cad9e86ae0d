"""Keys for a simulated fleet, the disk of its seals, and a sealing that remembers its frames."""

import random
from functools import partial
from typing import cast

from ternmesh.federated.events import SecurityChanged
from ternmesh.security.authenticator import KeyedAuthenticator, SecurityLayer, make_security_layer
from ternmesh.security.host_keys import HostKeys, write_host_rotation
from ternmesh.security.identity import Role, make_identity
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.membership import HOST, MemberList, found_fleet
from ternmesh.security.sealing import Change, Sealing
from ternmesh.security.session import CloneCount, GroupState, HostRotated, PeerState, SealingState
from ternmesh.security.signatures import SIGNED, Signers
from ternmesh.wire.frame import Header, suite_of
from tests.sim.simledger import MODEL

SIGNATURE = 64


class SealDisk:
    """What must survive of seals; lost in a crash unless it was committed."""

    def __init__(self) -> None:
        self._committed: dict[tuple[type, str], Change] = {}
        self._working: dict[tuple[type, str], Change] = {}
        self.copy: dict[tuple[type, str], Change] = {}  # what the operator has put aside

    @property
    def hosts(self) -> HostKeys | None:
        """The keys of the host that this end followed; None while it knows the first one alone."""
        change = self._committed.get((HostRotated, ""))
        return change.hosts if isinstance(change, HostRotated) else None

    def new_keys(self) -> None:
        """The end has new keys: its sessions are over."""
        self._committed.clear()
        self._working.clear()

    def record(self, event: object) -> None:
        if isinstance(event, SecurityChanged):
            for change in event.changes:
                self._working[type(change), getattr(change, "name", "")] = change

    def commit(self) -> None:
        self._committed = dict(self._working)

    def forget(self) -> None:
        self._working = dict(self._committed)

    @property
    def kept(self) -> dict[tuple[type, str], Change]:
        """A copy of what was committed."""
        return dict(self._committed)

    def set_back(self) -> None:
        """The operator brings the copy back."""
        self._committed, self._working = dict(self.copy), dict(self.copy)

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
        self._first = HostKeys(self._own[HOST].public, self._own[HOST].public)
        self.hosts = self._first

    def rotate_host(self) -> None:
        """Give the host another key."""
        old, fleet = self._own[HOST], found_fleet("sim", self._first).fleet
        new = self._own[HOST] = make_identity(HOST, Role.HOST, self._rng.randbytes(64))
        alone = Signers((old.public,))
        rotation = write_host_rotation(old.public, new, fleet, alone, (old,))
        self.hosts = self.hosts.follow(rotation, fleet, alone)

    def security(
        self, name: str, counter: int, state: SealingState, hosts: HostKeys | None = None
    ) -> SecurityLayer:
        """What a new process of this end is given."""
        hosts = self.hosts if name == HOST else hosts or self._first
        member_list = MemberList(found_fleet("sim", hosts))
        for own in self._own.values():
            if own.public.name != HOST:
                member_list.enrol(own.public)
        instance = self._rng.randbytes(32)
        security = make_security_layer(
            self._own[name], member_list, MODEL, instance, counter, state
        )
        recording = cast(Sealing, RecordingSealing(security.sealing))
        return SecurityLayer(recording, security.authenticator)


class SimKeyring:
    """What the host's service of notices asks of a keyring, for one life of the host."""

    def __init__(self, security: SecurityLayer) -> None:
        authenticator = cast(KeyedAuthenticator, security.authenticator)
        self.own, self.member_list = authenticator._own, authenticator._member_list
        self.is_strange = cast(KeyedSealing, security.sealing).is_strange
        self.follow_host = partial(self.member_list.follow_host, signers=authenticator._rule)


class RecordingSealing:
    """A sealing that remembers what is in the frames that it has sealed."""

    def __init__(self, inner: Sealing) -> None:
        self._inner = inner
        self.bodies: dict[bytes, bytes] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def seal(self, peer: str, address: int, counter: int, body: bytes) -> bytes:
        frame = self._inner.seal(peer, address, counter, body)
        self.bodies[frame] = body[1 + SIGNATURE :] if body[0] == SIGNED else body
        return frame


def header_of(frame: bytes) -> Header:
    """What a frame says of itself without its seal being opened."""
    address = int.from_bytes(frame[1:3], "little")
    return Header(address, int.from_bytes(frame[3:6], "little"), suite_of(frame))
