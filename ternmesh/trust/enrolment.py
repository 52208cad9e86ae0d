"""Enrolment over the link with a one-time code. SPEC.md section 9.6.

The host shows a code of 96 random bits; whoever types it into a node shows with it, both ways, that
the key that arrives is the key that was meant. The two bodies are the only ones that an end with
keys takes under suite 0, and only while a code is out.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass

from ternmesh.errors import TrustError, WireError
from ternmesh.trust.identity import PublicIdentity, Role, read_identity, write_identity
from ternmesh.trust.keys import FLEET_SIZE
from ternmesh.trust.primitives import hkdf
from ternmesh.trust.roster import Roster
from ternmesh.trust.statement import statement

REQUEST, ANSWER = 0x0C, 0x0D
ENTROPY_SIZE = 12
LABEL_SIZE, PROOF_SIZE, KEY_SIZE = 4, 16, 32
CODES_MAX = 64
GROUP = 5
_TYPED = str.maketrans("01", "OI", "- ")
_LETTERS = 20


@dataclass(frozen=True, slots=True)
class Code:
    """A code's key, and the 4 bytes by which a request names it."""

    key: bytes
    label: bytes


@dataclass(slots=True)
class _Issued:
    role: Role
    expires_at: float
    used_by: PublicIdentity | None = None


def make_code(entropy: bytes) -> str:
    """The code to show, from 12 random bytes: four groups of five letters and digits."""
    if len(entropy) != ENTROPY_SIZE or len(set(entropy)) < ENTROPY_SIZE // 3:
        raise ValueError(f"a code is made of {ENTROPY_SIZE} random bytes")
    letters = base64.b32encode(entropy + bytes((_check(entropy) << 4,))).decode()[:_LETTERS]
    return "-".join(letters[at : at + GROUP] for at in range(0, _LETTERS, GROUP))


def read_code(text: str) -> Code:
    """The code that somebody typed; TrustError where a letter is wrong."""
    letters = text.upper().translate(_TYPED)
    try:
        data = base64.b32decode(letters + "====") if len(letters) == _LETTERS else b""
    except ValueError:
        data = b""
    if len(data) != ENTROPY_SIZE or _letters_end(letters, data):
        raise TrustError("this is no enrolment code, or a letter is wrong: type it again")
    key = hkdf(data, b"", b"ternmesh enrolment", KEY_SIZE + LABEL_SIZE)
    return Code(key[:KEY_SIZE], key[KEY_SIZE:])


def write_request(public: PublicIdentity, code: Code) -> bytes:
    """The body by which a node asks to be enrolled: at most 120 bytes."""
    identity = write_identity(public)
    return bytes((REQUEST,)) + code.label + identity + _proof(code, "enrol request", identity)


def read_answer(body: bytes, own: PublicIdentity, code: Code) -> tuple[PublicIdentity, bytes]:
    """The host's identity and the fleet, which only the issuer of the code can name; WireError."""
    middle, proof = body[1:-PROOF_SIZE], body[-PROOF_SIZE:]
    if len(body) <= 1 + FLEET_SIZE + PROOF_SIZE or body[0] != ANSWER:
        raise WireError("length", "an answer to an enrolment is longer")
    if not hmac.compare_digest(proof, _proof(code, "enrol answer", write_identity(own), middle)):
        raise WireError("enrolment", "this answer was not made with the code")
    host = _identity(middle[FLEET_SIZE:])
    if host.role is not Role.HOST:
        raise WireError("enrolment", f"{host.name} is no host")
    return host, middle[:FLEET_SIZE]


class Enrolments:
    """The codes that a host has given out; `now` in seconds of a clock that does not jump."""

    def __init__(self) -> None:
        self._codes: dict[bytes, tuple[Code, _Issued]] = {}

    def issue(self, text: str, role: Role, expires_at: float, now: float) -> None:
        """Accept one member of this role with a code from `make_code`; TrustError for too many."""
        self._forget(now)
        code = read_code(text)
        if len(self._codes) >= CODES_MAX:
            raise TrustError(f"{CODES_MAX} codes are out: wait until one expires")
        self._codes[code.label] = code, _Issued(role, expires_at)

    def accept(
        self, body: bytes, roster: Roster, now: float, peer: str | None = None
    ) -> tuple[PublicIdentity, bytes]:
        """The new member and the body that answers it; WireError, after which nothing has changed.

        With `peer`, the member has the name that the bearer knows it by.

        Put the roster on disk before the answer is sent. The same member is answered again, as an
        answer may be lost; nobody else is.
        """
        self._forget(now)
        head = 1 + LABEL_SIZE
        if len(body) <= head + PROOF_SIZE or body[0] != REQUEST:
            raise WireError("length", "a request for enrolment is longer")
        found = self._codes.get(body[1:head])
        identity, proof = body[head:-PROOF_SIZE], body[-PROOF_SIZE:]
        if found is None:
            raise WireError("code", "no such code is out, or it has expired")
        code, issued = found
        if not hmac.compare_digest(proof, _proof(code, "enrol request", identity)):
            raise WireError("code", "this request was not made with the code")
        public = _identity(identity)
        if issued.used_by not in (None, public):
            raise WireError("code", "this code was used")
        if peer is not None and public.name != peer:
            raise WireError("wrong peer", f"{peer} asks in the name of {public.name}")
        if public.role is not issued.role:
            raise WireError("role", f"this code is not for a {public.role.name.lower()}")
        try:
            roster.enrol(public)
        except TrustError as error:
            raise WireError("enrolment", str(error)) from error
        issued.used_by = public
        content = roster.fleet + write_identity(roster.host)
        return public, bytes((ANSWER,)) + content + _proof(code, "enrol answer", identity, content)

    def _forget(self, now: float) -> None:
        for label, (_, issued) in tuple(self._codes.items()):
            if now >= issued.expires_at:
                del self._codes[label]


def _proof(code: Code, domain: str, *parts: bytes) -> bytes:
    return hmac.new(code.key, statement(domain, *parts), hashlib.sha256).digest()[:PROOF_SIZE]


def _identity(data: bytes) -> PublicIdentity:
    try:
        return read_identity(data)
    except TrustError as error:
        raise WireError("enrolment", str(error)) from error


def _check(entropy: bytes) -> int:
    return hashlib.sha256(b"ternmesh code" + entropy).digest()[0] >> 4


def _letters_end(letters: str, data: bytes) -> bool:
    """Whether the last letter is not the check that it should be."""
    whole = base64.b32encode(data + bytes((_check(data) << 4,))).decode()
    return whole[:_LETTERS] != letters
