"""A float vector to slices and back: the codec as one line of small stages.

permute -> cut into slices of `span` coordinates -> keep the largest of each slice as -1 or +1 with
one scale -> entropy-code; or, where that captures more in the same bytes, the nearest codewords of
a seeded book. Every slice decodes alone, whatever happened to the others.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError
from ternmesh.hypervector import codebook
from ternmesh.hypervector.coding import CODEBOOK, Coded, bits_per_trit, decode, encode
from ternmesh.hypervector.scale import SCALE_MAX, UNIT, decode_scale, encode_scale, floor_scale

Vector = NDArray[np.float32]

SPAN_MAX = 0xFFFF  # numbers of a slice: a share counts its nonzeros in two bytes
SPARE_BYTES = 1  # coded slices of the same density differ by a few bits


@dataclass(frozen=True, slots=True)
class Slicing:
    """How D coordinates are dealt to slices: `span` each, the last one shorter."""

    dimension: int
    span: int

    @property
    def count(self) -> int:
        """Slices in a packet."""
        return -(-self.dimension // self.span)

    def size(self, index: int) -> int:
        """Coordinates in slice `index`."""
        return min(self.span, self.dimension - index * self.span)


@dataclass(frozen=True, slots=True)
class Slice:
    """One coded share of a vector; `scale` is the code of hypervector/scale.py."""

    index: int
    scale: int
    coded: Coded


@dataclass(frozen=True, slots=True)
class Hypervector:
    """What has arrived of a packet, in slice order: trits (int8, D), scales (int64, 2**-24)."""

    slicing: Slicing
    trits: NDArray[np.int8]
    scales: NDArray[np.int64]
    present: NDArray[np.bool_]

    def units(self) -> NDArray[np.int64]:
        """trit * scale of each coordinate in slice order, in units of 2**-24 (int64, D)."""
        return self.trits * self.per_coordinate(self.scales)

    def per_coordinate(self, per_slice: NDArray[np.int64]) -> NDArray[np.int64]:
        """One number for each slice, repeated for each of its coordinates."""
        return np.repeat(per_slice, self.slicing.span)[: self.slicing.dimension]


def choose_span(dimension: int, room: int, zeros: float) -> int:
    """The span for which coded slices fit in `room` bytes and fill as few frames as possible."""
    per_slice = min((room - SPARE_BYTES) * 8 / bits_per_trit(zeros), SPAN_MAX)
    return math.ceil(dimension / math.ceil(dimension / per_slice))


def encode_vector(
    vector: NDArray[np.float32],
    order: NDArray[np.int64],
    slicing: Slicing,
    zeros: float,
    room: int,
    scale_max: int = SCALE_MAX,
) -> list[Slice]:
    """All slices of `vector` (float32, D), each in at most `room` bytes; CodecError for NaN.

    No scale is worth more than `scale_max` (units of 2**-24): what is beyond it stays behind.
    """
    if not np.isfinite(vector).all():
        raise CodecError("a vector with NaN or infinity cannot become a hypervector")
    shuffled = vector[order]
    starts, highest = range(0, slicing.dimension, slicing.span), floor_scale(scale_max)
    return [
        _encode_slice(index, shuffled[start : start + slicing.span], zeros, room, highest)
        for index, start in enumerate(starts)
    ]


def decode_slice(item: Slice, slicing: Slicing) -> tuple[NDArray[np.int8], int]:
    """The trits (int8) of one slice and its scale in units of 2**-24, or WireError."""
    return decode(item.coded, slicing.size(item.index)), decode_scale(item.scale)


def gather(slices: list[tuple[int, NDArray[np.int8], int]], slicing: Slicing) -> Hypervector:
    """The hypervector of decoded slices (index, trits, scale); what is absent stays zero."""
    trits = np.zeros(slicing.dimension, dtype=np.int8)
    scales = np.zeros(slicing.count, dtype=np.int64)
    present = np.zeros(slicing.count, dtype=np.bool_)
    for index, part, scale in slices:
        trits[index * slicing.span : index * slicing.span + part.size] = part
        scales[index], present[index] = scale, True
    return Hypervector(slicing, trits, scales, present)


def scatter(units: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Units in slice order put back to the places of the adapter vector (int64, D)."""
    vector = np.empty_like(units)
    vector[order] = units
    return vector


def _encode_slice(
    index: int, values: NDArray[np.float32], zeros: float, room: int, highest: int
) -> Slice:
    kept = max(1, round((1.0 - zeros) * values.size))
    while True:
        trits, scale = ternarise(values, kept)
        coded = encode(trits)
        if len(coded.data) <= room:
            break
        kept = kept * room // len(coded.data)
    scale, coded = _spread(values, scale, coded)
    return Slice(index, min(encode_scale(scale), highest), coded)  # codes rise with worth


def _spread(values: Vector, scale: float, coded: Coded) -> tuple[float, Coded]:
    """Scale and code by the codebook, if it captures more energy in as many bytes."""
    if not coded.count:
        return scale, coded
    room, values = len(coded.data), values / np.float32(scale)  # now `coded` captures its count
    energy = float(np.square(values, dtype=np.float64).sum())
    if codebook.expected_share(values.size, room) * energy <= coded.count:
        return scale, coded  # the search can be spared
    spread, names = codebook.encode(values, room)
    if values.size * spread * spread <= coded.count or not encode_scale(spread * scale):
        return scale, coded  # its scale is above a unit and so never zero
    return spread * scale, Coded(values.size, CODEBOOK, names)


def ternarise(values: NDArray[np.float32], kept: int) -> tuple[NDArray[np.int8], float]:
    """The signs of the `kept` largest values (int8, zero elsewhere) and their mean magnitude.

    The mean magnitude is the scale with the least squared error for a given choice of nonzeros (Li
    and Liu, "Ternary weight networks", 2016).
    """
    magnitudes = np.abs(values)
    if kept < values.size:
        largest = np.argpartition(magnitudes, values.size - kept)[values.size - kept :]
    else:
        largest = np.arange(values.size)
    largest = largest[magnitudes[largest] > UNIT]
    trits = np.zeros(values.size, dtype=np.int8)
    trits[largest] = np.sign(values[largest])
    return trits, float(magnitudes[largest].mean(dtype=np.float64)) if largest.size else 0.0
