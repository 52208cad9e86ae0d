"""What keys sign besides frames: packets, receipts, announces, references. SPEC.md section 9.7.

Every signature is over a domain of its own and over the run, so that none can be shown in another
place or another run. Check a signature before anything else is read.
"""

import hashlib
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ternmesh.errors import WireError
from ternmesh.trust.identity import Identity, PublicIdentity
from ternmesh.trust.primitives import (
    QUANTUM_SIGNATURE_SIZE,
    SIGNATURE_SIZE,
    QuantumKey,
    verify,
    verify_quantum,
)
from ternmesh.trust.statement import statement
from ternmesh.wire.manifest import Manifest
from ternmesh.wire.reference import HASH_SIZE, SIGNERS_MAX, Certificate, reference_hash

SIGNED = 0x0E
REFERENCE, RELEASE = "reference", "release"
QUANTUM = 3  # the kind of object that holds an ML-DSA-44 signature
_PACKET = struct.Struct("<IIH")
_QUANTUM_HEAD = 2 + HASH_SIZE


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is signed: fleet (16 bytes), run (8) and the whole model hash (32).

    A release belongs to no run: 8 zeros.
    """

    fleet: bytes
    run: bytes
    model_hash: bytes


@dataclass(frozen=True, slots=True)
class Signers:
    """Who may certify references, by index, and how many of them it takes.

    `quantum` is the ML-DSA-44 key that must have signed besides (1,312 bytes), if there is one.
    """

    keys: tuple[PublicIdentity, ...]
    needed: int = 1
    quantum: bytes = b""

    def __post_init__(self) -> None:
        """ValueError for a rule that nobody could meet, or that nothing must meet."""
        fits = 0 < self.needed <= len(self.keys) <= SIGNERS_MAX
        if not fits or len({key.verify for key in self.keys}) != len(self.keys):
            raise ValueError(f"1 to {SIGNERS_MAX} different keys sign, and at least one of them")


# Packets


def sign_packet(
    own: Identity, place: Place, round_number: int, item: Manifest, packet: bytes, more: bytes = b""
) -> Manifest:
    """The manifest with its signature; `packet` is the packet's whole 32-byte hash.

    `more` is the body that lists a bundle's contributions (SPEC.md section 4.6), if it is one.
    """
    return replace(item, signature=own.sign(_packet(place, round_number, item, packet, more)))


def verify_packet(
    sender: PublicIdentity,
    place: Place,
    round_number: int,
    item: Manifest,
    packet: bytes,
    more: bytes = b"",
) -> None:
    """Check the signature of a packet that is whole; WireError "signature"."""
    verify(sender.verify, item.signature, _packet(place, round_number, item, packet, more))


def _packet(place: Place, round_number: int, item: Manifest, packet: bytes, more: bytes) -> bytes:
    numbers = _PACKET.pack(round_number, item.samples, item.shares)
    contributors = struct.pack(f"<{len(item.contributors)}H", *item.contributors)
    return _statement("packet", place, numbers, packet, contributors, more)


# Receipts and announces


def sign_body(own: Identity, place: Place, to: bytes, body: bytes) -> bytes:
    """The body that carries `body` signed, for the one with fingerprint `to`.

    What is said to all is for those who hold the broadcast key of this name (`group_name`).
    """
    return bytes((SIGNED,)) + own.sign(_body(place, to, body)) + body


def open_signed(sender: PublicIdentity, place: Place, to: bytes, data: bytes) -> bytes:
    """The body in a signed body; WireError. Nothing of it is believed before."""
    head = 1 + SIGNATURE_SIZE
    if len(data) <= head or data[0] != SIGNED:
        raise WireError("signature", "a body that must be signed is not")
    verify(sender.verify, data[1:head], _body(place, to, data[head:]))
    return data[head:]


def _body(place: Place, to: bytes, body: bytes) -> bytes:
    return _statement("body", place, to, body)


# References and releases


def sign_content(
    own: Identity, index: int, place: Place, content: bytes, domain: str = REFERENCE
) -> tuple[int, bytes]:
    """One row of the certificate over a content: an object's, or a release's manifest."""
    return index, own.sign(_content(domain, place, content))


def verify_certificate(
    signers: Signers,
    place: Place,
    content: bytes,
    certificate: Certificate,
    domain: str = REFERENCE,
) -> None:
    """Check that enough signers stand for a content: WireError "signature".

    Every row must hold: in rising order of the index, so that nobody counts twice.
    """
    indexes = [index for index, _ in certificate]
    if indexes != sorted(set(indexes)) or len(indexes) < signers.needed:
        raise WireError("signature", f"a certificate has {signers.needed} signers, each once")
    if indexes[-1] >= len(signers.keys):
        raise WireError("signature", "a certificate names a signer that is none")
    message = _content(domain, place, content)
    for index, signature in certificate:
        verify(signers.keys[index].verify, signature, message)


# Against quantum computers


def sign_quantum(
    key: QuantumKey, index: int, place: Place, content: bytes, domain: str = REFERENCE
) -> bytes:
    """The object that carries an ML-DSA-44 signature beside a content: 2,438 bytes."""
    head = bytes((QUANTUM, index)) + reference_hash(content)
    return head + key.sign(_content(f"quantum {domain}", place, content))


def verify_quantum_object(
    keys: Sequence[bytes], place: Place, content: bytes, data: bytes, domain: str = REFERENCE
) -> int:
    """The index of the key (of 1,312 bytes each) whose signature an object holds; WireError."""
    if len(data) != _QUANTUM_HEAD + QUANTUM_SIGNATURE_SIZE or data[0] != QUANTUM:
        raise WireError("length", "an object with a signature has another size")
    index = data[1]
    if index >= len(keys) or data[2:_QUANTUM_HEAD] != reference_hash(content):
        raise WireError("signature", "a signature of another key, or of another object")
    message = _content(f"quantum {domain}", place, content)
    verify_quantum(keys[index], data[_QUANTUM_HEAD:], message)
    return index


def verify_beside(
    signers: Signers,
    place: Place,
    content: bytes,
    beside: Sequence[bytes],
    domain: str = REFERENCE,
) -> None:
    """Check that one of the objects beside a content is what `signers.quantum` asks for.

    WireError "signature"; nothing is asked for where there is no such key.
    """
    if not signers.quantum:
        return
    name = bytes((QUANTUM, 0)) + reference_hash(content)
    for data in beside:
        if data.startswith(name):
            with suppress(WireError):
                verify_quantum_object((signers.quantum,), place, content, data, domain)
                return
    raise WireError("signature", "the ML-DSA-44 signature beside an object is wrong, or missing")


def _content(domain: str, place: Place, content: bytes) -> bytes:
    return _statement(domain, place, hashlib.sha256(content).digest())


def _statement(domain: str, place: Place, *parts: bytes) -> bytes:
    return statement(domain, place.fleet, place.run, place.model_hash, *parts)
