"""The fleet of the targets; enrolment and the rotation of a host's key at their receivers.

Where a proof stands in front of the content, the target makes a valid one: no fuzzer guesses a
signature, and the reader behind it is what is tested.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any

from fuzz.target import STEPS_MAX, Target, joined, parts, same, steps
from host.enrolment import EnrolmentService
from ternmesh.errors import WireError
from ternmesh.federated.channel import Channel
from ternmesh.federated.fleet_session import FleetSession, Handlers
from ternmesh.federated.registry import NodeRegistry
from ternmesh.federated.state import RegisteredNode
from ternmesh.security import enrolment, identity, membership
from ternmesh.security.authenticator import OPEN
from ternmesh.security.host_keys import write_host_rotation
from ternmesh.security.identity import Role
from ternmesh.security.notices import RotationReader, rotation_frames
from ternmesh.security.signatures import Signers
from ternmesh.wire.frame import UNASSIGNED, Header, seal_open

_ENTROPY = bytes((7 * index) % 256 for index in range(identity.ENTROPY_SIZE))
_CODE_TEXT = enrolment.make_code(bytes(range(enrolment.ENTROPY_SIZE)))
_CODE = enrolment.read_code(_CODE_TEXT)
_PEERS = ("ada", "theodor", "base", "someone")


@cache
def identity_of(name: str, role: Role = Role.NODE) -> identity.Identity:
    """An identity that is the same in every process."""
    return identity.make_identity(name, role, bytes(value ^ len(name) for value in _ENTROPY))


_HOST, _MEMBER, _OTHER = identity_of("base", Role.HOST), identity_of("ada"), identity_of("theodor")


@cache
def fleet() -> membership.MemberListState:
    """A host `base` and one member `ada`."""
    known = membership.MemberList(membership.found_fleet("attic", _HOST.public))
    known.enrol(_MEMBER.public)
    return known.state


def _check_desk(data: bytes) -> None:
    """Requests of members and strangers; some carry the proof that a lying member can make."""
    known = membership.MemberList(fleet())
    keyring: Any = SimpleNamespace(own=_HOST, member_list=known, is_strange=lambda _peer: False)
    keyring.keep_member_list = keyring.rekey = lambda: None
    channel = Channel[object](run=bytes(8), counter=0, security=OPEN)
    desk, handlers = EnrolmentService(keyring, channel), Handlers(of_node={}, of_peer={})
    desk.register(handlers)
    session = FleetSession(
        channel=channel,
        nodes=NodeRegistry([], new=RegisteredNode),
        model=bytes(8),
        plan=(),
        excuse=lambda _node, _now: None,
        answer_s=1.0,
    )
    desk._codes.issue(_CODE_TEXT, Role.NODE, 1000.0, 0.0)
    for step in steps(data, unit_s=10.0):
        peer, frame = _PEERS[step.choice >> 2 & 3], _desk_frame(step.choice & 3, step.body)
        session.receive_frames(peer, [frame], handlers, 0, step.now)
        for to, answers in channel.frames_to_send():
            same((to, len(answers)), (peer, 1), "the answers of the desk")
    same(len(known.state.members) <= 2, True, "whether one code enrolled one member")


def _desk_frame(kind: int, body: bytes) -> bytes:
    if kind == 1:
        proof = enrolment._proof(_CODE, "enrol request", body)
        body = bytes((enrolment.REQUEST,)) + _CODE.label + body + proof
    elif kind == 3:
        return body
    return seal_open(Header(UNASSIGNED, 0), body or b"\0")


def _to_desk() -> Iterator[bytes]:
    enrols = b"\x05" + identity.write_identity(_OTHER.public)
    yield joined([enrols, b"\x45" + enrols[1:], b"\x00hello", b"\x03hello"])


def _check_rotation(data: bytes) -> None:
    """Fragments never exceed their room, and no rotation is followed without its signatures."""
    reader, hosts = RotationReader(), membership.MemberList(fleet()).hosts
    alone = Signers((hosts.present,))
    for part in islice(parts(data), STEPS_MAX):

        def follow(rotation: bytes) -> bool:
            found = hosts.follow(rotation, fleet().fleet, alone)
            if rotation != _rotation():
                same(found, hosts, "a forged rotation")
            return False

        for frame in (part, *rotation_frames((hosts.present.fingerprint + part,))):
            with suppress(WireError):
                reader.take(frame, follow, 0.0)


@cache
def _rotation() -> bytes:
    old, new = _HOST, identity.make_identity(_HOST.public.name, Role.HOST, _ENTROPY[::-1])
    return write_host_rotation(old.public, new, fleet().fleet, Signers((old.public,)), (old,))


TARGETS = (
    Target("desk", _to_desk, _check_desk),
    Target("host_rotation", lambda: [joined(rotation_frames((_rotation(),)))], _check_rotation),
)
