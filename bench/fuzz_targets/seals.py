"""Keyed seals and what keys sign: frames of strangers, of members that lie, and repeated ones.

Nobody guesses a tag or a signature, so liars here have keys: what is fuzzed is behind the proof.
"""

import base64
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import numpy as np

from bench.fuzz_targets import wire
from bench.fuzz_targets.target import Target, joined, number, parts, same, settle
from bench.fuzz_targets.trust import _someone as someone
from ternmesh.errors import TrustError, WireError
from ternmesh.plan import to_numbers
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.member import Member
from ternmesh.swarm.member import new_state as member_state
from ternmesh.swarm.records import Settings, new_state
from ternmesh.trust import identity, neighbours, release_signatures, roster, rotation, signing
from ternmesh.trust.identity import Role
from ternmesh.trust.keyed import KeyedSealing
from ternmesh.trust.keys import nonce, sync_key
from ternmesh.trust.notary import Trust, make_trust
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
from ternmesh.trust.statement import statement
from ternmesh.wire import control
from ternmesh.wire.reference import certify, split_certificate
from ternmesh.wire.seal import BROADCAST, DOWN, ENROL

_UP = 3
_SUITE = 1
_STEPS_MAX = 24
_RUN = b"runrunru"
_HELLO = b"\x01hello"


class _End:
    """One end and its disk, on which states are the bytes of `write_peer` and `write_group`."""

    def __init__(self, own: identity.Identity, state: roster.RosterState, hub: str | None) -> None:
        self.own, self.roster, self.hub = own, roster.Roster(state), hub
        self.counter = self.lives = 0
        self.peers: dict[str, bytes] = {}
        self.group = b""
        self.taken: set[bytes] = set()
        self.boot()

    def boot(self) -> None:
        """Start a process from the disk."""
        self.lives += 1
        instance = self.own.public.fingerprint[:7] + bytes((self.lives & 0xFF,))
        peers = tuple(read_peer(name, data) for name, data in self.peers.items())
        state = SealingState(peers, read_group(self.group) if self.group else None)
        self.sealing = KeyedSealing(
            self.own, self.roster, _SUITE, instance, self.counter, state, hub=self.hub
        )

    def save(self) -> None:
        """Put onto the disk what has changed."""
        for change in self.sealing.changes():
            if isinstance(change, PeerState):
                self.peers[change.name] = write_peer(change)
            elif isinstance(change, GroupState):
                self.group = write_group(change)

    def say(self, peer: str, context: int, body: bytes) -> bytes:
        frame = self.sealing.seal(peer, context, self.counter, body)
        self.counter += 1
        self.save()
        return frame

    def hear(self, peer: str, frame: bytes) -> bytes:
        """The body of a frame, empty where it is refused; AssertionError for one taken twice."""
        try:
            _, body = self.sealing.open(peer, frame)
        except WireError:
            return b""
        self.save()
        if frame in self.taken:
            raise AssertionError("a frame was taken twice")
        self.taken.add(frame)
        return body


def member() -> identity.Identity:
    """The only member of `fleet`."""
    return someone("ada", Role.NODE)


@cache
def fleet() -> roster.RosterState:
    """A host and one member."""
    known = roster.Roster(roster.found_fleet("attic", someone("base", Role.HOST).public))
    known.enrol(member().public)
    return known.state


def _lie(node: _End, said: bytes, *, own_instance: bool) -> bytes:
    """A frame with context 0 whose claims and body are `said`, under the right key."""
    pair = node.sealing._pair("host")
    instance = pair._instance if own_instance else said[:INSTANCE_SIZE].ljust(INSTANCE_SIZE, b"\0")
    cipher = Ccm(sync_key(pair._secret, _SUITE, pair._own, instance))
    node.counter += 1
    low = (node.counter & 0xFFFFFF).to_bytes(3, "little")
    head = node.sealing._head(pair.epoch, ENROL, low) + instance + bytes(HIGH_SIZE)
    return head + cipher.seal(nonce(ENROL, node.counter), head, said)


def _step(host: _End, node: _End, choice: int, said: bytes, now: float) -> bool:
    """One thing that happens; whether a member lied in it."""
    ends = (host, node) if choice & 8 else (node, host)
    sender, receiver = ends
    names = ("host", "ada") if choice & 8 else ("ada", "host")
    match choice & 7:
        case 0:  # a stranger
            receiver.hear(names[0], said)
        case 1:  # a member's own words
            context = ENROL if choice & 16 else _UP | (DOWN if choice & 8 else 0)
            receiver.hear(names[0], sender.say(names[1], context, said or b"\0"))
        case 2:
            host.hear("ada", _lie(node, said, own_instance=bool(choice & 16)))
            return True
        case 3:  # a broadcast, twice
            frame = host.say("all", BROADCAST, said or b"\0")
            for _ in range(2):
                node.hear("host", frame)
        case 4:
            receiver.save()
            receiver.boot()
        case 5:
            for peer, context, body in sender.sealing.due(now):
                receiver.hear(names[0], sender.say(peer, context, body))
        case 6:  # damage on the way
            sent = bytearray(sender.say(names[1], _UP | (DOWN if choice & 8 else 0), b"body"))
            sent[number(said, 0, 1) % len(sent)] ^= number(said, 1, 1)
            receiver.hear(names[0], bytes(sent))
        case 7:
            host.sealing.rekey()
    return False


def _check_keyed(data: bytes) -> None:
    host = _End(someone("base", Role.HOST), fleet(), None)
    node = _End(someone("ada", Role.NODE), fleet(), "host")
    now, lied = 0.0, False
    for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        now += 1.0
        lied |= _step(host, node, number(item, 0, 1), item[1:], now)
    if not lied:
        _meet(host, node)


def _meet(host: _End, node: _End) -> None:
    """Honest ends find each other, whatever strangers and power cuts have done before."""
    for _ in range(4):
        if host.hear("ada", node.say("host", ENROL, _HELLO)) == _HELLO:
            break
        node.hear("host", host.say("ada", ENROL, b"\x01refusal"))
    same(node.hear("host", host.say("ada", ENROL, b"\x01welcome")), b"\x01welcome", "a welcome")
    same(host.hear("ada", node.say("host", _UP, b"packet")), b"packet", "a packet")


def _conversations() -> Iterator[bytes]:
    claims = write_claims(Claims(b"line", 7, bytes(8), 3, 9)) + _HELLO
    keys = write_keys(2, bytes(range(16)), 7)
    yield joined([b"\x11" + _HELLO, b"\x19\x01refusal", b"\x11" + _HELLO, b"\x19" + keys, b"\x03x"])
    yield joined([b"\x12" + claims, b"\x02" + claims, b"\x19" + ANSWER, b"\x0d", b"\x05", b"\x04"])
    yield joined(
        [b"\x11" + _HELLO, b"\x0c", b"\x0d", b"\x06\x08\x01", b"\x07", b"\x03all", b"\x00a"]
    )


def _run_keyed(data: bytes, *, host_lies: bool) -> None:
    """A host and a member, one of which has the right keys and says whatever it likes."""
    own = _End(someone("base", Role.HOST), fleet(), None)
    node = _End(member(), fleet(), "host")
    liar = own if host_lies else node
    if host_lies:
        _meet(own, node)
    honest = node if host_lies else own
    state = SealingState(tuple(read_peer(n, d) for n, d in honest.peers.items()), None)
    trust = make_trust(honest.own, honest.roster, wire.MODEL, b"instance", honest.counter, state)
    end = _member(trust) if host_lies else _host(trust)
    end.start(0.0)
    liar.sealing.bind(_RUN)
    names, now = (("host", "ada") if host_lies else ("ada", "host")), 0.0
    for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = (ENROL, BROADCAST, 1, DOWN | 1)[choice & 3]
        with suppress(WireError):
            said = _signed_by(liar, body) if choice & 4 else body
            end.receive_frames(names[0], [liar.say(names[1], context, said)], now)
        settle(end, now)
        for _, frames in end.frames_to_send(now):
            for frame in frames:
                liar.hear(names[1], frame)


def _signed_by(liar: _End, body: bytes) -> bytes:
    place = signing.Place(fleet().fleet, _RUN, wire.MODEL)
    return signing.sign_body(liar.own, place, member().public.fingerprint, body)


def _host(trust: Trust) -> Coordinator:
    settings = Settings(min_peers=1, deadline_s=5.0, nodes_max=2, chain_max=2)
    state = new_state(wire.DIMENSION)
    return Coordinator(wire.PLAN, settings, wire.MODEL, _RUN, state, trust)


def _member(trust: Trust) -> Member:
    rng, state = np.random.default_rng(0), member_state(wire.DIMENSION)
    return Member("ada", wire.MODEL, 10, b"instance", state, rng, trust=trust)


def _check_keyed_host(data: bytes) -> None:
    _run_keyed(data, host_lies=False)


def _check_keyed_node(data: bytes) -> None:
    _run_keyed(data, host_lies=True)


def _said() -> Iterator[bytes]:
    hello = control.Hello("ada", b"instance", wire.MODEL[:8], bytes(8), 0, bytes(16), 10)
    said = [b"\x00" + control.write_control(hello)] * 2
    yield joined(said + [b"\x02" + body for body in (*wire.manifests(), *wire.shares(1))])
    welcome = control.Welcome(b"instance", 1, _RUN, 0, control.OPEN, 50, to_numbers(wire.PLAN))
    greeted = [b"\x04" + control.write_control(welcome), b"\x00" + control.write_control(welcome)]
    yield joined(greeted + [b"\x05" + body for body in wire.controls()])
    yield joined(greeted + [b"\x01" + body for body in wire.objects()])


def _check_texts(data: bytes) -> None:
    """Lines that carry a rotation or an ML-DSA-44 key, with the right check at their end."""
    same(identity.parse_rotation(identity.rotation_text(data)), data, "a rotation's line")
    same(identity.parse_quantum(identity.quantum_text(data)), data, "a key's line")


def _check_fleet_list(data: bytes) -> None:
    known = roster.Roster(fleet())
    signature = someone("base", Role.HOST).sign(statement("members", known.fleet, data))
    text = neighbours.MARK + base64.b64encode(data + signature).decode()
    state = neighbours.read_fleet(text, known)
    again = neighbours.write_fleet(someone("base", Role.HOST), state)
    same(neighbours.read_fleet(again, known), state, "a list of a fleet")


def _check_fleet_text(data: bytes) -> None:
    neighbours.read_fleet(data.decode("utf-8", "surrogateescape"), roster.Roster(fleet()))


def _fleet_list() -> bytes:
    text = neighbours.write_fleet(someone("base", Role.HOST), fleet())
    return base64.b64decode(text.removeprefix(neighbours.MARK))[:-64]


def _check_rotation_request(data: bytes) -> None:
    """A member's new keys, whatever they are, signed by the old ones and by those of another."""
    known, host = roster.Roster(fleet()), someone("base", Role.HOST)
    ada, other = someone("ada", Role.NODE), someone("theodor", Role.NODE)
    before = known.state
    message = statement("rotation", known.fleet, data)
    body = rotation.write_request(data + ada.sign(message) + other.sign(message))
    try:
        new, answer = rotation.accept(body, known, host, "ada")
    except WireError:
        same(known.state, before, "a roster after a refusal")
        raise
    same(known.find("ada"), new, "a member after its rotation")
    rotation.check_answer(answer, host.public, known.fleet, body[1:])


def _new_keys() -> bytes:
    name, other = someone("ada", Role.NODE).public, someone("theodor", Role.NODE).public
    new = identity.PublicIdentity(name.name, name.role, other.verify, other.exchange)
    return name.fingerprint + identity.write_identity(new)


def _place() -> signing.Place:
    return signing.Place(fleet().fleet, bytes(8), bytes(32))


@cache
def _signed() -> bytes:
    return signing.sign_body(someone("base", Role.HOST), _place(), b"to", b"content")


@cache
def _certified() -> bytes:
    row = signing.sign_content(someone("base", Role.HOST), 0, _place(), b"content")
    return certify(b"content", (row,))


@cache
def _release() -> bytes:
    host = someone("base", Role.HOST)
    return release_signatures.sign_release(host, fleet().fleet, b"content", _signers())


def _signers() -> signing.Signers:
    return signing.Signers((someone("base", Role.HOST).public,))


def _check_signed(data: bytes) -> None:
    signing.open_signed(someone("base", Role.HOST).public, _place(), b"to", data)
    same(data, _signed(), "the only thing that the host has signed")


def _check_certificate(data: bytes) -> None:
    content, certificate = split_certificate(data)
    signing.verify_certificate(_signers(), _place(), content, certificate)
    same(data, _certified(), "the only thing that the host has signed")


def _check_release_signatures(data: bytes) -> None:
    release_signatures.signatures_of(_signers(), fleet().fleet, b"content", data)
    release_signatures.verify_release(_signers(), fleet().fleet, b"content", data)
    same(data, _release(), "the only thing that the host has signed")


def _check_private(data: bytes) -> None:
    """The text of a private identity with the right check at its end, and as it comes."""
    for text in (identity._to_text(identity.PRIVATE_MARK, data), data.decode("utf-8", "replace")):
        try:
            own = identity.parse_private(text)
        except TrustError:
            continue
        same(identity.parse_private(identity.private_text(own)), own, "a private identity")


def _private() -> bytes:
    own = someone("ada", Role.NODE)
    name = own.public.name.encode()
    return bytes((identity.VERSION, own.public.role, len(name))) + name + own.seeds


TARGETS = (
    Target("keyed_host", _check_keyed_host, _said, memory_max=2 << 20),
    Target("keyed_node", _check_keyed_node, _said, memory_max=2 << 20),
    Target(
        "key_texts",
        _check_texts,
        lambda: [bytes(identity.QUANTUM_PUBLIC_SIZE), bytes(200)],
        (TrustError,),
        2048,
    ),
    Target("keyed", _check_keyed, _conversations),
    Target("fleet_list", _check_fleet_list, lambda: [_fleet_list()], (TrustError,)),
    Target(
        "fleet_text",
        _check_fleet_text,
        lambda: [neighbours.write_fleet(someone("base", Role.HOST), fleet()).encode()],
        (TrustError,),
    ),
    Target("rotation_request", _check_rotation_request, lambda: [_new_keys()]),
    Target("signed_body", _check_signed, lambda: [_signed()]),
    Target("certificate", _check_certificate, lambda: [_certified()]),
    Target("release_signatures", _check_release_signatures, lambda: [_release()]),
    Target("private_identity", _check_private, lambda: [_private()]),
)
