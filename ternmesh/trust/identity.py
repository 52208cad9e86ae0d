"""Who somebody is: a name, a role and two keys, and the forms in which they travel. SPEC.md 9.1."""

import base64
import hashlib
import re
from dataclasses import dataclass, field
from enum import IntEnum

from ternmesh.errors import TrustError
from ternmesh.trust.primitives import PUBLIC_SIZE, SEED_SIZE, ExchangeKey, SigningKey, is_weak
from ternmesh.wire.control import NAME

VERSION = 1
ENTROPY_SIZE = 2 * SEED_SIZE
FINGERPRINT_SIZE, CHECK_SIZE = 16, 4
PUBLIC_MARK, PRIVATE_MARK, ROTATION_MARK = "TM1:", "TM1-PRIVATE:", "TM1-ROTATION:"
QUANTUM_MARK = "TM1-QUANTUM:"
QUANTUM_PUBLIC_SIZE = 1312
TEXT_MAX = 4096
_TEXT = re.compile(r"[A-Z2-7]+\Z")


class Role(IntEnum):
    """What an identity may do in a fleet. A relay forwards; a trusted gateway also bundles."""

    NODE = 0
    RELAY = 1
    GATEWAY = 2
    HOST = 3
    OBSERVER = 4


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """What others know: `verify` is the Ed25519 key, `exchange` the X25519 key, 32 bytes each."""

    name: str
    role: Role
    verify: bytes
    exchange: bytes

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that name the two keys, whatever name and role they go by."""
        keys = b"ternmesh fingerprint" + self.verify + self.exchange
        return hashlib.sha256(keys).digest()[:FINGERPRINT_SIZE]


@dataclass(frozen=True, slots=True)
class Identity:
    """The private half. Its seeds are never shown, logged or sent."""

    public: PublicIdentity
    seeds: bytes = field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature of a message; `ternmesh.trust.signing` says which are signed."""
        return SigningKey(self.seeds[:SEED_SIZE]).sign(message)

    def shared(self, other: PublicIdentity) -> bytes:
        """The X25519 secret with another identity; TrustError for a key of small order."""
        return ExchangeKey(self.seeds[SEED_SIZE:]).shared(other.exchange)


def make_identity(name: str, role: Role, entropy: bytes) -> Identity:
    """A new identity from 64 random bytes. ValueError for bytes that cannot be random."""
    if len(entropy) != ENTROPY_SIZE or len(set(entropy)) < ENTROPY_SIZE // 4:
        raise ValueError(f"an identity is made of {ENTROPY_SIZE} random bytes")
    _check_name(name)
    signing = SigningKey(entropy[:SEED_SIZE])
    exchange = ExchangeKey(entropy[SEED_SIZE:])
    return Identity(PublicIdentity(name, role, signing.public, exchange.public), entropy)


def write_identity(public: PublicIdentity) -> bytes:
    """The bytes of a public identity: at most 99."""
    name = public.name.encode()
    head = bytes((VERSION, public.role, len(name)))
    return head + name + public.verify + public.exchange


def read_identity(data: bytes) -> PublicIdentity:
    """The public identity in exactly these bytes; TrustError says what is wrong."""
    name, role, keys = _read(data, 2 * PUBLIC_SIZE)
    if is_weak(keys[:PUBLIC_SIZE]):
        raise TrustError(f"the key of {name} is a weak one: make another identity")
    return PublicIdentity(name, role, keys[:PUBLIC_SIZE], keys[PUBLIC_SIZE:])


def identity_text(public: PublicIdentity) -> str:
    """One line for a file or a QR code (its alphanumeric mode)."""
    return _to_text(PUBLIC_MARK, write_identity(public))


def parse_identity(text: str) -> PublicIdentity:
    """The public identity of a line; TrustError says what is wrong."""
    return read_identity(_from_text(PUBLIC_MARK, text, "public identity"))


def private_text(identity: Identity) -> str:
    """One line for a file that only its owner may read."""
    name = identity.public.name.encode()
    head = bytes((VERSION, identity.public.role, len(name)))
    return _to_text(PRIVATE_MARK, head + name + identity.seeds)


def parse_private(text: str) -> Identity:
    """The identity of such a line; TrustError, which never quotes it."""
    name, role, seeds = _read(_from_text(PRIVATE_MARK, text, "private identity"), ENTROPY_SIZE)
    try:
        return make_identity(name, role, seeds)
    except ValueError as error:
        raise TrustError(f"this private identity of {name} is none: make another one") from error


def rotation_text(rotation: bytes) -> str:
    """One line for a file: the bytes of `ternmesh.trust.roster.write_rotation`."""
    return _to_text(ROTATION_MARK, rotation)


def parse_rotation(text: str) -> bytes:
    """The bytes in such a line, which prove nothing yet; TrustError."""
    return _from_text(ROTATION_MARK, text, "rotation of keys")


def quantum_text(public: bytes) -> str:
    """One line for a configuration: an ML-DSA-44 public key of 1,312 bytes."""
    return _to_text(QUANTUM_MARK, public)


def parse_quantum(text: str) -> bytes:
    """The key in such a line; TrustError."""
    public = _from_text(QUANTUM_MARK, text, "ML-DSA-44 key")
    if len(public) != QUANTUM_PUBLIC_SIZE:
        raise TrustError("this ML-DSA-44 key is not as long as it should be: copy it anew")
    return public


def _read(data: bytes, size: int) -> tuple[str, Role, bytes]:
    if not data or data[0] != VERSION:
        raise TrustError("this identity is of another version: use the ternmesh that made it")
    if len(data) < 3 or len(data) != 3 + data[2] + size:
        raise TrustError("this identity is not as long as it should be: copy it anew")
    if data[1] not in set(Role):
        raise TrustError(f"{data[1]} is no role: use the ternmesh that made this identity")
    name = data[3 : 3 + data[2]].decode("ascii", "replace")
    _check_name(name)
    return name, Role(data[1]), data[-size:]


def _check_name(name: str) -> None:
    if NAME.match(name) is None:
        raise TrustError("a name has 1 to 32 letters, digits, dots, dashes and underscores")


def _to_text(mark: str, data: bytes) -> str:
    whole = data + _check(mark, data)
    return mark + base64.b32encode(whole).decode().rstrip("=")


def _from_text(mark: str, text: str, what: str) -> bytes:
    text = text.strip() if len(text) <= TEXT_MAX else ""
    coded = text.removeprefix(mark)
    if coded == text or _TEXT.match(coded) is None:
        raise TrustError(f"this is no {what}: one begins with {mark} and goes on in A-Z and 2-7")
    try:
        whole = base64.b32decode(coded + "=" * (-len(coded) % 8))
    except ValueError as error:
        raise TrustError(f"this {what} has lost a letter: copy it anew") from error
    data = whole[:-CHECK_SIZE]
    if whole[-CHECK_SIZE:] != _check(mark, data) or _to_text(mark, data) != text:
        raise TrustError(f"this {what} has a wrong letter: copy it anew")
    return data


def _check(mark: str, data: bytes) -> bytes:
    return hashlib.sha256(mark.encode() + data).digest()[:CHECK_SIZE]
