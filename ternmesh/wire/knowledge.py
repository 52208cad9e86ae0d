"""The body of a part of a knowledge packet. SPEC.md section 12.1.

A packet teaches a model of any architecture what another one knows of a probe set that both own.
Each part is signed and complete in itself: any subset of a packet's parts is of use.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec import soft_labels
from ternmesh.codec.permutation import permute
from ternmesh.codec.soft_labels import ROWS_MAX, Units
from ternmesh.errors import CodecError, WireError
from ternmesh.generator import derive_key
from ternmesh.types import Places

KIND = 0x19
NUMBER_END = 1 << 16
HASH_SIZE = 8
QUALITY_MAX = 255  # stands for an accuracy of 1
PROBE_MAX = 1 << 16  # samples
_HEAD = struct.Struct("<BHQQBHH")
HEAD_SIZE = _HEAD.size

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Topic:
    """What a packet is about: the first 8 bytes of two hashes, as integers."""

    probe: int
    labels: int


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `start` to `start + count` of a packet, in its order."""

    number: int  # rises by one with each packet, modulo 2**16
    topic: Topic
    quality: int  # the teacher's accuracy on samples that it was not trained on, 0 to 255
    start: int
    count: int
    data: bytes


def topic_of(probe: Mapping[str, Array], labels: Sequence[str]) -> Topic:
    """The topic of a probe set, its input arrays by name, and the names of the classes.

    Names only order the arrays: another model may call its inputs differently.
    """
    digest = hashlib.sha256()
    for _, array in sorted(probe.items()):
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{array.dtype.name} {array.shape}\n".encode() + little.tobytes())
    classes = hashlib.sha256("\n".join(labels).encode())
    return Topic(*(int.from_bytes(h.digest()[:HASH_SIZE], "little") for h in (digest, classes)))


def order(topic: Topic, number: int, rows: int) -> Places:
    """The sample at each place of a packet, int64 [rows]: any part is an even choice of them."""
    parts = (topic.probe.to_bytes(HASH_SIZE, "little"), number.to_bytes(2, "little"))
    return permute(derive_key("knowledge", *parts), np.arange(rows, dtype=np.uint32), rows)


def write_part(part: Part) -> bytes:
    """The body of a part."""
    topic, rows = part.topic, (part.start, part.count)
    numbers = (part.number, topic.probe, topic.labels, part.quality, *rows)
    return _HEAD.pack(KIND, *numbers) + part.data


def read_part(body: bytes) -> Part:
    """The part in a body, whose data is not decoded yet; WireError."""
    if len(body) <= HEAD_SIZE:
        raise WireError("length", "a part of a knowledge packet is shorter than its head")
    _, number, probe, labels, quality, start, count = _HEAD.unpack_from(body)
    if not 0 < count <= ROWS_MAX or start + count > PROBE_MAX:
        raise WireError("knowledge", "a field of a part of a knowledge packet is out of range")
    topic = Topic(probe, labels)
    return Part(number, topic, quality, start, count, body[HEAD_SIZE:])


def labels_in(part: Part, classes: int) -> Units:
    """The soft labels of a part, uint8 [count, classes]; WireError."""
    return soft_labels.decode(part.data, part.count, classes)


def cut_labels(topic: Topic, number: int, quality: int, units: Units, body_max: int) -> list[Part]:
    """The parts that carry soft labels of the probe set (uint8 [samples, classes]); CodecError.

    `body_max` is the length of a body in bytes, without a signature.
    """
    if not 0 < len(units) < PROBE_MAX or body_max <= HEAD_SIZE:
        raise CodecError(f"a knowledge packet is about 1 to {PROBE_MAX - 1} samples")
    placed = units[order(topic, number, len(units))]
    bits_min = max(1.0, np.log2(units.shape[1]))
    rows_most = min(ROWS_MAX, int((body_max - HEAD_SIZE) * 8 / bits_min) + 1)
    parts: list[Part] = []
    start = 0
    while start < len(placed):  # as many rows as fit, by bisection
        fits, most = 0, min(rows_most, len(placed) - start)
        data = b""
        while fits < most:
            count = (fits + most + 1) // 2
            tried = soft_labels.encode(placed[start : start + count])
            if HEAD_SIZE + len(tried) <= body_max:
                fits, data = count, tried
            else:
                most = count - 1
        if not fits:
            raise CodecError(f"one row of a knowledge packet does not fit {body_max} bytes")
        parts.append(Part(number, topic, quality, start, fits, data))
        start += fits
    return parts
