"""What keys sign, and texts of keys: what is fuzzed is behind the check at a line's end."""

import base64
from functools import cache

from bench.fuzz_targets.target import Target, same
from bench.fuzz_targets.trust import someone
from ternmesh.errors import TrustError, WireError
from ternmesh.trust import identity, neighbours, release_signatures, roster, rotation, signing
from ternmesh.trust.identity import Role
from ternmesh.trust.signers import quantum_key
from ternmesh.trust.statement import statement
from ternmesh.wire.reference import certify, split_certificate


def member() -> identity.Identity:
    """The only member of `fleet`."""
    return someone("ada", Role.NODE)


@cache
def fleet() -> roster.RosterState:
    """A host and one member."""
    known = roster.Roster(roster.found_fleet("attic", someone("base", Role.HOST).public))
    known.enrol(member().public)
    return known.state


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


@cache
def _quantum_signed() -> bytes:
    key = quantum_key(someone("base", Role.HOST))
    return signing.sign_quantum(key, 0, _place(), b"content")


def _check_quantum(data: bytes) -> None:
    """What stands beside a content where its host signs with ML-DSA-44 as well.

    There are many right signatures, but beside one that is right a bit may not be another.
    """
    host = someone("base", Role.HOST)
    signers = signing.Signers((host.public,), quantum=quantum_key(host).public)
    signing.verify_beside(signers, _place(), b"content", (data,))
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    try:
        signing.verify_beside(signers, _place(), b"content", (bytes(damaged),))
    except WireError:
        return
    raise AssertionError("a damaged signature counts")


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
    Target(
        "key_texts",
        _check_texts,
        lambda: [bytes(identity.QUANTUM_PUBLIC_SIZE), bytes(200)],
        (TrustError,),
        2048,
    ),
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
    Target("quantum_certificate", _check_quantum, lambda: [_quantum_signed()], length_max=4096),
    Target("release_signatures", _check_release_signatures, lambda: [_release()]),
    Target("private_identity", _check_private, lambda: [_private()]),
)
