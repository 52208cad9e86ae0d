"""The body of a part of a knowledge packet. SPEC.md section 12.1.

A packet tells a model of any architecture to which class another one counts each sample of a probe
set that both own.
Each part is signed and complete in itself: any subset of a packet's parts is of use.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec.permutation import permute
from ternmesh.errors import CodecError, WireError
from ternmesh.generator import derive_key
from ternmesh.types import Places

KIND = 0x19
NUMBER_END = 1 << 16
HASH_SIZE = 8
QUALITY_MAX = 255  # stands for an accuracy of 1
PROBE_MAX = 1 << 16  # samples
ROWS_MAX = 4096  # of one part
CLASSES_MAX = 65_535
_HEAD = struct.Struct("<BHQQBHH")
HEAD_SIZE = _HEAD.size

Array = NDArray[Any]
Labels = NDArray[np.int64]
"""The class of each sample, int64 [samples]."""


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


def read_labels(part: Part, classes: int) -> Labels:
    """The class of each row of a part, all below `classes`; WireError."""
    width = _label_bits(classes)
    used = part.count * width
    if len(part.data) != -(-used // 8):
        raise WireError("coding", "the labels of a knowledge packet have another length")
    bits = np.unpackbits(np.frombuffer(part.data, dtype=np.uint8))
    labels: Labels = bits[:used].reshape(part.count, width) @ _powers(width)
    if bits[used:].any() or labels.max() >= classes:
        raise WireError("coding", "a label is no class, or bits after the last label are set")
    return labels


def cut_labels(
    topic: Topic, number: int, quality: int, labels: Labels, classes: int, body_max: int
) -> list[Part]:
    """The parts that carry the class of each sample of the probe set; CodecError.

    `body_max` is the length of a body in bytes, without a signature.
    """
    if not 0 < len(labels) < PROBE_MAX or not 0 < classes <= CLASSES_MAX:
        raise CodecError(f"a knowledge packet is about 1 to {PROBE_MAX - 1} samples")
    width = _label_bits(classes)
    most = min(ROWS_MAX, (body_max - HEAD_SIZE) * 8 // width)
    if most < 1:
        raise CodecError(f"one label of a knowledge packet does not fit {body_max} bytes")
    placed = labels[order(topic, number, len(labels))]
    parts = []
    for start in range(0, len(placed), most):
        rows = placed[start : start + most]
        bits = (rows[:, None] & _powers(width)) > 0
        data = np.packbits(bits).tobytes()
        parts.append(Part(number, topic, quality, start, len(rows), data))
    return parts


def _label_bits(classes: int) -> int:
    return max(1, (classes - 1).bit_length())


def _powers(width: int) -> NDArray[np.int64]:
    """What each bit of a label is worth, the most significant first."""
    return 1 << np.arange(width, dtype=np.int64)[::-1]
