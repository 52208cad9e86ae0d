"""Rotation over the link: a member says that it has new keys, and the host that they count now.

SPEC.md section 9.6. Both keys sign the request, so it needs no seal; the host's word is signed too.
A member keeps both of its keys until it has that word.
"""

from ternmesh.errors import WireError
from ternmesh.trust.identity import FINGERPRINT_SIZE, Identity, PublicIdentity
from ternmesh.trust.primitives import SIGNATURE_SIZE, verify
from ternmesh.trust.roster import Roster
from ternmesh.trust.statement import statement

REQUEST, ANSWER = 0x0F, 0x10


def write_request(rotation: bytes) -> bytes:
    """The body that carries a rotation (`ternmesh.trust.roster.write_rotation`): at most 244 B."""
    return bytes((REQUEST,)) + rotation


def accept(body: bytes, roster: Roster, host: Identity, peer: str) -> tuple[PublicIdentity, bytes]:
    """The member's new identity and the body that answers it; WireError, and nothing has changed.

    Put the roster on disk before the answer is sent. A rotation that is in force is answered again.
    """
    rotation = body[1:]
    new = roster.rotated(rotation)
    key = rotation[:FINGERPRINT_SIZE] if new is None else new.fingerprint
    if roster.find(peer).fingerprint != key:
        raise WireError("unknown key", f"a rotation of a key that {peer} does not have")
    new = new or roster.rotate(rotation)
    return new, bytes((ANSWER,)) + host.sign(_answer(roster.fleet, rotation))


def check_answer(body: bytes, host: PublicIdentity, fleet: bytes, rotation: bytes) -> None:
    """Check that the host says that a rotation is in force; WireError."""
    if len(body) != 1 + SIGNATURE_SIZE or body[0] != ANSWER:
        raise WireError("length", "an answer to a rotation has another size")
    verify(host.verify, body[1:], _answer(fleet, rotation))


def _answer(fleet: bytes, rotation: bytes) -> bytes:
    return statement("rotated", fleet, rotation[: -2 * SIGNATURE_SIZE])
