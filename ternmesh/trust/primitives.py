"""The cryptographic primitives under our own names and errors; only here is `cryptography` used.

Frames are sealed with AES-CCM: its tag may have 8 bytes, which is what the seal has room for on
every bearer. ChaCha20-Poly1305 has 16 and no standard for fewer; AES is also what small radios have
in hardware, and a nonce that is used twice costs CCM less than it costs Poly1305.
"""

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESCCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ternmesh.errors import SealError, TrustError, WireError

try:
    from cryptography.hazmat.primitives.asymmetric.mldsa import (
        MLDSA44PrivateKey,
        MLDSA44PublicKey,
    )

    _HAS_MLDSA = True
except ImportError:
    _HAS_MLDSA = False

KEY_SIZE, NONCE_SIZE, TAG_SIZE = 16, 13, 8  # of AES-128-CCM
SEED_SIZE = PUBLIC_SIZE = 32
SIGNATURE_SIZE = 64
QUANTUM_SIGNATURE_SIZE = 2420
_P = 2**255 - 19
# The points of small order on edwards25519 (their y, twice where it has two encodings): under such
# a key one signature fits many messages.
_Y8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_WEAK = frozenset({0, 1, _Y8, _P - _Y8, _P - 1, _P, _P + 1})


class SigningKey:
    """An Ed25519 private key (RFC 8032) from its 32-byte seed."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)

    @property
    def public(self) -> bytes:
        """The 32-byte public key."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of a message."""
        return self._key.sign(message)


def verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Check an Ed25519 signature; WireError "signature" where it is not that key's."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise _bad_signature() from error


def is_weak(public: bytes) -> bool:
    """Whether an Ed25519 public key is a point of small order."""
    return int.from_bytes(public, "little") & ((1 << 255) - 1) in _WEAK


class ExchangeKey:
    """An X25519 private key (RFC 7748) from its 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(seed)

    @property
    def public(self) -> bytes:
        """The 32-byte public key."""
        return self._key.public_key().public_bytes_raw()

    def shared(self, public: bytes) -> bytes:
        """The 32-byte secret shared with a public key; TrustError for one of small order."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise TrustError("no secret comes of this public key: enrol another one") from error


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """HKDF-SHA256 (RFC 5869): `size` bytes of key."""
    return HKDF(SHA256(), size, salt, info).derive(secret)


class Ccm:
    """AES-128-CCM (RFC 3610) with a tag of 8 bytes and a nonce of 13. A nonce is used once."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESCCM(key, TAG_SIZE)

    def seal(self, nonce: bytes, head: bytes, body: bytes) -> bytes:
        """The encrypted body and its tag, which covers `head` as well."""
        return self._cipher.encrypt(nonce, body, head)

    def open(self, nonce: bytes, head: bytes, sealed: bytes) -> bytes:
        """The body; SealError where the tag does not match."""
        try:
            return self._cipher.decrypt(nonce, sealed, head)
        except (InvalidTag, ValueError) as error:
            sentence = "the tag does not match: the frame was damaged, forged or of another key"
            raise SealError("seal", sentence) from error


class QuantumKey:
    """An ML-DSA-44 private key (FIPS 204) from its 32-byte seed; TrustError where there is none."""

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
        """A signature of 2,420 bytes."""
        return self._key.sign(message)


def verify_quantum(public: bytes, signature: bytes, message: bytes) -> None:
    """Check an ML-DSA-44 signature; WireError "signature", TrustError where there is none."""
    _need_mldsa()
    try:
        MLDSA44PublicKey.from_public_bytes(public).verify(signature, message)
    except UnsupportedAlgorithm as error:
        raise _no_mldsa() from error
    except (InvalidSignature, ValueError) as error:
        raise _bad_signature() from error


def need_quantum() -> None:
    """TrustError where this `cryptography`, or what is under it, has no ML-DSA-44."""
    QuantumKey(bytes(SEED_SIZE))


def _need_mldsa() -> None:
    if not _HAS_MLDSA:
        raise _no_mldsa()


def _no_mldsa() -> TrustError:
    return TrustError("this `cryptography` has no ML-DSA-44: install version 48 or later")


def _bad_signature() -> WireError:
    return WireError("signature", "a signature is not that of the key it should be")
