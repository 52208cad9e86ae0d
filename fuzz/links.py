"""The reliable link and the keyed seal, whatever a neighbour sends."""

from collections.abc import Iterator

import numpy as np

from fuzz.security import fleet, identity_of
from fuzz.target import Target, joined, number, same, settle, steps
from ternmesh.errors import WireError
from ternmesh.link.erasure_code import Layout, encode_symbols
from ternmesh.link.events import ARRIVED_MAX, Delivered, LinkState, ObjectArrived
from ternmesh.link.link import Link
from ternmesh.link.messages import (
    Message,
    Offer,
    Question,
    Status,
    Symbol,
    object_name,
    write_message,
)
from ternmesh.link.settings import LinkSettings
from ternmesh.security.identity import Identity, Role
from ternmesh.security.keyed_sealing import NEIGHBOUR, KeyedSealing
from ternmesh.security.membership import MemberList
from ternmesh.security.session import ANSWER, SealingState, write_keys
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED

_SETTINGS = LinkSettings(64, object_max=4096, incoming_bytes_max=8192, outgoing_bytes_max=8192)
_OWN = bytes(100)  # the object that the end sends
_SIZE, _SYMBOL = 60, 20  # bytes of the object that it receives, and of a symbol
_THEIRS = bytes(range(_SIZE))
_UP, _SUITE = 3, 1
_HELLO = b"\x01hello"


def _bodies() -> list[bytes]:
    messages: list[Message] = [
        Offer(3, 1, b"name", _SIZE, _SYMBOL),
        Symbol(3, 0, bytes(_SYMBOL), is_last=False),
        Symbol(3, 1, bytes(_SYMBOL), is_last=True),
        Status(b"name", (1, 0, 0, 2)),
        Question(3),
    ]
    return [write_message(message) for message in messages]


def _check_link(data: bytes) -> None:
    """Two neighbours without keys; no object arrives or is delivered twice."""
    link = Link(_SETTINGS, LinkState(), np.random.default_rng(0))
    done: list[object] = []
    link.start(0.0)
    link.send("ada", _OWN)
    for step in steps(data):
        choice = step.choice
        address = BROADCAST if choice & 4 else UNASSIGNED if choice & 2 else NEIGHBOUR
        frame = step.frame(address, is_raw=bool(choice & 8))
        link.receive_frame(("ada", "bob")[choice & 1], frame, step.now)
        for event in settle(link, step.now):
            if isinstance(event, ObjectArrived):
                done.append((event.peer, event.name))
            elif isinstance(event, Delivered):
                done.append(event.number)
        if len(done) < ARRIVED_MAX:
            same(len(set(done)), len(done), "the objects, each once")
        link.frames_to_send(step.now, 8)


def _to_link() -> Iterator[bytes]:
    yield joined(b"\x10" + body for body in _bodies())
    name, own = object_name(1, _THEIRS), object_name(0, _OWN)
    offer = Offer(3, 1, name, _SIZE, _SYMBOL)
    contents = encode_symbols(Layout(_SIZE, _SYMBOL), name, _THEIRS, range(4))
    symbols = [Symbol(3, i, content, is_last=i == 2) for i, content in enumerate(contents)]
    early: list[Message] = [symbols[3], Question(0), symbols[1], offer, *symbols[:3]]
    in_order: list[Message] = [offer, *symbols[:3], offer, Status(own, ())]
    for messages in (in_order, early):
        yield joined(b"\x10" + write_message(message) for message in messages)


class _End:
    """One end of a keyed link."""

    def __init__(self, own: Identity, hub: str | None) -> None:
        entropy = own.public.exchange
        self.sealing = KeyedSealing(
            own, MemberList(fleet()), _SUITE, entropy, 0, SealingState(), hub=hub
        )
        self.counter = 0
        self.accepted: set[bytes] = set()

    def send(self, peer: str, address: int, body: bytes) -> bytes:
        """The frame of a body, under a new counter; empty where there is no session for it."""
        self.counter += 1
        try:
            return self.sealing.seal(peer, address, self.counter - 1, body)
        except WireError:
            return b""

    def receive(self, peer: str, frame: bytes) -> bytes:
        """The body of a frame, empty where it is refused; AssertionError for one taken twice."""
        try:
            _, body = self.sealing.open(peer, frame)
        except WireError:
            return b""
        self.sealing.changes()
        same(frame in self.accepted, False, "whether a frame was accepted before")
        self.accepted.add(frame)
        return body


def _check_keyed(data: bytes) -> None:
    """Strangers, damage and repeats between a host and a member; then both still understand."""
    host, node = _End(identity_of("base", Role.HOST), None), _End(identity_of("ada"), "host")
    sent: list[bytes] = []
    for step in steps(data):
        is_down, said = bool(step.choice & 8), step.body or b"\0"
        sender, receiver = (host, node) if is_down else (node, host)
        name, to = ("host", "ada") if is_down else ("ada", "host")
        match step.choice & 7:
            case 0:  # a stranger
                receiver.receive(name, said)
            case 1 | 2:  # a member's own body
                address = UNASSIGNED if step.choice & 2 else _UP | (DOWN if is_down else 0)
                sent.append(sender.send(to, address, said))
                receiver.receive(name, sent[-1])
            case 3:
                sent.append(host.send("all", BROADCAST, said))
                node.receive("host", sent[-1])
            case 4 if sent:  # the same frame again
                receiver.receive(name, sent[number(said, 0, 1) % len(sent)])
            case 5:
                for peer, address, body in sender.sealing.due(step.now):
                    receiver.receive(name, sender.send(peer, address, body))
            case 6:  # damage on the way
                damaged = bytearray(sender.send(to, UNASSIGNED, said))
                damaged[number(said, 0, 1) % len(damaged)] ^= number(said, 1, 1)
                receiver.receive(name, bytes(damaged))
            case 7:
                host.sealing.rekey()
    _meet(host, node)


def _meet(host: _End, node: _End) -> None:
    """Both ends agree on keys, whatever was sent before."""
    for late in range(1, 8):
        if host.receive("ada", node.send("host", UNASSIGNED, _HELLO)) == _HELLO:
            break
        for end, other in ((host, node), (node, host)):
            name = "host" if end is host else "ada"
            for peer, address, body in end.sealing.due(late * 1e9):
                other.receive(name, end.send(peer, address, body))
    answer = host.send("ada", UNASSIGNED, b"\x01welcome")
    same(node.receive("host", answer), b"\x01welcome", "a welcome")
    same(host.receive("ada", node.send("host", _UP, b"packet")), b"packet", "a packet")


def _to_keyed() -> Iterator[bytes]:
    hello = b"\x02" + _HELLO
    joins = [hello, b"\x0d", b"\x05", hello, b"\x0a\x01welcome"]
    keys = write_keys(2, bytes(range(16)), 7)
    yield joined([*joins[:4], b"\x0a" + keys, b"\x03all", b"\x0a" + ANSWER, b"\x05", b"\x0d"])
    again = [b"\x04\x00", b"\x0c\x01", b"\x04\x02", b"\x0c\x03", b"\x0e\x08\x01", b"\x06\x28\x01"]
    yield joined([*joins, b"\x0d", b"\x01one", b"\x09two", b"\x03all", *again, b"\x07", b"\x03a"])


TARGETS = (Target("link", _to_link, _check_link), Target("keyed", _to_keyed, _check_keyed))
