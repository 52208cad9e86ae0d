"""Control messages: small canonical CBOR arrays `[type, field, ...]`. SPEC.md section 4.3.

Only unsigned integers, byte strings, text and arrays of integers are allowed: no map, tag, float,
negative number, indefinite length, trailing byte or non-minimal header. The reader encodes what it
has decoded and compares the bytes.
"""

import hashlib
import re
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn, get_args

import cbor2

from ternmesh.errors import WireError
from ternmesh.wire.frame import NODE_MAX

KIND = 0x01
CONTROL_MAX = 1024
DEPTH_MAX = 3
# A name becomes a topic, a file and a word of a command: no dot and no dash may begin it.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\Z")
REASON = re.compile(r"[a-z -]{1,32}\Z")
SOFTWARE = re.compile(r"[A-Za-z0-9.+!_-]{1,32}\Z")
INTEGER_MAX = 0xFFFFFFFF
GATHERING, OPEN, FINISHED = range(3)  # the phases of a run
PHASES = {GATHERING: "gathering", OPEN: "open", FINISHED: "finished"}

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """A node asks to join the run, or asks for the current version of the global adapter."""

    name: str
    instance: bytes  # 8 random bytes of this process; the answer repeats them on a shared bearer
    model: bytes
    run: bytes  # the run that the node follows, 8 zeros for none
    version: int  # of the node's global adapter
    global_hash: bytes  # the hash of the global update that led to it
    samples: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The host's answer to a hello: the node's address, the run, its plan and its state."""

    instance: bytes
    address: int
    run: bytes
    version: int
    phase: int
    deadline_ms: int
    plan: Numbers


@dataclass(frozen=True, slots=True)
class Receipt:
    """The host has these chunks of an update on disk."""

    round: int
    digest: bytes  # of the update
    have: bytes  # bitmap of the chunks, low bit first


@dataclass(frozen=True, slots=True)
class Refusal:
    """The host could not use a message of a node."""

    round: int
    reason: str  # the `WireError.reason`, by which the host's status counts refusals


@dataclass(frozen=True, slots=True)
class Announce:
    """The state of the run, from the host to all nodes; a node that is behind sends a hello."""

    run: bytes
    version: int
    phase: int
    deadline_ms: int
    members: int = 0  # the number of the host's membership list


@dataclass(frozen=True, slots=True)
class Silent:
    """A node sends no update in this round; from the host: the acknowledgement of that."""

    round: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A host that is behind a node asks it for the global updates after a version."""

    address: int  # the node's, for its answer
    version: int  # of the host's global adapter


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The host asks a board for a report."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a board says of itself. `federated.management` names the numbers."""

    software: str  # its version of ternmesh
    number: int  # of the newest settings that it has taken; 0 for none
    settings: Numbers  # in force
    values: Numbers


@dataclass(frozen=True, slots=True)
class Settings:
    """What the host sets on one board, which takes a higher number only."""

    number: int
    settings: Numbers


Control = (
    Hello | Welcome | Receipt | Refusal | Announce | Silent | Wanted | Inquiry | Report | Settings
)
_TYPES: Final[tuple[type[Control], ...]] = get_args(Control)
_SIZES: Final = {
    "instance": (8, 8),
    "model": (8, 8),
    "run": (8, 8),
    "global_hash": (16, 16),
    "digest": (4, 4),
    "have": (1, 128),
}
_LIMITS: Final = {"address": (1, NODE_MAX), "phase": (GATHERING, FINISHED)}
_PATTERNS: Final = {"name": NAME, "reason": REASON, "software": SOFTWARE}
NUMBERS_MAX = 32


def renewed(instance: bytes, run: bytes) -> bytes:
    """The instance of a node after its first welcome of a run; older welcomes do not match it."""
    return hashlib.sha256(instance + run).digest()[:8]


def write_control(message: Control) -> bytes:
    values = (getattr(message, name) for name in type(message).__slots__)
    content = [_TYPES.index(type(message)), *values]
    return bytes([KIND]) + cbor2.dumps(content, canonical=True)


def read_control(body: bytes) -> Control:
    """The message in a control body; WireError unless it is a canonical encoding."""
    if body[:1] != bytes([KIND]):
        raise WireError("kind", "this kind of body does not carry a control message")
    if len(body) > CONTROL_MAX:
        raise WireError("length", f"a control message has at most {CONTROL_MAX} bytes")
    content = read_cbor(body[1:])
    if not isinstance(content, tuple) or not content or not isinstance(content[0], int):
        raise WireError("control", "a control message must be an array that begins with its type")
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
        raise WireError("control", f"a message is not valid CBOR: {error}") from error
    if not same:
        raise WireError("control", "a message is not canonical CBOR")
    _check_types(content)
    return content


def read_plain(data: bytes) -> Any:
    """A value of any types from CBOR without tags, or CBORError or ValueError."""
    # Some tags cost hours: a rational is reduced by the greatest divisor of two long numbers.
    return cbor2.loads(data, tag_hook=_refuse_tag, semantic_decoders=_NO_TAGS)


def _check_types(content: Any) -> None:
    if type(content) is tuple:
        for item in content:
            _check_types(item)
    elif type(content) is int:
        if not 0 <= content <= INTEGER_MAX:
            raise WireError("control", f"a number must be 0 to {INTEGER_MAX}")
    elif type(content) not in (bytes, str):
        raise WireError("control", f"a message must not contain a {type(content).__name__}")


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


# The library decodes some tags by itself, before the hook. These numbers cover them and the densely
# used part of the registry; the hook catches all others.
_NO_TAGS: Final = {tag: _refuse_tag for tag in (*range(1100), 43000, 55799)}
