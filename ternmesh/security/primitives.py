"""The cryptographic primitives, with our names and errors. Only this module uses `cryptography`.

Frames are sealed with AES-CCM because its tag may have 8 bytes, the room that a seal has on every
bearer. ChaCha20-Poly1305 has 16 bytes and no standard for fewer. Small radios have AES in hardware,
and a reused nonce harms CCM less than Poly1305.
"""

from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESCCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ternmesh.errors import SealError, SecurityError, WireError
from ternmesh.wire.frame import TAG_SIZE

try:
    from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey, MLDSA44PublicKey

    _HAS_MLDSA = True
except ImportError:
    _HAS_MLDSA = False

KEY_SIZE = 16  # of AES-128-CCM
SEED_SIZE = 32
PUBLIC_SIZE = 32
QUANTUM_SIGNATURE_SIZE = 2420
STATEMENT_START = b"ternmesh 1 "
_P = 2**255 - 19
# The points of small order on edwards25519: their y, twice if it has two encodings. With such a key
# one signature is valid for many messages.
_Y8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_WEAK = frozenset({0, 1, _Y8, _P - _Y8, _P - 1, _P, _P + 1})


def sign(seed: bytes, message: bytes) -> bytes:
    """The 64-byte Ed25519 signature (RFC 8032) by the private key of a 32-byte seed."""
    return _signing_key(seed).sign(message)


@lru_cache(maxsize=4)
def _signing_key(seed: bytes) -> Ed25519PrivateKey:
    """The key of a seed: to make it takes as long as to sign, and a host signs each receipt."""
    return Ed25519PrivateKey.from_private_bytes(seed)


def verify_key(seed: bytes) -> bytes:
    """The 32-byte public key that belongs to a seed of `sign`."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Check an Ed25519 signature; WireError "signature"."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise _bad_signature() from error


def is_weak(public: bytes) -> bool:
    """Whether an Ed25519 public key is a point of small order."""
    return int.from_bytes(public, "little") & ((1 << 255) - 1) in _WEAK


def exchange_key(private: bytes) -> bytes:
    """The 32-byte X25519 public key (RFC 7748) of a private key of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_secret(private: bytes, public: bytes) -> bytes:
    """The 32-byte secret of two X25519 keys; SecurityError for a public key of small order."""
    key = X25519PrivateKey.from_private_bytes(private)
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise SecurityError("this public key gives no shared secret: enrol another one") from error


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """HKDF-SHA256 (RFC 5869): `size` bytes of key."""
    return HKDF(SHA256(), size, salt, info).derive(secret)


class Ccm:
    """AES-128-CCM (RFC 3610), tag of 8 bytes, nonce of 13. Each nonce may be used only once."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESCCM(key, TAG_SIZE)

    def seal(self, nonce: bytes, head: bytes, body: bytes) -> bytes:
        """The encrypted body and its tag, which also covers `head`."""
        return self._cipher.encrypt(nonce, body, head)

    def open(self, nonce: bytes, head: bytes, sealed: bytes) -> bytes:
        """The body; SealError if the tag does not match."""
        try:
            return self._cipher.decrypt(nonce, sealed, head)
        except (InvalidTag, ValueError) as error:
            raise SealError(
                "seal", "the tag does not match: the frame is damaged, forged or of another key"
            ) from error


class QuantumKey:
    """An ML-DSA-44 private key (FIPS 204) from its 32-byte seed; SecurityError if unsupported."""

    def __init__(self, seed: bytes) -> None:
        _need_mldsa()
        try:
            self._key = MLDSA44PrivateKey.from_seed_bytes(seed)
        except UnsupportedAlgorithm as error:
            raise _no_mldsa() from error

    @property
    def public(self) -> bytes:
        """The public key, 1,312 bytes."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The 2,420-byte signature of a message."""
        return self._key.sign(message)


def verify_quantum(public: bytes, signature: bytes, message: bytes) -> None:
    """Check an ML-DSA-44 signature; WireError "signature", SecurityError if unsupported."""
    _need_mldsa()
    try:
        MLDSA44PublicKey.from_public_bytes(public).verify(signature, message)
    except UnsupportedAlgorithm as error:
        raise _no_mldsa() from error
    except (InvalidSignature, ValueError) as error:
        raise _bad_signature() from error


def _need_mldsa() -> None:
    if not _HAS_MLDSA:
        raise _no_mldsa()


def _no_mldsa() -> SecurityError:
    return SecurityError("this `cryptography` has no ML-DSA-44: install version 48 or later")


def _bad_signature() -> WireError:
    return WireError("signature", "a signature is not valid for the expected key")


def statement(domain: str, *parts: bytes) -> bytes:
    """The bytes to sign: the domain, then each part after its u32 length. SPEC.md section 9.7.

    The domain names the use, so that a signature for one use is not valid for another.
    """
    return STATEMENT_START + b"".join(
        len(part).to_bytes(4, "little") + part for part in (domain.encode(), *parts)
    )
