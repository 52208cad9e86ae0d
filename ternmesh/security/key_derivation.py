"""Key derivation: from two identities to the keys and nonces of their frames. SPEC.md section 9.2.

The keys of a session are those of the handshake pattern KK of the Noise Protocol Framework
(revision 34, section 7.5): each end contributes its identity, which the other knows beforehand, and
an ephemeral key of its process. Without the ephemeral keys recorded frames stay closed, and the
holder of one end's identity cannot pass for the other end.

No nonce is used twice with one key. A key belongs to one sender, receiver and layer, and to one
process of each, whose 64-bit counter only rises. The counter also rises over restarts, as a second
protection.
"""

import hashlib
import struct

from ternmesh.errors import SecurityError
from ternmesh.security.identity import Identity, PublicIdentity, write_identity
from ternmesh.security.primitives import KEY_SIZE, exchange_key, hkdf, shared_secret

SUITE_END, SUITE_HOP = 1, 2  # seals from node to host; from one neighbour to the next
GENERATION_BITS = 20  # a key seals at most 2**20 frames
SECRET_SIZE = 32
FLEET_SIZE = 16
NOISE_NAME = b"Noise_KK_25519_AESGCM_SHA256"  # only its key schedule: frames are sealed by AES-CCM
_NONCE = struct.Struct("<HQ3s")


def pair_secret(own: Identity, other: PublicIdentity, fleet: bytes) -> bytes:
    """The 32-byte secret of two members of a fleet, equal on both sides; SecurityError."""
    if other.fingerprint == own.public.fingerprint:
        raise SecurityError(f"{other.name} has the same key as this end: enrol another identity")
    both = sorted((write_identity(own.public), write_identity(other)))
    info = b"ternmesh pair" + b"".join(bytes((len(item),)) + item for item in both)
    return hkdf(own.shared(other), fleet, info, SECRET_SIZE)


def opening_key(pair: bytes, suite: int, sender: bytes, ephemeral: bytes) -> bytes:
    """The key of the tag over a sender's ephemeral key; `sender` is a fingerprint."""
    info = struct.pack("<16sB16s", b"ternmesh opening", suite, sender)
    return hkdf(pair, ephemeral, info, KEY_SIZE)


def session_secrets(
    own: Identity, other: PublicIdentity, fleet: bytes, suite: int, ephemeral: bytes, theirs: bytes
) -> tuple[bytes, bytes]:
    """The 32-byte secrets of a session for frames out and in; SecurityError for a weak key.

    They are the two keys at the end of Noise's handshake KK. The end whose identity comes first in
    the order of its bytes counts as the initiator. `ephemeral` is the private key of this process,
    `theirs` the public key of the peer's.
    """
    ends = write_identity(own.public), write_identity(other)
    keys = exchange_key(ephemeral), theirs
    cross = shared_secret(ephemeral, other.exchange), own.exchange(theirs)
    is_first = ends[0] < ends[1]
    if not is_first:
        ends, keys, cross = ends[::-1], keys[::-1], cross[::-1]
    chain = NOISE_NAME.ljust(SECRET_SIZE, b"\0")
    # es, ss, ee, se in Noise's words
    for secret in (cross[0], own.shared(other), shared_secret(ephemeral, theirs), cross[1]):
        chain = hkdf(secret, chain, b"", 2 * SECRET_SIZE)[:SECRET_SIZE]
    both = hkdf(b"", chain, b"", 2 * SECRET_SIZE)
    place = bytes((suite,)) + fleet + b"".join(bytes((len(end),)) + end for end in ends)
    transcript = hashlib.sha256(b"ternmesh session" + place + b"".join(keys)).digest()
    first, second = (
        hkdf(secret, transcript, b"ternmesh traffic", SECRET_SIZE)
        for secret in (both[:SECRET_SIZE], both[SECRET_SIZE:])
    )
    return (first, second) if is_first else (second, first)


def traffic_key(secret: bytes, counter: int) -> bytes:
    """The key of one direction of a session for the 2**20 counters around `counter`."""
    generation = struct.pack("<Q", counter >> GENERATION_BITS)
    return hkdf(secret, generation, b"ternmesh generation", KEY_SIZE)


def group_secret(seed: bytes) -> tuple[bytes, bytes]:
    """A 16-byte secret for broadcasts, and the seed of the next one, both from a 32-byte seed.

    The way back from the next seed is closed: whoever learns it learns no earlier secret.
    """
    both = hkdf(seed, b"", b"ternmesh group", KEY_SIZE + SECRET_SIZE)
    return both[:KEY_SIZE], both[KEY_SIZE:]


def group_key(
    secret: bytes, suite: int, sender: bytes, fleet: bytes, epoch: int, counter: int
) -> bytes:
    """The key of the broadcasts of `sender` (a fingerprint) under a group secret."""
    info = struct.pack("<B16sIQ", suite, sender, epoch, counter >> GENERATION_BITS)
    return hkdf(secret, fleet, b"ternmesh broadcast" + info, KEY_SIZE)


def nonce(address: int, counter: int) -> bytes:
    """The 13 bytes of a nonce: address, the whole 64-bit counter, three zeros."""
    return _NONCE.pack(address, counter, bytes(3))
