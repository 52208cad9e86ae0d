"""No key ever meets the same nonce twice, whatever is cut, lost, copied or brought back."""

import copy
import random
from dataclasses import dataclass, field

import pytest

from ternmesh.errors import SealError, WireError
from ternmesh.federated.channel import SealedQueue
from ternmesh.security import group_keys, peer_session
from ternmesh.security.keyed_sealing import NEIGHBOUR
from ternmesh.wire.frame import open_seal
from tests.ternmesh.security.trust_ends import ALL, DOWN, UP, End, answer, hail, make_fleet

CUTS = 2000


class Recorder:
    """In the place of the cipher: it encrypts nothing and forgets no nonce."""

    used: set[tuple[bytes, bytes]]

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, nonce: bytes, head: bytes, body: bytes) -> bytes:
        assert (self._key, nonce) not in self.used, "a nonce was used twice"
        self.used.add((self._key, nonce))
        return body + (self._key[:4] + nonce[2:6])

    def open(self, nonce: bytes, head: bytes, sealed: bytes) -> bytes:
        if sealed[-8:] != self._key[:4] + nonce[2:6]:
            raise SealError("seal", "not this key and nonce")
        return sealed[:-8]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    class Fresh(Recorder):
        used: set[tuple[bytes, bytes]] = set()  # noqa: RUF012

    monkeypatch.setattr(peer_session, "Ccm", Fresh)
    monkeypatch.setattr(group_keys, "Ccm", Fresh)
    return Fresh


def counters(outgoing: SealedQueue) -> list[int]:
    return [open_seal(frame)[0].counter for _, frames in outgoing.drain() for frame in frames]


def test_must_avoid_08_many_power_cuts_between_reserve_and_use(recorder: type[Recorder]) -> None:
    # R3-6, R3-7
    """The reservation is that of `Outgoing`: on disk first, then used, then perhaps a cut."""
    rng, (host, node) = random.Random(8), make_fleet("theo")
    hail(node, host)
    node.counter = 1000  # those of `hail` were never in blocks
    for _ in range(CUTS):
        outgoing = SealedQueue(node.counter)
        outgoing.push("host", UP, [b"x"] * rng.randint(1, 3))
        limit = outgoing.reserve()
        assert limit is not None
        if rng.random() < 0.3:
            node.boot()  # before the reservation is on disk: nothing was used
            continue
        node.counter = limit
        for counter in counters(outgoing)[: rng.randint(0, 3)]:
            node.sealing.seal("host", rng.choice([0, UP]), counter, b"x")
            if rng.random() < 0.5:
                node.save()
        node.boot()
    assert len(recorder.used) > CUTS / 4


def test_must_avoid_08_a_copied_card_in_a_second_board(recorder: type[Recorder]) -> None:
    """Two boards go on from the same disk with the same counter, and are seen to be two."""
    host, node = make_fleet("theo")
    hail(node, host)
    twin = copy.deepcopy(node)
    twin.lives += 1000  # its random bytes are others
    for board in (node, twin):
        board.boot()
    for board in (node, twin, node, twin):
        for _ in range(5):
            host.hear("theo", board.say("host", 0, b"\x01hello"))
            answer(host, board)
            answer(board, host)
        for _ in range(20):
            host.hear("theo", board.say("host", UP, b"x"))
    assert host.sealing.clones["theo"] > 0


def test_must_avoid_08_a_host_copied_with_its_broadcast_key(recorder: type[Recorder]) -> None:
    host, node = make_fleet("theo")
    hail(node, host)
    twin = copy.deepcopy(host)
    twin.lives += 1000
    for end in (host, twin):
        end.boot()
        for _ in range(20):
            end.say("all", ALL, b"x")
            end.say("theo", DOWN, b"x")


@dataclass
class Storm:
    """Two neighbours on an air that loses, repeats and reorders, with disks that get lost."""

    rng: random.Random
    host: End
    node: End
    now: float = 0.0
    air: list[tuple[End, str, bytes]] = field(default_factory=list)
    recorded: list[tuple[End, str, bytes]] = field(default_factory=list)
    heard: set[tuple[str, bytes]] = field(default_factory=set)
    number: int = 0

    def send(self, end: End, peer: str, address: int, body: bytes) -> None:
        other = self.node if end is self.host else self.host
        try:
            item = other, end.name, end.say(peer, address, body)
        except WireError:
            return  # no session yet
        self.recorded.append(item)
        if self.rng.random() < 0.8:
            self.air.insert(self.rng.randint(max(0, len(self.air) - 3), len(self.air)), item)

    def speak(self, end: End, address: int = NEIGHBOUR) -> None:
        self.number += 1
        peer = "theo" if end is self.host else "host"
        self.send(end, peer, address, b"#%d" % self.number)

    def deliver(self) -> None:
        end, name, frame = self.air.pop(0)
        body = end.hear(name, frame)
        if isinstance(body, bytes) and body.startswith(b"#"):
            assert (end.name, body) not in self.heard, "a body was delivered twice"
            self.heard.add((end.name, body))

    def settle(self) -> None:
        for end in (self.host, self.node):
            for due in end.sealing.due(self.now):
                self.send(end, *due)
        while self.air and self.rng.random() < 0.7:
            self.deliver()

    def misfortune(self) -> None:
        event, end = self.rng.random(), self.rng.choice((self.host, self.node))
        if event < 0.6:
            self.speak(end)
        elif event < 0.7:
            self.speak(self.host, ALL)
        elif event < 0.8 and self.recorded:
            self.air.append(self.rng.choice(self.recorded))
        elif event < 0.82:
            end.boot()
        elif event < 0.83:
            end.disk.clear()
            end.counter = self.rng.choice([0, end.counter])
            end.boot()


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.nightly if n >= 15 else ()) for n in range(60)]
)
def test_whatever_happens_no_nonce_and_no_body_comes_twice_and_all_heal(
    recorder: type[Recorder], seed: int
) -> None:
    rng = random.Random(seed)
    host, node = make_fleet("theo", suite=2)
    storm = Storm(rng, host, node)
    for _ in range(400):
        storm.now += rng.random()
        storm.misfortune()
        storm.settle()
    for _ in range(40):  # now they only speak, on an air that still loses a fifth
        storm.now += 1000.0
        for end, address in ((host, NEIGHBOUR), (node, NEIGHBOUR), (host, ALL)):
            storm.speak(end, address)
        storm.settle()
        while storm.air:
            storm.deliver()
    assert host.hear("theo", node.say("host", NEIGHBOUR, b"up")) == b"up"
    assert node.hear("host", host.say("theo", NEIGHBOUR, b"down")) == b"down"
    assert node.hear("host", host.say("all", ALL, b"all")) == b"all"
