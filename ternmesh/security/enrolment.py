"""Enrolment with a one-time code over the link. SPEC.md 9.6.

Enrolment: the host shows a code of 96 random bits, and an operator types it into the node. Node and
host prove to each other that they know the code, so each gets the right key of the other. These two
bodies are the only ones that an end with keys accepts under suite 0, and only while a code is
valid.

A gateway asks for the host's membership list with a request that it signs. The list is signed.
A board that gets no welcome sends the same request: the refusal tells whether the host knows it.
"""

import base64
import hashlib
import hmac
import struct
from dataclasses import dataclass, replace

from ternmesh.errors import SecurityError, WireError
from ternmesh.security.host_keys import read_host_keys, receive_identity, write_host_keys
from ternmesh.security.identity import (
    FINGERPRINT_SIZE,
    Identity,
    PublicIdentity,
    Role,
    write_identity,
)
from ternmesh.security.key_derivation import FLEET_SIZE
from ternmesh.security.membership import MemberList, MemberListState
from ternmesh.security.primitives import hkdf, statement, verify
from ternmesh.wire import control
from ternmesh.wire.frame import HEAD_SIZE, UNASSIGNED, Header, open_seal, seal_open
from ternmesh.wire.update import SIGNATURE_SIZE

REQUEST, ANSWER = 0x0C, 0x0D
LIST_REQUEST = 0x13
_NUMBER = struct.Struct("<I")
_REFUSAL_HEAD = seal_open(Header(UNASSIGNED, 0), bytes((control.KIND,)))[: HEAD_SIZE + 1]
ENTROPY_SIZE = 12
LABEL_SIZE = 4
PROOF_SIZE = 16
KEY_SIZE = 32
CODES_MAX = 64  # valid at the same time
GROUP = 5  # letters between two dashes
_TYPED = str.maketrans("01", "OI", "- ")  # accept 0 for O, 1 for I; ignore dashes and blanks
_LETTERS = 20


@dataclass(frozen=True, slots=True)
class EnrolmentCode:
    """The secrets of a one-time code."""

    key: bytes
    label: bytes  # the 4 bytes by which a request names the code


@dataclass(slots=True)
class _IssuedCode:
    code: EnrolmentCode
    role: Role
    expires_at: float
    used_by: PublicIdentity | None = None


def make_code(entropy: bytes) -> str:
    """The code to show, from 12 random bytes: four groups of five letters and digits."""
    if len(entropy) != ENTROPY_SIZE or len(set(entropy)) < ENTROPY_SIZE // 3:
        raise ValueError(f"a code is made of {ENTROPY_SIZE} random bytes")
    letters = _letters(entropy)
    return "-".join(letters[at : at + GROUP] for at in range(0, _LETTERS, GROUP))


def read_code(text: str) -> EnrolmentCode:
    """The code that an operator has typed; SecurityError for a wrong letter."""
    letters = text.upper().translate(_TYPED)
    try:
        data = base64.b32decode(letters + "====") if len(letters) == _LETTERS else b""
    except ValueError:
        data = b""
    if len(data) != ENTROPY_SIZE or _letters(data) != letters:
        raise SecurityError("this is not an enrolment code, or a letter is wrong: type it again")
    key = hkdf(data, b"", b"ternmesh enrolment", KEY_SIZE + LABEL_SIZE)
    return EnrolmentCode(key[:KEY_SIZE], key[KEY_SIZE:])


def write_request(public: PublicIdentity, code: EnrolmentCode) -> bytes:
    """The body of a node's request to be enrolled: at most 120 bytes."""
    identity = write_identity(public)
    return bytes((REQUEST,)) + code.label + identity + _proof(code, "enrol request", identity)


def read_answer(body: bytes, own: PublicIdentity, code: EnrolmentCode) -> MemberListState:
    """The fleet and its host, proved with the code; WireError."""
    middle, proof = body[1:-PROOF_SIZE], body[-PROOF_SIZE:]
    if len(body) <= 1 + FLEET_SIZE + PROOF_SIZE or body[0] != ANSWER:
        raise WireError("length", "an answer to an enrolment is too short")
    if not hmac.compare_digest(proof, _proof(code, "enrol answer", write_identity(own), middle)):
        raise WireError("enrolment", "this answer is not proved with the code")
    try:
        return MemberListState(middle[:FLEET_SIZE], read_host_keys(middle[FLEET_SIZE:]))
    except SecurityError as error:
        raise WireError("enrolment", str(error)) from error


class EnrolmentCodes:
    """The valid codes of a host; `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._codes: dict[bytes, _IssuedCode] = {}  # by label

    def issue(self, text: str, role: Role, expires_at: float, now: float) -> None:
        """Make a code from `make_code` valid for one member of this role; SecurityError."""
        self._expire(now)
        code = read_code(text)
        if len(self._codes) >= CODES_MAX:
            raise SecurityError(f"{CODES_MAX} codes are valid: wait until one expires")
        self._codes[code.label] = _IssuedCode(code, role, expires_at)

    def accept(
        self, body: bytes, member_list: MemberList, now: float, peer: str | None = None
    ) -> tuple[PublicIdentity, bytes]:
        """Enrol the sender of a request: the new member and the answering body; WireError.

        With `peer`, the member's name must be its name on the bearer. After an error nothing has
        changed. Store the member list before the answer is sent. The same member is answered again,
        as an answer may be lost; any other is refused.
        """
        self._expire(now)
        head = 1 + LABEL_SIZE
        if len(body) <= head + PROOF_SIZE or body[0] != REQUEST:
            raise WireError("length", "a request for enrolment is too short")
        issued = self._codes.get(body[1:head])
        identity, proof = body[head:-PROOF_SIZE], body[-PROOF_SIZE:]
        if issued is None:
            raise WireError("code", "there is no such code, or it has expired")
        if not hmac.compare_digest(proof, _proof(issued.code, "enrol request", identity)):
            raise WireError("code", "this request is not proved with the code")
        public = receive_identity(identity)
        if issued.used_by not in (None, public):
            raise WireError("code", "this code has been used")
        if peer is not None and public.name != peer:
            raise WireError("wrong peer", f"{peer} sent a request with the name {public.name}")
        if public.role is not issued.role:
            raise WireError("role", f"this code is not for a {public.role.name.lower()}")
        try:
            member_list.enrol(public)
        except SecurityError as error:
            raise WireError("enrolment", str(error)) from error
        issued.used_by = public
        hosts = replace(member_list.hosts, rotations=())  # the code proves the present key
        content = member_list.fleet + write_host_keys(hosts)
        proof = _proof(issued.code, "enrol answer", identity, content)
        return public, bytes((ANSWER,)) + content + proof

    def _expire(self, now: float) -> None:
        for label, issued in tuple(self._codes.items()):
            if now >= issued.expires_at:
                del self._codes[label]


def _proof(code: EnrolmentCode, domain: str, *parts: bytes) -> bytes:
    return hmac.new(code.key, statement(domain, *parts), hashlib.sha256).digest()[:PROOF_SIZE]


def _letters(entropy: bytes) -> str:
    """The letters of a code; the last one also holds a check of all others."""
    check = hashlib.sha256(b"ternmesh code" + entropy).digest()[0] & 0xF0
    return base64.b32encode(entropy + bytes((check,))).decode()[:_LETTERS]


def write_list_request(own: Identity, fleet: bytes, number: int) -> bytes:
    """The body by which a member asks for a membership list above this number: 85 bytes."""
    content = _NUMBER.pack(number) + own.public.fingerprint
    signature = own.sign(statement("list request", fleet, content))
    return bytes((LIST_REQUEST,)) + content + signature


def read_list_request(body: bytes, member_list: MemberList) -> tuple[PublicIdentity, int]:
    """The member that asks, and the number of its list; WireError."""
    content, signature = body[1:-SIGNATURE_SIZE], body[-SIGNATURE_SIZE:]
    if len(content) != _NUMBER.size + FINGERPRINT_SIZE or body[0] != LIST_REQUEST:
        raise WireError("length", "a request for the membership list has a wrong size")
    member = member_list.owner_of(content[_NUMBER.size :])
    try:
        verify(member.verify, signature, statement("list request", member_list.fleet, content))
    except WireError as error:
        raise WireError("other host", f"{member.name} does not trust this host") from error
    return member, int(_NUMBER.unpack_from(content)[0])


def refusal_in_clear(frame: bytes) -> str | None:
    """The reason in a host's refusal without a seal, which proves nothing; None: it is none."""
    if not frame.startswith(_REFUSAL_HEAD):
        return None
    message = control.read_control(open_seal(frame)[1])
    return message.reason if isinstance(message, control.Refusal) else None
