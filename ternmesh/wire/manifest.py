"""The manifest: the body that says what a packet is, and is signed. SPEC.md section 4.2."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ternmesh.errors import WireError

KIND = 0x03
_HEAD = struct.Struct("<BH8sI4sHB")
SIGNATURE_SIZE, DIGEST_SIZE, MODEL_SIZE = 64, 4, 8
UNSIGNED = bytes(SIGNATURE_SIZE)
SIZE_MIN = _HEAD.size + SIGNATURE_SIZE  # without contributors
CONTRIBUTORS_MAX = 32
SAMPLES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a packet is: round, model, weight, how many shares, and the digest over them.

    `model` is the first 8 bytes of the model hash; `contributors` lists the context ids whose
    updates a gateway has bundled, and is empty for a node's own packet.
    """

    round_low: int
    model: bytes
    samples: int
    digest: bytes
    shares: int
    contributors: tuple[int, ...] = ()
    signature: bytes = UNSIGNED


def write_manifest(manifest: Manifest) -> bytes:
    """The body of a manifest."""
    m = manifest
    head = _HEAD.pack(
        KIND, m.round_low, m.model, m.samples, m.digest, m.shares, len(m.contributors)
    )
    return head + struct.pack(f"<{len(m.contributors)}H", *m.contributors) + m.signature


def read_manifest(body: bytes) -> Manifest:
    """The manifest of a body; WireError. The signature is not checked here."""
    if len(body) < _HEAD.size or body[0] != KIND:
        raise WireError("length", "a manifest is shorter than its head")
    _, low, model, samples, digest, shares, count = _HEAD.unpack_from(body)
    if len(body) != _HEAD.size + 2 * count + SIGNATURE_SIZE:
        raise WireError("length", "a manifest is not as long as its contributors and signature")
    if count > CONTRIBUTORS_MAX or not 0 < samples <= SAMPLES_MAX:
        raise WireError("manifest", "a manifest's contributors or samples are out of range")
    contributors = struct.unpack_from(f"<{count}H", body, _HEAD.size)
    if list(contributors) != sorted(set(contributors)):
        raise WireError("manifest", "contributors are listed once each, in rising order")
    return Manifest(low, model, samples, digest, shares, contributors, body[-SIGNATURE_SIZE:])


def has_contributors(body: bytes) -> bool:
    """Whether a manifest's body, not yet checked, is that of a bundle."""
    return len(body) >= _HEAD.size and body[_HEAD.size - 1] > 0


def packet_hash(shares: Sequence[bytes]) -> bytes:
    """The 32-byte hash of a packet: over the hashes of its share bodies in index order.

    Whoever misses a share can still check the rest against it, once told the missing share's hash.
    """
    return hashlib.sha256(b"".join(hashlib.sha256(body).digest() for body in shares)).digest()


def packet_digest(shares: Sequence[bytes]) -> bytes:
    """The 4 bytes by which manifests, receipts and references name a packet."""
    return packet_hash(shares)[:DIGEST_SIZE]
