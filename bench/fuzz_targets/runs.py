"""A host and a member with keys, one of which says whatever it likes, and signs it."""

from collections.abc import Iterator

import numpy as np

from bench.fuzz_targets import machines, wire
from bench.fuzz_targets.keyed import End, meet
from bench.fuzz_targets.machines import HostRun, NodeRun
from bench.fuzz_targets.seals import fleet, member
from bench.fuzz_targets.target import Target, joined, number, parts, same
from bench.fuzz_targets.trust import someone
from ternmesh.errors import WireError
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.member import Member
from ternmesh.swarm.member import new_state as member_state
from ternmesh.swarm.records import Settings, new_state
from ternmesh.trust import signing
from ternmesh.trust.identity import Role
from ternmesh.trust.notary import NO_RUN, Trust, make_trust
from ternmesh.trust.session import SealingState, read_peer
from ternmesh.wire import manifest, pieces, reference
from ternmesh.wire.seal import BROADCAST, DOWN, ENROL

_STEPS_MAX = 24
_SIGNED, _WHOLE, _FORGED = 4, 8, 0x80  # bits of a choice
_STRANGER = someone("theodor", Role.NODE)  # whose signature counts nowhere
_LENGTH_MAX = 2048


def _trust(honest: End) -> Trust:
    state = SealingState(tuple(read_peer(n, d) for n, d in honest.peers.items()), None)
    own, known = honest.own, honest.roster
    return make_trust(own, known, wire.MODEL, b"instance", honest.counter, state)


def _place(run: bytes) -> signing.Place:
    return signing.Place(fleet().fleet, run, wire.MODEL)


def _check_host(data: bytes) -> None:
    """The member lies: with bodies of its own, and with whole packets that it signs, or not."""
    own, node = End(someone("base", Role.HOST), fleet(), None), End(member(), fleet(), "host")
    settings = Settings(min_peers=1, deadline_s=5.0, nodes_max=2, chain_max=2)
    state = new_state(wire.DIMENSION)
    host = Coordinator(wire.PLAN, settings, wire.MODEL, machines.RUN, state, _trust(own))
    run, now = HostRun(host), 0.0
    node.sealing.bind(machines.RUN)
    for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4 & 7) * 0.5
        context = (ENROL, 1, BROADCAST, DOWN | 1)[choice & 3]
        before = host.version, host.delivered(1) == "whole"
        for said in _packet(choice, body) if choice & _WHOLE else [body]:
            _tell(run, node, "host", context, said, now)
        if choice & _WHOLE and choice & _FORGED:
            same((host.version, host.delivered(1) == "whole"), before, "a host after a forgery")
        _exchange(run, node, "host", now)


def _packet(choice: int, share: bytes) -> list[bytes]:
    """A whole packet of one share, whatever that is: signed by the member or by a stranger."""
    own, low = _STRANGER if choice & _FORGED else member(), number(share, 1, 2)
    digest = manifest.packet_digest([share])
    head = manifest.Manifest(low, wire.MODEL[:8], 10, digest, 1)
    whole = manifest.packet_hash([share])
    signed = signing.sign_packet(own, _place(machines.RUN), low, head, whole)
    bodies = [manifest.write_manifest(signed), share]
    return bodies[::-1] if choice & _SIGNED else bodies


def _check_node(data: bytes) -> None:
    """The host lies: with bodies, signed ones, and objects that it certifies, or somebody else."""
    own, node = End(someone("base", Role.HOST), fleet(), None), End(member(), fleet(), "host")
    meet(own, node)
    rng, state = np.random.default_rng(0), member_state(wire.DIMENSION)
    run = NodeRun(Member("ada", wire.MODEL, 10, b"instance", state, rng, trust=_trust(node)))
    own.sealing.bind(machines.RUN)
    now = 0.0
    _exchange(run, own, "ada", now)  # after which the member holds the broadcast key
    for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4 & 7) * 0.5
        context = (ENROL, BROADCAST, 1, DOWN | 1)[choice & 3]
        before = run.state()
        for said in _said(own, choice, context, body):
            _tell(run, own, "ada", context, said, now)
        if choice & _FORGED and choice & (_WHOLE | _SIGNED):
            same(run.state(), before, "a node after what its host has not signed")
        _exchange(run, own, "ada", now)


def _said(host: End, choice: int, context: int, body: bytes) -> list[bytes]:
    signer = _STRANGER if choice & _FORGED else host.own
    if choice & _WHOLE:
        content, place = _content(body), _place(machines.RUN)
        row = signing.sign_content(signer, 0, place, content)
        return pieces.cut(reference.certify(content, (row,)), wire.PLAN.frame_mtu)
    if choice & _SIGNED:
        is_for_all = context == BROADCAST
        to = host.sealing.broadcast_name if is_for_all else member().public.fingerprint
        return [signing.sign_body(signer, _place(NO_RUN if is_for_all else machines.RUN), to, body)]
    return [body]


def _content(body: bytes) -> bytes:
    """A reference as it comes; a snapshot with numbers behind its head, for which is no room."""
    end = 5 + number(body, 1, 4)
    if body[0] != reference.SNAPSHOT or end > len(body):
        return body
    return body[:end] + np.arange(wire.DIMENSION, dtype="<i4").tobytes()


def _tell(
    run: HostRun | NodeRun, liar: End, to: str, context: int, body: bytes, now: float
) -> None:
    try:
        frame = liar.say(to, context, body)
    except WireError:
        return  # no member speaks to all
    run.hear(frame, now)


def _exchange(run: HostRun | NodeRun, liar: End, to: str, now: float) -> None:
    """The honest end does what is due; the seals of the liar go on as they should."""
    for frame in run.settle(now):
        liar.hear(to, frame)
    for peer, context, body in liar.sealing.due(now):
        _tell(run, liar, peer, context, body, now)


def _to_host() -> Iterator[bytes]:
    greeted = [b"\x00" + machines.hello()] * 2
    head, share = machines.work(0).bodies
    yield joined([*greeted, b"\x09" + share, b"\x00" + machines.hello()])
    yield joined([*greeted, b"\x89" + share, b"\x8d" + share, b"\x01" + head, b"\x0d" + share])
    later = machines.work(1).bodies[1]
    yield joined([*greeted, b"\x09" + share, b"\x0d" + later, b"\x01" + share, b"\xf1" + head])
    yield joined([*greeted, *(b"\x02" + body for body in (*wire.manifests(), *wire.shares(1)))])


def _to_node() -> Iterator[bytes]:
    welcome = machines.welcome()
    greeted = [b"\x04" + welcome, b"\x00" + welcome]
    receipt = [b"\x87" + machines.receipt(), b"\x07" + machines.receipt()]
    step, whole = (
        machines.first_reference(machines.counted(), model=b""),
        machines.snapshot()[: -4 * wire.DIMENSION],
    )
    yield joined(greeted + [b"\x05" + body for body in wire.controls()])
    yield joined(greeted + [b"\x01" + body for body in wire.objects()])
    yield joined([*greeted, *receipt, b"\x89" + step, b"\x8b" + whole, b"\x09" + step])
    yield joined([*greeted, b"\x0b" + whole, *receipt, b"\x09" + whole, b"\x0b" + step])


TARGETS = (
    Target("keyed_host", _check_host, _to_host, length_max=_LENGTH_MAX, memory_max=2 << 20),
    Target("keyed_node", _check_node, _to_node, length_max=_LENGTH_MAX, memory_max=2 << 20),
)
