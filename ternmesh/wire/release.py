"""The bodies of a release on its way over the links: offer, symbol, status. SPEC.md section 6.12.

Offer and symbols are broadcast; the host signs the offer. Each board answers for itself.
"""

import struct
from dataclasses import astuple, dataclass, fields
from typing import Final

import cbor2

from ternmesh.errors import WireError
from ternmesh.wire.control import INTEGER_MAX, NAME, read_cbor
from ternmesh.wire.frame import FRAME_OVERHEAD

OFFER, SYMBOL, STATUS = 0x16, 0x17, 0x18
DIGEST_SIZE = 32
ON_TRIAL, ACTIVE, WITHDRAWN = range(3)  # the stages of a release
STAGES: Final = ("on trial", "active", "withdrawn")
NOBODY, INCOMPLETE, EVERYBODY = range(3)  # who answers an offer
PLACES = 1 << 16  # of boards, of which the first try a release
# What a board says of a release
RECEIVING, HELD, GOOD, BAD, RUNNING, REFUSED = range(6)
STATES: Final = ("receiving", "held", "tried good", "tried bad", "running", "refused")
REASON_MAX = 100  # bytes
GENERATIONS_MAX = 32
_SYMBOL = struct.Struct("<B2sH")
_STATUS = struct.Struct("<B4sB")
SYMBOL_OVERHEAD = FRAME_OVERHEAD + _SYMBOL.size  # bytes of a frame around a symbol
_LIMITS: Final = {"stage": WITHDRAWN, "tries": PLACES, "asked": EVERYBODY}


@dataclass(frozen=True, slots=True)
class ReleaseOffer:
    """The host has a release for all boards that run the model `name`."""

    digest: bytes  # SHA-256 of the object
    size: int
    symbol_bytes: int
    name: str
    version: int
    number: int  # rises with each change by the host
    stage: int
    tries: int  # boards with a place below it try the release
    asked: int
    spread_ms: int  # over which the answers are spread


@dataclass(frozen=True, slots=True)
class ReleaseSymbol:
    """One symbol of the object whose digest begins with `tag`."""

    tag: bytes
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReleaseStatus:
    """How far one board is. Only RECEIVING has needs (by generation), BAD and REFUSED a reason."""

    name: bytes  # the first 4 bytes of the digest
    state: int
    needs: tuple[int, ...] = ()
    reason: str = ""


def write_offer(offer: ReleaseOffer) -> bytes:
    """The body of an offer, which is signed."""
    return bytes((OFFER,)) + cbor2.dumps(list(astuple(offer)), canonical=True)


def read_offer(body: bytes) -> ReleaseOffer:
    """The offer in a body; WireError."""
    content = read_cbor(body[1:])
    kinds = [field.type for field in fields(ReleaseOffer)]
    if type(content) is not tuple or [type(value) for value in content] != kinds:
        raise WireError("release", "this is not an offer of a release")
    offer = ReleaseOffer(*content)
    is_named = len(offer.digest) == DIGEST_SIZE and NAME.match(offer.name) is not None
    fits = all(getattr(offer, name) <= most for name, most in _LIMITS.items())
    if not (is_named and fits and offer.version and 0 < offer.size <= INTEGER_MAX):
        raise WireError("release", "a field of a release's offer is out of range")
    return offer


def write_symbol(symbol: ReleaseSymbol) -> bytes:
    return _SYMBOL.pack(SYMBOL, symbol.tag, symbol.index) + symbol.data


def read_symbol(body: bytes) -> ReleaseSymbol:
    """The symbol in a body; WireError."""
    if len(body) <= _SYMBOL.size:
        raise WireError("release", "a symbol of a release is shorter than its head")
    _, tag, index = _SYMBOL.unpack_from(body)
    return ReleaseSymbol(tag, index, body[_SYMBOL.size :])


def write_status(status: ReleaseStatus) -> bytes:
    """The body of a status; a long reason is cut."""
    needs = struct.pack(f"<{len(status.needs)}H", *status.needs)
    reason = status.reason.encode("ascii", "replace")[:REASON_MAX]
    return _STATUS.pack(STATUS, status.name, status.state) + needs + reason


def read_status(body: bytes) -> ReleaseStatus:
    """The status in a body; WireError."""
    tail = body[_STATUS.size :]
    if len(body) < _STATUS.size or body[5] > REFUSED or len(tail) > REASON_MAX:
        raise WireError("release", "this is not a status of a release")
    _, name, state = _STATUS.unpack_from(body)
    if state == RECEIVING and len(tail) % 2 == 0 and 0 < len(tail) <= 2 * GENERATIONS_MAX:
        return ReleaseStatus(name, state, struct.unpack(f"<{len(tail) // 2}H", tail))
    is_text = tail.isascii() and tail.decode("ascii").isprintable()
    if state == RECEIVING or not is_text or (tail and state not in (BAD, REFUSED)):
        raise WireError("release", "a status of a release has a wrong end")
    return ReleaseStatus(name, state, reason=tail.decode("ascii"))
