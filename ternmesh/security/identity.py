"""Identities: a name, a role and two keys, as bytes and as lines of text. SPEC.md section 9.1."""

import base64
import hashlib
import re
from dataclasses import dataclass, field
from enum import IntEnum

from ternmesh.errors import SecurityError
from ternmesh.security.primitives import (
    PUBLIC_SIZE,
    SEED_SIZE,
    exchange_key,
    is_weak,
    shared_secret,
    sign,
    verify_key,
)
from ternmesh.wire.control import NAME

VERSION = 1
ENTROPY_SIZE = 2 * SEED_SIZE
FINGERPRINT_SIZE = 16
CHECK_SIZE = 4
PUBLIC_MARK = "TM1:"
PRIVATE_MARK = "TM1-PRIVATE:"
ROTATION_MARK = "TM1-ROTATION:"
HOST_MARK = "TM1-HOST:"
QUANTUM_MARK = "TM1-QUANTUM:"
QUANTUM_PUBLIC_SIZE = 1312
TEXT_MAX = 65_536
_TEXT = re.compile(r"[A-Z2-7]+\Z")


class Role(IntEnum):
    """The role of an identity. A relay forwards; a trusted gateway also aggregates updates."""

    NODE = 0
    RELAY = 1
    GATEWAY = 2
    HOST = 3
    OBSERVER = 4


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """The public half of an identity."""

    name: str
    role: Role
    verify: bytes  # the Ed25519 key, 32 bytes
    exchange: bytes  # the X25519 key, 32 bytes

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that identify the two keys, independent of name and role."""
        keys = b"ternmesh fingerprint" + self.verify + self.exchange
        return hashlib.sha256(keys).digest()[:FINGERPRINT_SIZE]


@dataclass(frozen=True, slots=True)
class Identity:
    """The whole identity. Its seeds are never shown, logged or sent."""

    public: PublicIdentity
    seeds: bytes = field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature of a message; signatures.py lists the signed messages."""
        return sign(self.seeds[:SEED_SIZE], message)

    def shared(self, other: PublicIdentity) -> bytes:
        """The X25519 secret with another identity; SecurityError for a key of small order."""
        return self.exchange(other.exchange)

    def exchange(self, public: bytes) -> bytes:
        """The X25519 secret with any public key; SecurityError for a key of small order."""
        return shared_secret(self.seeds[SEED_SIZE:], public)


def make_identity(name: str, role: Role, entropy: bytes) -> Identity:
    """A new identity from 64 random bytes; ValueError for bytes that are clearly not random."""
    if len(entropy) != ENTROPY_SIZE or len(set(entropy)) < ENTROPY_SIZE // 4:
        raise ValueError(f"an identity is made of {ENTROPY_SIZE} random bytes")
    _check_name(name)
    keys = verify_key(entropy[:SEED_SIZE]), exchange_key(entropy[SEED_SIZE:])
    return Identity(PublicIdentity(name, role, *keys), entropy)


def write_identity(public: PublicIdentity) -> bytes:
    """The bytes of a public identity: at most 99."""
    name = public.name.encode()
    head = bytes((VERSION, public.role, len(name)))
    return head + name + public.verify + public.exchange


def read_identity(data: bytes) -> PublicIdentity:
    """The public identity in exactly these bytes, or SecurityError."""
    name, role, keys = _read(data, 2 * PUBLIC_SIZE)
    if is_weak(keys[:PUBLIC_SIZE]):
        raise SecurityError(f"the key of {name} is weak: make another identity")
    return PublicIdentity(name, role, keys[:PUBLIC_SIZE], keys[PUBLIC_SIZE:])


def identity_text(public: PublicIdentity) -> str:
    """One line for a file or a QR code (its alphanumeric mode)."""
    return to_text(PUBLIC_MARK, write_identity(public))


def parse_identity(text: str) -> PublicIdentity:
    """The public identity in a line, or SecurityError."""
    return read_identity(from_text(PUBLIC_MARK, text, "public identity"))


def private_text(identity: Identity) -> str:
    """The whole identity as one line, for a file that only its owner may read."""
    name = identity.public.name.encode()
    head = bytes((VERSION, identity.public.role, len(name)))
    return to_text(PRIVATE_MARK, head + name + identity.seeds)


def parse_private(text: str) -> Identity:
    """The identity in such a line; SecurityError, whose message never quotes the line."""
    name, role, seeds = _read(from_text(PRIVATE_MARK, text, "private identity"), ENTROPY_SIZE)
    try:
        return make_identity(name, role, seeds)
    except ValueError as error:
        raise SecurityError(
            f"this private identity of {name} is not valid: make another one"
        ) from error


def rotation_text(rotation: bytes) -> str:
    """One line for a file, with the bytes of `ternmesh.security.host_keys.write_host_rotation`."""
    return to_text(ROTATION_MARK, rotation)


def parse_rotation(text: str) -> bytes:
    """The bytes in such a line, not yet verified; SecurityError."""
    return from_text(ROTATION_MARK, text, "rotation of keys")


def quantum_text(public: bytes) -> str:
    """An ML-DSA-44 public key of 1,312 bytes as one line, for a configuration."""
    return to_text(QUANTUM_MARK, public)


def parse_quantum(text: str) -> bytes:
    """The key in such a line; SecurityError."""
    public = from_text(QUANTUM_MARK, text, "ML-DSA-44 key")
    if len(public) != QUANTUM_PUBLIC_SIZE:
        raise SecurityError("this ML-DSA-44 key has a wrong length: copy it again")
    return public


def _read(data: bytes, size: int) -> tuple[str, Role, bytes]:
    if not data or data[0] != VERSION:
        raise SecurityError("this identity has another version: use the ternmesh that made it")
    if len(data) < 3 or len(data) != 3 + data[2] + size:
        raise SecurityError("this identity has a wrong length: copy it again")
    if data[1] not in set(Role):
        raise SecurityError(
            f"{data[1]} is not a known role: use the ternmesh that made this identity"
        )
    name = data[3 : 3 + data[2]].decode("ascii", "replace")
    _check_name(name)
    return name, Role(data[1]), data[-size:]


def _check_name(name: str) -> None:
    if NAME.match(name) is None:
        raise SecurityError(
            f"{name!r} is no name: it has 1 to 32 letters, digits, dots, dashes and underscores, "
            "and no dot or dash begins it"
        )


def to_text(mark: str, data: bytes) -> str:
    """Bytes as a line of text with a check."""
    whole = data + _check(mark, data)
    return mark + base64.b32encode(whole).decode().rstrip("=")


def from_text(mark: str, text: str, what: str) -> bytes:
    """The bytes in such a line; SecurityError, which calls the line `what`."""
    text = text.strip() if len(text) <= TEXT_MAX else ""
    coded = text.removeprefix(mark)
    if coded == text or _TEXT.match(coded) is None:
        raise SecurityError(
            f"this is not a valid {what}: it must begin with {mark} and continue with A-Z and 2-7"
        )
    try:
        whole = base64.b32decode(coded + "=" * (-len(coded) % 8))
    except ValueError as error:
        raise SecurityError(f"this {what} has lost a letter: copy it again") from error
    data = whole[:-CHECK_SIZE]
    if whole[-CHECK_SIZE:] != _check(mark, data) or to_text(mark, data) != text:
        raise SecurityError(f"this {what} has a wrong letter: copy it again")
    return data


def _check(mark: str, data: bytes) -> bytes:
    return hashlib.sha256(mark.encode() + data).digest()[:CHECK_SIZE]
