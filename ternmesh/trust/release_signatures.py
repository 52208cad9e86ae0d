"""The signatures beside a release's manifest, in the form of a certificate. SPEC.md section 9.7."""

from ternmesh.errors import WireError
from ternmesh.trust.identity import Identity
from ternmesh.trust.notary import NO_RUN
from ternmesh.trust.signing import RELEASE, Place, Signers, sign_content, verify_certificate
from ternmesh.wire.reference import certify, split_certificate

NO_MODEL = bytes(32)  # the manifest names its model itself


def sign_release(own: Identity, fleet: bytes, content: bytes, signers: Signers) -> bytes:
    """The signature file of a manifest with one row, that of `own`. ValueError for no signer."""
    index = [key.verify for key in signers.keys].index(own.public.verify)
    place = Place(fleet, NO_RUN, NO_MODEL)
    return certify(b"", (sign_content(own, index, place, content, RELEASE),))


def verify_release(signers: Signers, fleet: bytes, content: bytes, signatures: bytes) -> None:
    """Check that enough signers stand for a manifest; WireError. Read nothing of it before."""
    signed, certificate = split_certificate(content + signatures)
    if signed != content:
        raise WireError("signature", "the signatures of this release are not whole, or missing")
    verify_certificate(signers, Place(fleet, NO_RUN, NO_MODEL), content, certificate, RELEASE)
