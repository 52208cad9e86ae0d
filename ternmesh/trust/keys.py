"""From two identities to the keys and nonces of their frames. SPEC.md section 9.2.

No nonce is used twice with one key: a key belongs to one sender, receiver and layer, and to one
process of the sender, and there the sender's 64-bit counter only rises. It does so over restarts
too: that is the second lock on the same door.
"""

import struct

from ternmesh.errors import TrustError
from ternmesh.trust.identity import Identity, PublicIdentity, write_identity
from ternmesh.trust.primitives import KEY_SIZE, hkdf

SUITE_END, SUITE_HOP = 1, 2  # end to end; from one neighbour to the next
GENERATION_BITS = 20  # a key seals at most so many frames, as a power of two
SECRET_SIZE = 32
FLEET_SIZE = 16
_NONCE = struct.Struct("<HQ3s")


def pair_secret(own: Identity, other: PublicIdentity, fleet: bytes) -> bytes:
    """The 32-byte secret of two members of a fleet, the same on both sides; TrustError."""
    if other.fingerprint == own.public.fingerprint:
        raise TrustError(f"{other.name} has this end's own key: enrol another identity")
    both = sorted((write_identity(own.public), write_identity(other)))
    info = b"ternmesh pair" + b"".join(bytes((len(item),)) + item for item in both)
    return hkdf(own.shared(other), fleet, info, SECRET_SIZE)


def traffic_key(
    pair: bytes, suite: int, sender: bytes, instance: bytes, epoch: int, counter: int
) -> bytes:
    """The key of one session: `sender` is a fingerprint, `instance` the 8 bytes of its process."""
    rest = struct.pack("<B16sIQ", suite, sender, epoch, counter >> GENERATION_BITS)
    return hkdf(pair, instance, b"ternmesh traffic" + rest, KEY_SIZE)


def sync_key(pair: bytes, suite: int, sender: bytes, instance: bytes) -> bytes:
    """The key of one process's synchronising frames; `instance` is its 8 random bytes."""
    return hkdf(pair, instance, struct.pack("<14sB16s", b"ternmesh sync", suite, sender), KEY_SIZE)


def group_secret(own: Identity, suite: int, fleet: bytes, epoch: int, instance: bytes) -> bytes:
    """A new 16-byte key for broadcasts: nobody else can compute it."""
    info = struct.pack("<14sB16sI", b"ternmesh group", suite, fleet, epoch)
    return hkdf(own.seeds, instance, info, KEY_SIZE)


def group_key(
    secret: bytes, suite: int, sender: bytes, fleet: bytes, epoch: int, counter: int
) -> bytes:
    """The key of the broadcasts of `sender` (a fingerprint) under a group secret."""
    rest = struct.pack("<B16sIQ", suite, sender, epoch, counter >> GENERATION_BITS)
    return hkdf(secret, fleet, b"ternmesh broadcast" + rest, KEY_SIZE)


def nonce(context: int, counter: int) -> bytes:
    """The 13 bytes of a nonce: context, the whole 64-bit counter, three zeros."""
    return _NONCE.pack(context, counter, bytes(3))
