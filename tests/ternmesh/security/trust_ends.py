"""A small fleet with keys: a host, two nodes, and the ends of both layers."""

import hashlib
from dataclasses import dataclass, field

from ternmesh.errors import WireError
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.membership import MemberList, found_fleet
from ternmesh.security.sealing import Change
from ternmesh.security.session import CloneCount, GroupState, PeerState, SealingState

UP, DOWN, ALL = 3, 3 | 0x8000, 0xFFFF


def entropy(*seed: object) -> bytes:
    return hashlib.sha512(repr(seed).encode()).digest()


def someone(name: str, role: Role = Role.NODE) -> Identity:
    return make_identity(name, role, entropy(name, role))


@dataclass
class End:
    """An end with its disk: what `changes` has said, and the counters that were reserved."""

    name: str
    identity: Identity
    member_list: MemberList
    suite: int = 1
    counter: int = 0
    lives: int = 0
    disk: dict[str, Change] = field(default_factory=dict)  # clones under "clones " and the name
    sealing: KeyedSealing = field(init=False)

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """Start a process from what is on disk."""
        self.lives += 1
        peers = tuple(v for v in self.disk.values() if isinstance(v, PeerState))
        group = self.disk.get("")
        assert group is None or isinstance(group, GroupState)
        clones = tuple(v for v in self.disk.values() if isinstance(v, CloneCount))
        self.sealing = KeyedSealing(
            self.identity,
            self.member_list,
            self.suite,
            entropy("instance", self.name, self.lives)[:32],
            self.counter,
            SealingState(peers, group, clones),
            hub=None if self.identity.public.role is Role.HOST else "host",
        )

    def save(self) -> None:
        for change in self.sealing.changes():
            match change:
                case PeerState(name=name):
                    self.disk[name] = change
                case CloneCount(name=name):
                    self.disk[f"clones {name}"] = change
                case _:
                    self.disk[""] = change

    def say(self, peer: str, address: int, body: bytes) -> bytes:
        frame = self.sealing.seal(peer, address, self.counter, body)
        self.counter += 1
        self.save()
        return frame

    def hear(self, peer: str, frame: bytes) -> bytes | str:
        """The body, or the reason why there is none."""
        try:
            body = self.sealing.open(peer, frame)[1]
        except WireError as error:
            return error.reason
        self.save()
        return body


def hail(node: End, host: End) -> None:
    """As node and host do with hello, sync and welcome, until each knows the other."""
    for _ in range(4):
        if host.hear(node.name, node.say("host", 0, b"\x01hello")) == b"\x01hello":
            break
        answer(host, node)
        answer(node, host)
    assert node.hear("host", host.say(node.name, 0, b"\x01welcome")) == b"\x01welcome"
    answer(host, node)


def answer(end: End, other: End) -> None:
    """Deliver what one end's seals have to tell the other."""
    for peer, address, body in end.sealing.due(1e6 * (1 + end.counter)):
        if peer == other.name:
            other.hear(end.name, end.say(peer, address, body))


def make_fleet(*names: str, suite: int = 1) -> list[End]:
    """A host and nodes of these names that have never met."""
    host = someone("greenhouse", Role.HOST)
    member_list = MemberList(found_fleet("tomatoes", host.public))
    for name in names:
        member_list.enrol(someone(name).public)
    ends = [End("host", host, member_list, suite)]
    return ends + [End(name, someone(name), MemberList(member_list.state), suite) for name in names]


def met(suite: int = 1) -> tuple[End, End]:
    """A host and a node that know each other."""
    host, node = make_fleet("theo", suite=suite)
    hail(node, host)
    return host, node
