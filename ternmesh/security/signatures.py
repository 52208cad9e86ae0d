"""Signatures of updates, receipts, announces, global updates and releases. SPEC.md section 9.7.

Every signature covers a domain and the run, so that it is not valid in another place or another
run. Check a signature before anything else of the content is read.

The signers of a fleet (the host alone, if no others are configured) certify global updates,
snapshots and releases: k of them must sign. All ends are configured with the same public lines, in
any order; a signer's index is its position by rising key. A fleet may also have an ML-DSA-44 key,
against quantum computers: its signature is an object of its own beside the certified object.
"""

import hashlib
import struct
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.identity import Identity, PublicIdentity, parse_identity, parse_quantum
from ternmesh.security.primitives import (
    QUANTUM_SIGNATURE_SIZE,
    SEED_SIZE,
    QuantumKey,
    hkdf,
    statement,
    verify,
    verify_quantum,
)
from ternmesh.wire.global_update import (
    HASH_SIZE,
    SIGNERS_MAX,
    Certificate,
    certify,
    hash_global_update,
    split_certificate,
)
from ternmesh.wire.update import SIGNATURE_SIZE, Manifest, write_evaluation, write_members

NO_RUN = bytes(8)  # in the context of announces and releases; an announce names its run itself
NO_MODEL = bytes(32)  # in the context of a release, whose manifest names the model
SIGNED = 0x0E  # the kind of a body that carries a signed body
SIGNED_HEAD = 1 + SIGNATURE_SIZE  # bytes before that body
# Domains of certified content
GLOBAL_UPDATE, RELEASE, SOFTWARE = "reference", "release", "software"
QUANTUM = 3  # the kind of object that carries an ML-DSA-44 signature
CERTIFICATE_MAX = 1041  # bytes of a certificate with 16 rows
_UPDATE_NUMBERS = struct.Struct("<IIH")
_QUANTUM_START = bytes((QUANTUM, 0))  # the kind, and the index of the one key that a fleet may have
QUANTUM_SIZE = len(_QUANTUM_START) + HASH_SIZE + QUANTUM_SIGNATURE_SIZE  # 2,438 bytes
QUANTUM_FRAMES = 13  # radio frames of 222 bytes for such an object


@dataclass(frozen=True, slots=True)
class SigningContext:
    """The fleet, run and model for which a signature is valid."""

    fleet: bytes  # 16 bytes
    run: bytes  # 8 bytes
    model_hash: bytes  # 32 bytes


@dataclass(frozen=True, slots=True)
class Signers:
    """The identities that may certify content, and how many of them must sign."""

    keys: tuple[PublicIdentity, ...]  # a certificate refers to them by index
    needed: int = 1
    quantum: bytes = b""  # the ML-DSA-44 key that must sign as well (1,312 bytes), if any

    def __post_init__(self) -> None:
        """ValueError for a number of signatures that cannot be reached, or for equal keys."""
        fits = 0 < self.needed <= len(self.keys) <= SIGNERS_MAX
        if not fits or len({key.verify for key in self.keys}) != len(self.keys):
            raise ValueError(
                f"1 to {SIGNERS_MAX} different keys may sign, and at least one of them must"
            )

    def seated(self, host: PublicIdentity, others: Collection[bytes]) -> "Signers":
        """These signers with `host` in place of its other keys, named by fingerprint; WireError."""
        keys = {host if key.fingerprint in others else key for key in self.keys}
        try:
            return replace(self, keys=tuple(sorted(keys, key=lambda one: one.verify)))
        except ValueError as error:
            raise WireError(
                "signature", f"security.signers has two keys of the host: {error}"
            ) from error


# Updates


def sign_update(
    own: Identity, context: SigningContext, number: int, item: Manifest, whole_hash: bytes
) -> Manifest:
    """The manifest of round `number` with its signature; `whole_hash` is the update's, 32 bytes."""
    return replace(item, signature=own.sign(_update(context, number, item, whole_hash)))


def verify_update(
    sender: PublicIdentity, context: SigningContext, number: int, item: Manifest, whole_hash: bytes
) -> None:
    """Check the signature of a complete update of round `number`; WireError "signature"."""
    verify(sender.verify, item.signature, _update(context, number, item, whole_hash))


def _update(context: SigningContext, number: int, item: Manifest, whole_hash: bytes) -> bytes:
    numbers = _UPDATE_NUMBERS.pack(number, item.samples, item.chunks)
    members, evaluation = write_members(item), write_evaluation(item.evaluation)
    return _statement("packet", context, numbers, whole_hash, members, evaluation)


# Receipts and announces


def sign_body(own: Identity, context: SigningContext, to: bytes, body: bytes) -> bytes:
    """The body that carries `body` and its signature, for the receiver with fingerprint `to`.

    For a broadcast, `to` is the name of the broadcast key (`group_name`).
    """
    return bytes((SIGNED,)) + own.sign(_body(context, to, body)) + body


def open_signed(sender: PublicIdentity, context: SigningContext, to: bytes, data: bytes) -> bytes:
    """The body in a signed body, after its signature is checked; WireError."""
    if len(data) <= SIGNED_HEAD or data[0] != SIGNED:
        raise WireError("signature", "a body that must be signed is not signed")
    verify(sender.verify, data[1:SIGNED_HEAD], _body(context, to, data[SIGNED_HEAD:]))
    return data[SIGNED_HEAD:]


def _body(context: SigningContext, to: bytes, body: bytes) -> bytes:
    return _statement("body", context, to, body)


# Global updates and releases


def sign_content(
    own: Identity, index: int, context: SigningContext, content: bytes, domain: str = GLOBAL_UPDATE
) -> tuple[int, bytes]:
    """One row of the certificate of a content: of an object, or of a release's manifest."""
    return index, own.sign(_content(domain, context, content))


def verify_certificate(
    signers: Signers,
    context: SigningContext,
    content: bytes,
    certificate: Certificate,
    domain: str = GLOBAL_UPDATE,
) -> None:
    """Check that enough signers have signed a content: WireError "signature".

    Every row must be valid, in rising order of the index, so that no signer counts twice.
    """
    indexes = [index for index, _ in certificate]
    if indexes != sorted(set(indexes)) or len(indexes) < signers.needed:
        raise WireError("signature", f"a certificate needs {signers.needed} signers, each once")
    if not 0 <= indexes[0] <= indexes[-1] < len(signers.keys):
        raise WireError("signature", "a certificate names an unknown signer")
    message = _content(domain, context, content)
    for index, signature in certificate:
        verify(signers.keys[index].verify, signature, message)


# Against quantum computers


def sign_quantum(
    key: QuantumKey, context: SigningContext, content: bytes, domain: str = GLOBAL_UPDATE
) -> bytes:
    """The object that carries the ML-DSA-44 signature of a content: 2,438 bytes."""
    head = _QUANTUM_START + hash_global_update(content)
    return head + key.sign(_content(f"quantum {domain}", context, content))


def verify_beside(
    signers: Signers,
    context: SigningContext,
    content: bytes,
    beside: Sequence[bytes],
    domain: str = GLOBAL_UPDATE,
) -> None:
    """Check that one of the objects `beside` a content is signed by `signers.quantum`.

    WireError "signature". Nothing is checked if the fleet has no such key.
    """
    if not signers.quantum:
        return
    head = _QUANTUM_START + hash_global_update(content)
    message = _content(f"quantum {domain}", context, content)
    for data in beside:
        if data.startswith(head):
            with suppress(WireError):
                verify_quantum(signers.quantum, data.removeprefix(head), message)
                return
    raise WireError("signature", "the ML-DSA-44 signature of an object is wrong, or missing")


def _content(domain: str, context: SigningContext, content: bytes) -> bytes:
    return _statement(domain, context, hashlib.sha256(content).digest())


def _statement(domain: str, context: SigningContext, *parts: bytes) -> bytes:
    return statement(domain, context.fleet, context.run, context.model_hash, *parts)


# The signers of a fleet


def choose_signers(
    host: PublicIdentity, lines: Sequence[str], needed: int, quantum: str = ""
) -> Signers:
    """The signers that the configuration names, or else the host alone; SecurityError.

    `lines` are public identities, `quantum` the line of an ML-DSA-44 key, if the fleet has one. An
    end that cannot check such a signature gets the error here, at its start.
    """
    keys = [parse_identity(line) for line in lines] or [host]
    key = parse_quantum(quantum) if quantum else b""
    if key:
        QuantumKey(bytes(SEED_SIZE))  # fails where `cryptography`, or its OpenSSL, has no ML-DSA-44
    try:
        return Signers(tuple(sorted(keys, key=lambda one: one.verify)), needed, key)
    except ValueError as error:
        raise SecurityError(
            f"security.threshold is {needed}, and security.signers names {len(keys)}: {error}"
        ) from error


def local_signers(
    signers: Signers, identities: Iterable[Identity], *, others_sign: bool = False
) -> tuple[tuple[int, Identity], ...]:
    """The signers whose private keys are here, as many as needed; SecurityError for fewer.

    Each with its index, in rising order. Where `others_sign` as well, one is enough here.
    """
    indexes = {key.verify: index for index, key in enumerate(signers.keys)}
    here = {i.public.verify: i for i in identities if i.public.verify in indexes}
    if len(here) < (1 if others_sign else signers.needed):
        raise SecurityError(
            f"global updates need the signatures of {signers.needed} of {len(signers.keys)} "
            f"signers, but only {len(here)} of their private keys are here: add more to "
            "security.signer_files"
        )
    return tuple(sorted((indexes[verify], one) for verify, one in here.items()))[: signers.needed]


def quantum_key(own: Identity) -> QuantumKey:
    """The ML-DSA-44 key of an identity, derived from its Ed25519 seed."""
    return QuantumKey(hkdf(own.seeds[:SEED_SIZE], b"", b"ternmesh quantum", SEED_SIZE))


def own_quantum(signers: Signers, own: Identity) -> QuantumKey | None:
    """The host's ML-DSA-44 key, if the fleet has one; SecurityError if it is another key."""
    if not signers.quantum:
        return None
    key = quantum_key(own)
    if key.public != signers.quantum:
        raise SecurityError(
            "security.quantum is not this host's key: `ternmesh enrol identity --quantum` shows it"
        )
    return key


# The signature file of a release, or of a version of ternmesh (its content: the file's SHA-256)


def sign_release(
    own: Identity,
    fleet: bytes,
    content: bytes,
    signers: Signers,
    before: bytes = b"",
    quantum: QuantumKey | None = None,
    domain: str = RELEASE,
) -> bytes:
    """The signature file of a manifest, with the row of `own` added to those of `before`.

    Invalid rows of `before`, for example of another manifest, are dropped. ValueError if `own` is
    not a signer.
    """
    index = [key.verify for key in signers.keys].index(own.public.verify)
    context = SigningContext(fleet, NO_RUN, NO_MODEL)
    beside = b""
    rows = {}
    if before:
        beside, certificate = _split(content, before)
        rows = dict(
            row for row in certificate if is_valid_row(signers, context, content, row, domain)
        )
    rows |= dict((sign_content(own, index, context, content, domain),))
    if quantum is not None:
        beside = sign_quantum(quantum, context, content, domain)
    return beside + certify(b"", tuple(sorted(rows.items())))


def signatures_of(
    signers: Signers, fleet: bytes, content: bytes, signatures: bytes, domain: str = RELEASE
) -> int:
    """The number of valid signatures of a manifest."""
    context = SigningContext(fleet, NO_RUN, NO_MODEL)
    rows = _split(content, signatures)[1]
    return sum(is_valid_row(signers, context, content, row, domain) for row in rows)


def verify_release(
    signers: Signers, fleet: bytes, content: bytes, signatures: bytes, domain: str = RELEASE
) -> None:
    """Check that enough signers have signed a manifest; WireError."""
    beside, certificate = _split(content, signatures)
    context = SigningContext(fleet, NO_RUN, NO_MODEL)
    verify_certificate(signers, context, content, certificate, domain)
    verify_beside(signers, context, content, (beside,), domain)


def _split(content: bytes, signatures: bytes) -> tuple[bytes, Certificate]:
    """The object with the ML-DSA-44 signature (empty if none), and the certificate."""
    at = QUANTUM_SIZE if len(signatures) > CERTIFICATE_MAX else 0
    signed, certificate = split_certificate(content + signatures[at:])
    if signed != content:
        raise WireError("signature", "these signatures are incomplete or missing")
    return signatures[:at], certificate


def is_valid_row(
    signers: Signers,
    context: SigningContext,
    content: bytes,
    row: tuple[int, bytes],
    domain: str = GLOBAL_UPDATE,
) -> bool:
    """Whether a signer has made this one row of a certificate."""
    try:
        verify_certificate(Signers(signers.keys), context, content, (row,), domain)
    except WireError:
        return False
    return True
