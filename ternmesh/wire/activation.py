"""Activations and their gradients between a board and a split host, in few bits a number.

SPEC.md section 10.1. Each sample is coded alone: its own scale, then its numbers as multiples of
that scale. A body that is longer than a frame travels in fragments.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError

KIND = 0x11
LEARN, ASK, ANSWER, GRADIENT = range(4)  # the legs of `Activation`
BITS = (2, 3, 4, 5, 6, 7, 8, 32)
WHOLE = 32  # bits of a number that is sent as float32
SAMPLES_MAX = 255
WIDTH_MAX = 0xFFFF
_HEAD = struct.Struct("<BBIBBH")
HEAD_SIZE = _HEAD.size
_SCALE_SIZE = 2
_INFINITY = 0x7F80  # infinity as bfloat16: this code and larger ones are not scales
_TINY = np.float32(2.0**-100)  # a smaller scale becomes zero
_TINY_CODE = 0x0D80  # `_TINY` as bfloat16

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Activation:
    """The activations or gradients of one micro-batch."""

    leg: int  # up to learn from, up to be answered only, down as that answer, down as gradient
    number: int  # of the micro-batch
    values: Values  # [samples, width]
    labels: bytes = b""  # one class for each sample; only on the leg LEARN


def body_size(samples: int, width: int, bits: int, labels: int = 0) -> int:
    """The length of a body in bytes."""
    row = 4 * width if bits == WHOLE else _SCALE_SIZE + -(-width * bits // 8)
    return HEAD_SIZE + samples * row + labels


def write_activation(item: Activation, bits: int) -> bytes:
    """The body; CodecError for values that are not finite, ValueError for a wrong shape."""
    samples, width = item.values.shape
    if not 0 < samples <= SAMPLES_MAX or not 0 < width <= WIDTH_MAX or bits not in BITS:
        raise ValueError(f"a body cannot hold {samples} samples of {width} numbers of {bits} bits")
    if not np.isfinite(item.values).all():
        raise CodecError("an activation or gradient is not finite: the training has diverged")
    head = _HEAD.pack(KIND, item.leg, item.number, bits, samples, width)
    whole = bits == WHOLE
    data = item.values.astype("<f4").tobytes() if whole else _encode(item.values, bits)
    return head + data + item.labels


def read_activation(body: bytes) -> Activation:
    """The activation in a body; WireError."""
    if len(body) < HEAD_SIZE or body[0] != KIND:
        raise WireError("length", "an activation is shorter than its header")
    _, leg, number, bits, samples, width = _HEAD.unpack_from(body)
    if leg > GRADIENT or bits not in BITS or not samples or not width:
        raise WireError("shape", "a field of an activation's header is out of range")
    size = body_size(samples, width, bits)
    labels = body[size:]
    if len(body) < size or len(labels) != (samples if leg == LEARN else 0):
        raise WireError("length", "an activation's length does not fit its header")
    data = body[HEAD_SIZE:size]
    if bits == WHOLE:
        values = np.frombuffer(data, "<f4").reshape(samples, width).astype(np.float32)
    else:
        values = _decode(data, samples, width, bits)
    if not np.isfinite(values).all():
        raise WireError("payload", "an activation contains a number that is not finite")
    return Activation(leg, number, values, labels)


def _encode(values: Values, bits: int) -> bytes:
    most = (1 << (bits - 1)) - 1
    largest = np.abs(values).max(axis=1) / np.float32(most)
    codes = _to_bfloat16(np.where(largest < _TINY, np.float32(0), largest))
    scales = _to_float(codes)[:, None]
    steps = np.rint(np.divide(values, scales, where=scales > 0, out=np.zeros_like(values)))
    whole = (np.clip(steps, -most, most) + most).astype(np.uint8)
    stream = (whole[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
    packed = np.packbits(stream.reshape(len(values), -1), axis=1, bitorder="little")
    return codes.astype("<u2").tobytes() + packed.tobytes()


def _decode(data: bytes, samples: int, width: int, bits: int) -> Values:
    codes = np.frombuffer(data, "<u2", samples)
    if (codes >= _INFINITY).any() or (codes - 1 < _TINY_CODE - 1).any():
        raise WireError("payload", "an activation's scale is not finite, or is too small")
    packed = np.frombuffer(data, np.uint8, offset=_SCALE_SIZE * samples).reshape(samples, -1)
    stream = np.unpackbits(packed, axis=1, bitorder="little")
    if stream[:, width * bits :].any():
        raise WireError("payload", "an activation's padding is not zero")
    parts = stream[:, : width * bits].reshape(samples, width, bits)
    whole = (parts << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.int16)
    most = (1 << (bits - 1)) - 1
    steps = whole - most
    if (np.abs(steps).max(axis=1) != np.where(codes > 0, most, 0)).any():
        raise WireError(
            "payload", "an activation's largest number does not reach its scale's range"
        )
    with np.errstate(over="ignore"):  # an overflow is refused as not finite
        values: Values = steps.astype(np.float32) * _to_float(codes)[:, None]
    return values


def _to_bfloat16(values: Values) -> NDArray[np.uint16]:
    """The nearest bfloat16 of non-negative finite numbers, ties to even, below infinity."""
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (words + 0x7FFF + ((words >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    codes: NDArray[np.uint16] = np.minimum(rounded, _INFINITY - 1).astype(np.uint16)
    return codes


def _to_float(codes: NDArray[np.uint16]) -> Values:
    return (codes.astype(np.uint32) << 16).view(np.float32)
