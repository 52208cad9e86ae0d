"""Key derivation: from two identities to the keys and nonces of their frames. SPEC.md section 9.2.

No nonce is used twice with one key. A key belongs to one sender, receiver and layer, and to one
process of the sender, whose 64-bit counter only rises. The counter also rises over restarts, as a
second protection.
"""

import struct

from ternmesh.errors import SecurityError
from ternmesh.security.identity import Identity, PublicIdentity, write_identity
from ternmesh.security.primitives import KEY_SIZE, hkdf

SUITE_END, SUITE_HOP = 1, 2  # seals from node to host; from one neighbour to the next
GENERATION_BITS = 20  # a key seals at most 2**20 frames
SECRET_SIZE = 32
FLEET_SIZE = 16
_NONCE = struct.Struct("<HQ3s")


def pair_secret(own: Identity, other: PublicIdentity, fleet: bytes) -> bytes:
    """The 32-byte secret of two members of a fleet, equal on both sides; SecurityError."""
    if other.fingerprint == own.public.fingerprint:
        raise SecurityError(f"{other.name} has the same key as this end: enrol another identity")
    both = sorted((write_identity(own.public), write_identity(other)))
    info = b"ternmesh pair" + b"".join(bytes((len(item),)) + item for item in both)
    return hkdf(own.shared(other), fleet, info, SECRET_SIZE)


def traffic_key(
    pair: bytes, suite: int, sender: bytes, instance: bytes, epoch: int, counter: int
) -> bytes:
    """The key of one session: `sender` is a fingerprint, `instance` names its process (8 bytes)."""
    rest = struct.pack("<B16sIQ", suite, sender, epoch, counter >> GENERATION_BITS)
    return hkdf(pair, instance, b"ternmesh traffic" + rest, KEY_SIZE)


def sync_key(pair: bytes, suite: int, sender: bytes, instance: bytes) -> bytes:
    """The key of the sync frames of one process of the sender."""
    return hkdf(pair, instance, struct.pack("<14sB16s", b"ternmesh sync", suite, sender), KEY_SIZE)


def group_secret(own: Identity, suite: int, fleet: bytes, epoch: int, instance: bytes) -> bytes:
    """A new 16-byte secret for broadcasts, which only `own` can compute."""
    info = struct.pack("<14sB16sI", b"ternmesh group", suite, fleet, epoch)
    return hkdf(own.seeds, instance, info, KEY_SIZE)


def group_key(
    secret: bytes, suite: int, sender: bytes, fleet: bytes, epoch: int, counter: int
) -> bytes:
    """The key of the broadcasts of `sender` (a fingerprint) under a group secret."""
    rest = struct.pack("<B16sIQ", suite, sender, epoch, counter >> GENERATION_BITS)
    return hkdf(secret, fleet, b"ternmesh broadcast" + rest, KEY_SIZE)


def nonce(address: int, counter: int) -> bytes:
    """The 13 bytes of a nonce: address, the whole 64-bit counter, three zeros."""
    return _NONCE.pack(address, counter, bytes(3))
