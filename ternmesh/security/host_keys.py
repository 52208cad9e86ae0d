"""The keys of a host: the present one, the first one, and the rotations between. SPEC.md 9.5.

A host's rotation is certified like a release: by the host's own key, or, where the fleet has
signers, by as many of them as it takes. The fleet keeps its name, which is made of the first key.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.identity import (
    FINGERPRINT_SIZE,
    HOST_MARK,
    Identity,
    PublicIdentity,
    Role,
    from_text,
    identity_text,
    parse_identity,
    read_identity,
    to_text,
    write_identity,
)
from ternmesh.security.primitives import statement, verify
from ternmesh.security.signatures import (
    CERTIFICATE_MAX,
    NO_MODEL,
    NO_RUN,
    Signers,
    SigningContext,
    local_signers,
    sign_content,
    verify_certificate,
)
from ternmesh.wire.global_update import certify, split_certificate
from ternmesh.wire.update import SIGNATURE_SIZE

ROTATIONS_MAX = 12  # the last ones of a host, which a board that was away can follow
ROTATION_MAX = FINGERPRINT_SIZE + 99 + SIGNATURE_SIZE + CERTIFICATE_MAX  # bytes of one
_DOMAIN = "host rotation"


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The identities of a fleet's host. Enlist one more with `follow`."""

    present: PublicIdentity
    first: PublicIdentity  # the fleet's 16-byte name is made of it
    rotations: tuple[bytes, ...] = ()  # the last ones, oldest first

    @property
    def before(self) -> frozenset[bytes]:
        """The fingerprints of earlier keys, as far as they are known."""
        olds = {self.first.fingerprint, *(one[:FINGERPRINT_SIZE] for one in self.rotations)}
        return frozenset(olds - {self.present.fingerprint})

    def follow(self, rotation: bytes, fleet: bytes, signers: Signers) -> "HostKeys":
        """These keys after a rotation (`write_host_rotation`); the same if it is of another key.

        `signers` are those of the fleet, with any of the host's keys. WireError.
        """
        old = self.present
        if rotation[:FINGERPRINT_SIZE] != old.fingerprint:
            return self
        signed, certificate = split_certificate(rotation)
        content, proof = signed[:-SIGNATURE_SIZE], signed[-SIGNATURE_SIZE:]
        new = receive_identity(content[FINGERPRINT_SIZE:])
        if (new.name, new.role) != (old.name, old.role):
            raise WireError("enrolment", "a rotation must keep name and role")
        if new.fingerprint in {old.fingerprint, *self.before}:
            raise WireError("revoked", "a host cannot return to an earlier key")
        seated = signers.seated(old, {new.fingerprint, *self.before})
        context = SigningContext(fleet, NO_RUN, NO_MODEL)
        verify_certificate(seated, context, signed, certificate, _DOMAIN)
        verify(new.verify, proof, statement("rotation", fleet, content))
        return HostKeys(new, self.first, (*self.rotations, rotation)[-ROTATIONS_MAX:])


def write_host_rotation(
    old: PublicIdentity, new: Identity, fleet: bytes, signers: Signers, keys: Iterable[Identity]
) -> bytes:
    """The bytes by which a host changes to a new key, signed with enough of `keys`.

    SecurityError if they are too few.
    """
    content = old.fingerprint + write_identity(new.public)
    signed = content + new.sign(statement("rotation", fleet, content))
    context = SigningContext(fleet, NO_RUN, NO_MODEL)
    rows = [
        sign_content(key, index, context, signed, _DOMAIN)
        for index, key in local_signers(signers, keys)
    ]
    return certify(signed, tuple(rows))


def write_host_keys(keys: HostKeys) -> bytes:
    """The bytes of a host's keys: those of its identity alone, while it has the first one."""
    if keys.present == keys.first:
        return write_identity(keys.present)
    rotations = b"".join(len(one).to_bytes(2, "little") + one for one in keys.rotations)
    return write_identity(keys.present) + write_identity(keys.first) + rotations


def read_host_keys(data: bytes) -> HostKeys:
    """The keys in exactly these bytes, which nothing proves; SecurityError."""
    parts: list[PublicIdentity] = []
    rotations: list[bytes] = []
    left = data
    while left and len(parts) < 2:
        size = 3 + int.from_bytes(left[2:3], "big") + 64  # behind the length of its name
        parts.append(read_identity(left[:size]))
        left = left[size:]
    while left and len(rotations) <= ROTATIONS_MAX:
        size = 2 + int.from_bytes(left[:2], "little")
        rotations.append(left[2:size])
        left = left[size:]
    keys = HostKeys(parts[0], parts[-1], tuple(rotations)) if parts else None
    if keys is None or write_host_keys(keys) != data or len(rotations) > ROTATIONS_MAX:
        raise SecurityError("these keys of a host have a wrong length: copy them again")
    if any(part.role is not Role.HOST for part in parts):
        raise SecurityError(f"{parts[0].name} is not a host: take the line of a host")
    return keys


def host_text(keys: HostKeys) -> str:
    """The line by which a board trusts a host; without rotations, and short for a first key."""
    if keys.present == keys.first:
        return identity_text(keys.present)
    return to_text(HOST_MARK, write_host_keys(HostKeys(keys.present, keys.first)))


def parse_host(text: str) -> HostKeys:
    """The keys in a host's line, or in that of its identity; SecurityError."""
    if text.strip().startswith(HOST_MARK):
        return read_host_keys(from_text(HOST_MARK, text, "line of a host"))
    public = parse_identity(text)
    return HostKeys(public, public)


def receive_identity(data: bytes) -> PublicIdentity:
    """The public identity in exactly these bytes of a peer; WireError."""
    try:
        return read_identity(data)
    except SecurityError as error:
        raise WireError("enrolment", str(error)) from error
