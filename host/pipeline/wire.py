"""The bytes of messages between ranks: a header, then the body. Nothing in them is code.

A header is checked before anything of its length is allocated.
"""

import json
import socket
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from ternmesh.errors import TernmeshError

MAGIC = b"TMP2"
_HEAD = struct.Struct("!4sBIQ")  # magic, kind, number, bytes of the body
HEAD_SIZE = _HEAD.size


class Kind(IntEnum):
    """What a message is. A rank knows which kind comes next."""

    HELLO = 1  # the first one on a connection: who calls whom, what for
    ANSWER = 2  # to a hello: empty, or why not
    FORWARD = 3  # the payload of micro-batch `number`
    BACK = 4  # its gradient
    NOTE = 5  # JSON: settings, norms, figures
    NUMBERS = 6  # raw numbers: a basis, a Gram matrix, an update of a replica
    REFUSAL = 7  # why all ranks end
    FILLING = 8  # zeros: what fills a link before it is used


HELLO_MAX = 4096
FILLING_SIZE = 1 << 20  # two of them fill a link of 80 Mbit/s and 50 ms
LIMITS: Mapping[Kind, int] = {
    Kind.HELLO: HELLO_MAX,
    Kind.ANSWER: HELLO_MAX,
    Kind.NOTE: 1 << 24,
    Kind.NUMBERS: 1 << 30,
    Kind.REFUSAL: 1 << 16,
    Kind.FILLING: FILLING_SIZE,
}


class LinkError(TernmeshError):
    """A peer is gone or sends what cannot be used. Ranks that are started again may go on."""


def write_head(kind: Kind, number: int, size: int) -> bytes:
    """The header of a message with a body of `size` bytes.

    >>> from host.pipeline.wire import Kind, read_head, write_head
    >>> read_head(write_head(Kind.FORWARD, 3, 100), {Kind.FORWARD: 100})[1:]
    (3, 100)
    """
    return _HEAD.pack(MAGIC, kind, number, size)


def read_head(
    head: bytes | bytearray | memoryview, exact: Mapping[Kind, int]
) -> tuple[Kind, int, int]:
    """Kind, number and size of the body; LinkError where it is not in `exact` or `LIMITS`."""
    magic, kind, number, size = _HEAD.unpack(head)
    if magic != MAGIC:
        raise LinkError(f"bytes that are no message of this version ({bytes(head[:8]).hex(' ')})")
    if kind not in exact and kind not in LIMITS:
        raise LinkError(f"a message of kind {kind}, which cannot come here")
    wanted = exact.get(Kind(kind))
    if size > LIMITS.get(Kind(kind), size) or (wanted is not None and size != wanted):
        allowed = f"exactly {wanted}" if wanted is not None else f"at most {LIMITS[Kind(kind)]}"
        raise LinkError(
            f"a {Kind(kind).name.lower()} of {size} bytes, and {allowed} are allowed: start all "
            "ranks with the same configuration"
        )
    return Kind(kind), number, size


def write_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def read_json(data: bytes) -> Any:
    """The value in JSON; LinkError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LinkError("a note that is not JSON") from error


def receive(connection: socket.socket, view: bytearray | memoryview) -> bytearray | memoryview:
    """`view`, filled from a socket; OSError where its peer is gone."""
    rest = memoryview(view)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionResetError("its end of the connection is closed")
        rest = rest[count:]
    return view
