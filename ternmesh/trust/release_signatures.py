"""The signatures beside a release's manifest, in the form of a certificate. SPEC.md section 9.7.

Where the fleet has an ML-DSA-44 key, the object with its signature stands in front of that.
"""

from ternmesh.errors import WireError
from ternmesh.trust.identity import Identity
from ternmesh.trust.notary import NO_RUN
from ternmesh.trust.primitives import QuantumKey
from ternmesh.trust.signers import QUANTUM_SIZE
from ternmesh.trust.signing import (
    RELEASE,
    Place,
    Signers,
    sign_content,
    sign_quantum,
    verify_beside,
    verify_certificate,
)
from ternmesh.wire.reference import certify, split_certificate

NO_MODEL = bytes(32)  # the manifest names its model itself
CERTIFICATE_MAX = 1041  # bytes: 16 rows


def sign_release(
    own: Identity,
    fleet: bytes,
    content: bytes,
    signers: Signers,
    before: bytes = b"",
    quantum: QuantumKey | None = None,
) -> bytes:
    """The signature file of a manifest with the row of `own` beside those of `before`.

    Rows of `before` that are not right, of another manifest say, are dropped. ValueError where
    `own` is no signer.
    """
    index = [key.verify for key in signers.keys].index(own.public.verify)
    place = Place(fleet, NO_RUN, NO_MODEL)
    beside, rows = b"", {}
    if before:
        beside, certificate = _split(content, before)
        rows = {row[0]: row[1] for row in certificate if _holds(signers, place, content, row)}
    rows |= dict((sign_content(own, index, place, content, RELEASE),))
    if quantum is not None:
        beside = sign_quantum(quantum, 0, place, content, RELEASE)
    return beside + certify(b"", tuple(sorted(rows.items())))


def signatures_of(signers: Signers, fleet: bytes, content: bytes, signatures: bytes) -> int:
    """How many signers stand for a manifest."""
    place = Place(fleet, NO_RUN, NO_MODEL)
    rows = _split(content, signatures)[1]
    return sum(_holds(signers, place, content, row) for row in rows)


def verify_release(signers: Signers, fleet: bytes, content: bytes, signatures: bytes) -> None:
    """Check that enough signers stand for a manifest; WireError. Read nothing of it before."""
    beside, certificate = _split(content, signatures)
    place = Place(fleet, NO_RUN, NO_MODEL)
    verify_certificate(signers, place, content, certificate, RELEASE)
    verify_beside(signers, place, content, (beside,), RELEASE)


def _split(content: bytes, signatures: bytes) -> tuple[bytes, tuple[tuple[int, bytes], ...]]:
    at = QUANTUM_SIZE if len(signatures) > CERTIFICATE_MAX else 0
    signed, certificate = split_certificate(content + signatures[at:])
    if signed != content:
        raise WireError("signature", "the signatures of this release are not whole, or missing")
    return signatures[:at], certificate


def _holds(signers: Signers, place: Place, content: bytes, row: tuple[int, bytes]) -> bool:
    try:
        verify_certificate(Signers(signers.keys), place, content, (row,), RELEASE)
    except WireError:
        return False
    return True
