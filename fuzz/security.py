"""Identities, enrolment, rosters, signatures and claims of sessions.

Where a proof stands in front of the content, the target makes a valid one: no fuzzer guesses a
signature, and the reader behind it is what is tested.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any

from edge.enrolment import _read
from fuzz.target import STEPS_MAX, Target, joined, parts, same, steps
from host.enrolment import EnrolmentService
from ternmesh.errors import SecurityError, WireError
from ternmesh.security import enrolment, identity, membership, session
from ternmesh.security.enrolment import write_rotation_request
from ternmesh.security.host_keys import read_host_keys, write_host_keys, write_host_rotation
from ternmesh.security.identity import PublicIdentity, Role
from ternmesh.security.key_derivation import FLEET_SIZE
from ternmesh.security.membership import write_fleet
from ternmesh.security.notices import RotationReader, rotation_frames
from ternmesh.security.primitives import statement
from ternmesh.security.signatures import (
    Signers,
    SigningContext,
    quantum_key,
    sign_content,
    sign_quantum,
    sign_release,
    signatures_of,
    verify_beside,
    verify_certificate,
    verify_release,
)
from ternmesh.wire import control
from ternmesh.wire.frame import UNASSIGNED, Header, seal_open
from ternmesh.wire.global_update import certify, split_certificate

_FLEET = b"fleet of 16 byte"
_ENTROPY = bytes((7 * index) % 256 for index in range(identity.ENTROPY_SIZE))
_CODE_TEXT = enrolment.make_code(bytes(range(enrolment.ENTROPY_SIZE)))
_CODE = enrolment.read_code(_CODE_TEXT)
_PEERS = ("ada", "theodor", "base", "someone")
Call = Callable[[bytes], None]


@cache
def identity_of(name: str, role: Role = Role.NODE) -> identity.Identity:
    """An identity that is the same in every process."""
    return identity.make_identity(name, role, bytes(value ^ len(name) for value in _ENTROPY))


@cache
def fleet() -> membership.MemberListState:
    """A host `base` and one member `ada`."""
    known = membership.MemberList(membership.found_fleet("attic", _host().public))
    known.enrol(_member().public)
    return known.state


def _host() -> identity.Identity:
    return identity_of("base", Role.HOST)


def _member() -> identity.Identity:
    return identity_of("ada")


def _other() -> identity.Identity:
    return identity_of("theodor")


def _address() -> SigningContext:
    return SigningContext(fleet().fleet, bytes(8), bytes(32))


def _signers() -> Signers:
    return Signers((_host().public,))


def _check_private(data: bytes) -> None:
    """The text of a private identity with a valid check sum at its end, and the input as it is."""
    for text in (identity.to_text(identity.PRIVATE_MARK, data), data.decode("utf-8", "replace")):
        try:
            own = identity.parse_private(text)
        except SecurityError:
            continue
        same(identity.parse_private(identity.private_text(own)), own, "a private identity")


def _private() -> bytes:
    name = _member().public.name.encode()
    return bytes((identity.VERSION, Role.NODE, len(name))) + name + _member().seeds


def _check_answer(data: bytes) -> None:
    """An answer without the host's proof is never accepted; one with the proof is read."""
    content, own = data[1:], _member().public
    for frame in (data, seal_open(Header(UNASSIGNED, 0), content or b"\0")):
        found = _read(frame, lambda body: enrolment.read_answer(body, own, _CODE))
        same(found, None, "an answer without a proof")
    proof = enrolment._proof(_CODE, "enrol answer", identity.write_identity(own), content)
    body = bytes((enrolment.ANSWER,)) + content + proof
    found = enrolment.read_answer(body, own, _CODE)
    same(found.fleet + write_host_keys(found.hosts), content, "an answer")


def _answers() -> Iterator[bytes]:
    content = bytes(FLEET_SIZE) + identity.write_identity(_host().public)
    yield b"\0" + content
    yield b"\0" + control.write_control(control.Refusal(0, "code"))


def _check_desk(data: bytes) -> None:
    """Requests of members and strangers; some carry the proof that a lying member can make."""
    known = membership.MemberList(fleet())
    keyring: Any = SimpleNamespace(own=_host(), member_list=known, is_strange=lambda _peer: False)
    keyring.keep_member_list = keyring.keep_rotation = keyring.rekey = lambda: None
    endpoint: Any = SimpleNamespace(frames_to_send=lambda _now: [])
    endpoint.receive_frames = lambda _peer, _frames, _now: None
    desk: EnrolmentService[object] = EnrolmentService(endpoint, keyring, Counter())
    desk._codes.issue(_CODE_TEXT, Role.NODE, 1000.0, 0.0)
    for step in steps(data, unit_s=10.0):
        peer, frame = _PEERS[step.choice >> 2 & 3], _desk_frame(step.choice & 3, step.body)
        desk.receive_frames(peer, [frame], step.now)
        for to, answers in desk.frames_to_send(step.now):
            same((to, len(answers)), (peer, 1), "the answers of the desk")
    same(len(known.state.members) <= 2, True, "whether one code enrolled one member")


def _desk_frame(kind: int, body: bytes) -> bytes:
    if kind == 1:
        proof = enrolment._proof(_CODE, "enrol request", body)
        body = bytes((enrolment.REQUEST,)) + _CODE.label + body + proof
    elif kind == 2:
        message = statement("rotation", fleet().fleet, body)
        signatures = (end.sign(message) for end in (_member(), _other()))
        body = write_rotation_request(body + b"".join(signatures))
    elif kind == 3:
        return body
    return seal_open(Header(UNASSIGNED, 0), body or b"\0")


def _to_desk() -> Iterator[bytes]:
    rotates = b"\x02" + _new_keys()
    enrols = b"\x05" + identity.write_identity(_other().public)
    yield joined([enrols, b"\x45" + enrols[1:], b"\x00hello", b"\x03hello"])
    yield joined([rotates, b"\x42" + rotates[1:], b"\x46" + rotates[1:], enrols])


def _new_keys() -> bytes:
    new = PublicIdentity("ada", Role.NODE, _other().public.verify, _other().public.exchange)
    return _member().public.fingerprint + identity.write_identity(new)


def _check_fleet_list(data: bytes) -> None:
    known = membership.MemberList(fleet())
    known.learn(data + _host().sign(statement("members", known.fleet, data)))
    again = membership.MemberList(fleet())
    again.learn(write_fleet(_host(), known.state))
    same(again.state, known.state, "a list of a fleet")


def _fleet_list() -> bytes:
    return write_fleet(_host(), fleet())[:-64]


def _check_host_keys(data: bytes) -> None:
    """Keys of a host have one form; a rotation behind the key is never believed."""
    same(write_host_keys(read_host_keys(data)), data, "keys of a host")


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
    old, new = _host(), identity.make_identity(_host().public.name, Role.HOST, _ENTROPY[::-1])
    return write_host_rotation(old.public, new, fleet().fleet, Signers((old.public,)), (old,))


def _host_keys() -> bytes:
    hosts = membership.MemberList(fleet()).hosts
    return write_host_keys(hosts.follow(_rotation(), fleet().fleet, Signers((hosts.present,))))


def _only(signed: Callable[[], list[bytes]], verify: Callable[[bytes], object]) -> Call:
    """A call that verifies its input, and checks that it is the bytes that were signed."""

    def call(data: bytes) -> None:
        verify(data)
        same([data], signed(), "the only bytes that the host has signed")

    return call


@cache
def _certified() -> list[bytes]:
    return [certify(b"content", (sign_content(_host(), 0, _address(), b"content"),))]


def _verify_certificate(data: bytes) -> None:
    verify_certificate(_signers(), _address(), *split_certificate(data))


@cache
def _quantum_signed() -> list[bytes]:
    return [sign_quantum(quantum_key(_host()), _address(), b"content")]


def _verify_quantum(data: bytes) -> None:
    """The row of a certificate where the host signs with ML-DSA-44 as well."""
    signers = Signers((_host().public,), quantum=quantum_key(_host()).public)
    verify_beside(signers, _address(), b"content", (data,))


@cache
def _signed_release() -> list[bytes]:
    return [sign_release(_host(), fleet().fleet, b"content", _signers())]


def _verify_release(data: bytes) -> None:
    signatures_of(_signers(), fleet().fleet, b"content", data)
    verify_release(_signers(), fleet().fleet, b"content", data)


def _check_group_key(data: bytes) -> None:
    again = session.write_keys(*session.read_keys(data))
    same(again[1:], data[1:], "a group key")  # the reader is given the kind's byte with it


TARGETS = (
    Target("private_identity", lambda: [_private()], _check_private),
    Target("enrol_answer", _answers, _check_answer, (WireError, SecurityError)),
    Target("desk", _to_desk, _check_desk),
    Target("fleet_list", lambda: [_fleet_list()], _check_fleet_list, (SecurityError,)),
    Target("host_keys", lambda: [_host_keys()], _check_host_keys, (SecurityError,)),
    Target("host_rotation", lambda: [joined(rotation_frames((_rotation(),)))], _check_rotation),
    Target("certificate", _certified, _only(_certified, _verify_certificate)),
    Target("quantum_certificate", _quantum_signed, _only(_quantum_signed, _verify_quantum)),
    Target("release_signatures", _signed_release, _only(_signed_release, _verify_release)),
    Target("broadcast_key", lambda: [session.write_keys(3, bytes(16), 9)], _check_group_key),
)
