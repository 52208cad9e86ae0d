"""The seal around every frame: 6 bytes of header, the body, 8 bytes of tag. SPEC.md section 3.

Suite 0 ("open") fills the tag with a truncated SHA-256: it finds damage and authenticates nobody.
Suites 1 and 2 do, in the same bytes: `ternmesh.security.keyed_sealing`.
"""

import hashlib
import struct
from dataclasses import dataclass

from ternmesh.errors import SealError, WireError

VERSION = 1
SUITE_OPEN = 0
_HEAD = struct.Struct("<BH3s")
HEAD_SIZE, TAG_SIZE = _HEAD.size, 8
FRAME_OVERHEAD = HEAD_SIZE + TAG_SIZE
SEALED_MIN, FRAME_MAX = FRAME_OVERHEAD + 1, 4096  # bytes of a frame
BODY_MAX = FRAME_MAX - FRAME_OVERHEAD
UNASSIGNED = 0x0000  # the address before a node has one
BROADCAST = 0xFFFF  # host to every node
DOWN = 0x8000  # set in the address from the host to one node
NODE_MAX = 0x7FFE
COUNTER_BITS = 24


@dataclass(frozen=True, slots=True)
class Header:
    """The fields before the body.

    `address` names the ends between which the frame travels; fleet and sender are in the key
    (SPEC.md section 9.2). `key_phase` is the low bit of the epoch; `counter` is the low 24 bits of
    the sender's 64.
    """

    address: int
    counter: int
    suite: int = SUITE_OPEN
    key_phase: int = 0


def write_header(header: Header) -> bytes:
    """The 6 bytes before the body; of a longer counter the low 24 bits."""
    first = VERSION << 5 | header.suite << 2 | header.key_phase << 1
    counter = (header.counter & ((1 << COUNTER_BITS) - 1)).to_bytes(3, "little")
    return _HEAD.pack(first, header.address, counter)


def read_header(frame: bytes, suite: int) -> Header:
    """The header of a frame of this suite, not authenticated; WireError for any other frame."""
    if (other := suite_of(frame)) != suite:
        raise WireError("suite", f"seal suite {other} is not in use here")
    first, address, counter = _HEAD.unpack_from(frame)
    return Header(address, int.from_bytes(counter, "little"), suite, first >> 1 & 1)


def seal_open(header: Header, body: bytes) -> bytes:
    """The frame of suite 0 that carries `body`: header, body, checksum."""
    frame = write_header(header) + body
    return frame + _tag(frame)


def suite_of(frame: bytes) -> int:
    """The suite in a frame's header, not authenticated; WireError for what is no frame."""
    if not SEALED_MIN <= len(frame) <= FRAME_MAX:
        raise WireError("length", f"a frame is of {SEALED_MIN} to {FRAME_MAX} bytes")
    if frame[0] >> 5 != VERSION or frame[0] & 1:
        raise WireError("version", f"this frame is of wire version {frame[0] >> 5}, not {VERSION}")
    return frame[0] >> 2 & 0x07


def open_seal(frame: bytes) -> tuple[Header, bytes]:
    """Header and body of a frame of suite 0; SealError for a wrong tag, else WireError."""
    header = read_header(frame, SUITE_OPEN)
    content, tag = frame[:-TAG_SIZE], frame[-TAG_SIZE:]
    if tag != _tag(content):
        raise SealError("seal", "the tag does not match: the frame was damaged or forged")
    return header, content[HEAD_SIZE:]


def _tag(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:TAG_SIZE]
