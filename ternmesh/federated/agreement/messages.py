"""What voters say: signed canonical CBOR arrays `[type, voter, field, ..., signature]`.

SPEC.md section 13.2. Reader and writer are side by side, with the same limits as control messages.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar, get_args

import cbor2

from ternmesh.errors import WireError
from ternmesh.federated.agreement.voters import VOTERS_MAX, Voters
from ternmesh.wire.control import INTEGER_MAX, read_cbor

DIGEST_SIZE = 32
SIGNATURE_SIZE = 64
NONCE_SIZE = 8
MESSAGE_MAX = 4082  # of a body
POSITION_MAX = INTEGER_MAX - 1  # of a term or version: the next one is a number, too

Sign = Callable[[bytes], bytes]
Verify = Callable[[int, bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class QuorumCertificate:
    """A quorum of signatures of one vote (`Prepare` or `Commit`), in the order of the voters."""

    term: int
    version: int
    digest: bytes
    signers: tuple[int, ...]
    signatures: bytes  # 64 bytes of each signer


@dataclass(frozen=True, slots=True)
class Propose:
    """The leader of a term proposes a digest; a proof shows that an earlier term prepared it."""

    voter: int
    term: int
    version: int
    digest: bytes
    previous: bytes  # the digest decided before
    proof: QuorumCertificate | None


@dataclass(frozen=True, slots=True)
class Prepare:
    """A voter finds the proposal valid."""

    voter: int
    term: int
    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """A voter has seen a quorum of prepares, and is locked on the digest."""

    voter: int
    term: int
    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Suspect:
    """A voter would leave the term; this binds it to nothing."""

    voter: int
    term: int


@dataclass(frozen=True, slots=True)
class NewTerm:
    """A voter has entered the term, and signs nothing in a lower one any more."""

    voter: int
    term: int
    decided: int  # the newest version that it knows to be decided
    lock: QuorumCertificate | None  # prepares of the version after that


@dataclass(frozen=True, slots=True)
class DecisionWanted:
    """A voter has not seen the decision of a version."""

    voter: int
    version: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision, proved by a quorum of commits."""

    voter: int
    proof: QuorumCertificate


@dataclass(frozen=True, slots=True)
class Alive:
    """The leader of a term has nothing to propose; `decided` is its newest version."""

    voter: int
    term: int
    decided: int


@dataclass(frozen=True, slots=True)
class StartQuestion:
    """A voter starts, and asks the others what it may have signed before."""

    voter: int
    nonce: bytes  # of this start; answers repeat it


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """Where a voter is, and what it knows of the voter that asks."""

    voter: int
    asker: int
    nonce: bytes
    term: int  # with `version`: the newest place at which the sender has signed
    version: int
    decided: QuorumCertificate | None  # commits of its newest decision
    lock: QuorumCertificate | None  # prepares of the version after that
    seen: bytes  # the asker's newest vote that has arrived; empty for none


Vote = Propose | Prepare | Commit
Message = Vote | Suspect | NewTerm | DecisionWanted | Decision | Alive | StartQuestion | StartAnswer
VOTES: Final[tuple[type[Vote], ...]] = get_args(Vote)
_TYPES: Final[tuple[type[Message], ...]] = get_args(Message)
_FIELDS: Final = {kind: fields(kind) for kind in (*_TYPES, QuorumCertificate)}
M = TypeVar("M", bound=Message)
_LIMITS: Final = {"voter": VOTERS_MAX - 1, "asker": VOTERS_MAX - 1}
_SIZES: Final = {"nonce": (NONCE_SIZE, NONCE_SIZE), "seen": (0, MESSAGE_MAX // 2)}


@dataclass(frozen=True, slots=True)
class Signed(Generic[M]):
    """A message and its bytes, the signature at their end."""

    message: M
    signature: bytes
    data: bytes


def statement_of(voters: Voters, message: Message) -> bytes:
    """What a voter signs: domain, run and list of voters, then the message as it travels."""
    return voters.statement_start + _encode(_plain(message))


def sign_message(voters: Voters, message: M, sign: Sign) -> Signed[M]:
    signature = sign(statement_of(voters, message))
    return Signed(message, signature, _encode([*_plain(message), signature]))


def read_message(data: bytes) -> Signed[Message]:
    """The message in these bytes, its signatures not yet checked. Raises WireError."""
    if len(data) > MESSAGE_MAX:
        raise WireError("length", f"a voter's message has at most {MESSAGE_MAX} bytes")
    content = read_cbor(data)
    if type(content) is not tuple or not content or type(content[0]) is not int:
        raise WireError("agreement", "a voter's message must be an array that begins with its type")
    if content[0] >= len(_TYPES):
        raise WireError("agreement", f"{content[0]} is not a type of a voter's message")
    signature = content[-1]
    if type(signature) is not bytes or len(signature) != SIGNATURE_SIZE:
        raise WireError("agreement", "a voter's message ends with its signature of 64 bytes")
    message: Any = _parse(_TYPES[content[0]], content[1:-1])
    return Signed(message, signature, data)


def check_message(voters: Voters, signed: Signed[Any], verify: Verify) -> None:
    """Check who has signed a message. Raises WireError."""
    voter = signed.message.voter
    if voter >= voters.count:
        raise WireError("agreement", f"there is no voter {voter}")
    if not verify(voter, statement_of(voters, signed.message), signed.signature):
        raise WireError("signature", f"this message is not signed by voter {voter}")


def check_certificate(
    voters: Voters, kind: type[Prepare | Commit], proof: QuorumCertificate, verify: Verify
) -> None:
    """Check that a quorum has signed this vote. Raises WireError."""
    if len(proof.signers) < voters.quorum or proof.signers[-1] >= voters.count:
        raise WireError("agreement", "a certificate has not the signatures of a quorum")
    for place, voter in enumerate(proof.signers):
        vote = kind(voter, proof.term, proof.version, proof.digest)
        signature = proof.signatures[SIGNATURE_SIZE * place : SIGNATURE_SIZE * (place + 1)]
        if not verify(voter, statement_of(voters, vote), signature):
            raise WireError("signature", f"a certificate has a wrong signature of voter {voter}")


def plain_certificate(proof: QuorumCertificate | None) -> tuple[Any, ...]:
    """A certificate as it travels; an empty array for none."""
    return () if proof is None else tuple(_values(proof))


def parse_certificate(content: Any) -> QuorumCertificate | None:
    """The inverse of `plain_certificate`. Raises WireError."""
    if content == ():
        return None
    proof: QuorumCertificate = _parse(QuorumCertificate, content)
    signers = proof.signers
    is_rising = all(low < high for low, high in pairwise(signers))
    is_whole = len(proof.signatures) == SIGNATURE_SIZE * len(signers) > 0
    if not (is_rising and is_whole and proof.version):
        raise WireError("agreement", "a certificate has a field out of range")
    return proof


def _encode(content: list[Any]) -> bytes:
    return cbor2.dumps(content, canonical=True)


def _plain(message: Message) -> list[Any]:
    return [
        _TYPES.index(type(message)),
        *(
            plain_certificate(value) if value is None or type(value) is QuorumCertificate else value
            for value in _values(message)
        ),
    ]


def _values(item: Message | QuorumCertificate) -> list[Any]:
    return [getattr(item, field.name) for field in _FIELDS[type(item)]]


def _parse(kind: type[Any], content: Any) -> Any:
    expected = _FIELDS[kind]
    if type(content) is not tuple or len(content) != len(expected):
        raise WireError("agreement", f"a {kind.__name__} has {len(expected)} fields")
    return kind(
        *(
            _field(field.name, field.type, value)
            for field, value in zip(expected, content, strict=True)
        )
    )


def _field(name: str, kind: object, value: Any) -> Any:
    if kind is int:
        good = type(value) is int and value <= _LIMITS.get(name, POSITION_MAX)
    elif kind is bytes:
        low, high = _SIZES.get(name, (DIGEST_SIZE, DIGEST_SIZE))
        if name == "signatures":
            low, high = 0, SIGNATURE_SIZE * VOTERS_MAX
        good = type(value) is bytes and low <= len(value) <= high
    elif kind == tuple[int, ...]:
        good = type(value) is tuple and len(value) <= VOTERS_MAX
        good = good and all(type(number) is int for number in value)
    else:
        certificate = parse_certificate(value)
        if certificate is None and kind is QuorumCertificate:
            raise WireError("agreement", f"a voter's message lacks its {name}")
        return certificate
    if not good:
        raise WireError("agreement", f"the field {name} of a voter's message is out of range")
    return value
