"""Control messages: small canonical CBOR arrays `[type, field, ...]`. SPEC.md section 4.3.

Only unsigned integers, byte strings, text and arrays of integers are allowed: no map, tag, float,
negative number, indefinite length, trailing byte or longer-than-needed head. What decodes is
encoded again and must give the same bytes.
"""

import hashlib
import re
from dataclasses import astuple, dataclass, fields
from typing import Any, Final, NoReturn

import cbor2

from ternmesh.errors import WireError
from ternmesh.wire.seal import NODE_MAX

KIND = 0x01
CONTROL_MAX = 1024
DEPTH_MAX = 3
NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z")
REASON = re.compile(r"[a-z -]{1,32}\Z")
INTEGER_MAX = 0xFFFFFFFF
GATHERING, OPEN, FINISHED = 0, 1, 2
PHASES = {GATHERING: "gathering", OPEN: "open", FINISHED: "finished"}

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """A node asks to take part, or to be brought up to date: who it is and what it holds.

    `instance` (8 random bytes of this process) finds the answer on a shared bearer; `run` is the
    run that it knows (8 zeros for none); `version` and `reference` are the reference that it holds.
    """

    name: str
    instance: bytes
    model: bytes
    run: bytes
    version: int
    reference: bytes
    samples: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The host's answer to a hello: the node's context, the run, its plan and where it stands."""

    instance: bytes
    context: int
    run: bytes
    version: int
    phase: int
    deadline_ms: int
    plan: Numbers


@dataclass(frozen=True, slots=True)
class Receipt:
    """The host holds these shares of a packet on disk; `have` is a bitmap, low bit first."""

    round: int
    digest: bytes
    have: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """The host could not use what a node sent; `reason` is the word that its status counts by."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Where the run stands, from the host to all: whoever is behind says hello."""

    run: bytes
    version: int
    phase: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Silent:
    """A node has too little to say for a packet in this round; from the host: it knows that."""

    round: int


Control = Hello | Welcome | Receipt | Refusal | Announce | Silent
_TYPES: Final[tuple[type[Control], ...]] = (Hello, Welcome, Receipt, Refusal, Announce, Silent)
_SIZES: Final = {
    "instance": (8, 8),
    "model": (8, 8),
    "run": (8, 8),
    "reference": (16, 16),
    "digest": (4, 4),
    "have": (1, 128),
}
_LIMITS: Final = {"context": (1, NODE_MAX), "phase": (GATHERING, FINISHED)}
_PATTERNS: Final = {"name": NAME, "reason": REASON}
NUMBERS_MAX = 32


def renewed(instance: bytes, run: bytes) -> bytes:
    """The instance of a node from its first welcome of a run on: no older welcome has it."""
    return hashlib.sha256(instance + run).digest()[:8]


def write_control(message: Control) -> bytes:
    """The body of a control message."""
    content = [_TYPES.index(type(message)), *astuple(message)]
    return bytes([KIND]) + cbor2.dumps(content, canonical=True)


def read_control(body: bytes) -> Control:
    """The message of a control body; WireError for anything but its canonical encoding."""
    if body[:1] != bytes([KIND]):
        raise WireError("kind", "not the kind of body that carries a control message")
    if len(body) > CONTROL_MAX:
        raise WireError("length", f"a control message has at most {CONTROL_MAX} bytes")
    content = read_cbor(body[1:])
    if not isinstance(content, tuple) or not content or not isinstance(content[0], int):
        raise WireError("control", "a control message is an array that begins with its type")
    if content[0] >= len(_TYPES):
        raise WireError("control", f"{content[0]} is not a type of control message")
    kind = _TYPES[content[0]]
    if len(content) != 1 + len(fields(kind)):
        raise WireError("control", f"a {kind.__name__} has {len(fields(kind))} fields")
    for field, value in zip(fields(kind), content[1:], strict=True):
        _check_field(field.name, field.type, value)
    return kind(*content[1:])


def read_cbor(data: bytes) -> Any:
    """A value of integers, bytes, text and tuples from canonical CBOR, or WireError."""
    try:
        content = cbor2.loads(
            data,
            tag_hook=_refuse_tag,
            semantic_decoders=_NO_TAGS,
            max_depth=DEPTH_MAX,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
            immutable=True,
        )
        same = cbor2.dumps(content, canonical=True) == data
    except (cbor2.CBORError, ValueError, TypeError, OverflowError) as error:
        raise WireError("control", f"not CBOR of a message: {error}") from error
    if not same:
        raise WireError("control", "CBOR is not in its canonical encoding")
    _check_types(content)
    return content


def _check_types(content: Any) -> None:
    if type(content) is tuple:
        for item in content:
            _check_types(item)
    elif type(content) is int:
        if not 0 <= content <= INTEGER_MAX:
            raise WireError("control", f"a number is 0 to {INTEGER_MAX}")
    elif type(content) not in (bytes, str):
        raise WireError("control", f"{type(content).__name__} does not belong in a message")


def _check_field(name: str, kind: object, value: Any) -> None:
    if kind is int:
        low, high = _LIMITS.get(name, (0, INTEGER_MAX))
        good = type(value) is int and low <= value <= high
    elif kind is str:
        good = type(value) is str and _PATTERNS[name].match(value) is not None
    elif kind is bytes:
        low, high = _SIZES[name]
        good = type(value) is bytes and low <= len(value) <= high
    else:
        good = type(value) is tuple and len(value) <= NUMBERS_MAX
        good = good and all(type(number) is int for number in value)
    if not good:
        raise WireError("control", f"the field {name} of a control message is out of range")


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("tags are not allowed")


# Every tag that the library would otherwise decode by itself, and everything up to the registry's
# densely used part: the hook catches the rest.
_NO_TAGS: Final = {tag: _refuse_tag for tag in (*range(1100), 43000, 55799)}
