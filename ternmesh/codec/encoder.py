"""A float vector to slices and back: the codec as a chain of small stages.

add the residual -> permute -> cut into slices of `span` coordinates -> keep the largest values of
each slice as -1 or +1 with one scale -> entropy-code; or take the nearest codewords of a seeded
book, where these capture more energy in the same bytes. Every slice decodes alone. What the slices
could not carry, or what was not counted, stays in the residual and is sent in a later round.

Error feedback: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et
al., "Error feedback fixes SignSGD", ICML 2019.
"""

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ternmesh.codec import codebook
from ternmesh.codec.entropy_coder import CODEBOOK, Coded, bits_per_trit, decode_trits, encode_trits
from ternmesh.codec.scale import SCALE_MAX, UNIT, decode_scale, encode_scale, floor_scale
from ternmesh.errors import CodecError
from ternmesh.exact import energy, total
from ternmesh.types import DeltaQ24, Places, Trits, Vector

Number = TypeVar("Number", bound=np.generic)

SPAN_MAX = 0xFFFF  # coordinates of a slice: a chunk counts its nonzeros in two bytes
SPARE_BYTES = 1  # coded slices of the same density differ by a few bits


@dataclass(frozen=True, slots=True)
class Slicing:
    """The division of D coordinates into slices: `span` each, fewer in the last one."""

    dimension: int
    span: int

    @property
    def count(self) -> int:
        """The number of slices; each travels in a chunk."""
        return -(-self.dimension // self.span)

    def size(self, index: int) -> int:
        """Coordinates in slice `index`: fewer in the last one."""
        return min(self.span, self.dimension - index * self.span)

    def spread(self, by_slice: NDArray[Number]) -> NDArray[Number]:
        """The number of each slice at all of its coordinates, [count] to [D]."""
        return np.repeat(by_slice, self.span)[: self.dimension]

    def split(self, vector: Vector, order: Places) -> list[Vector]:
        """The values of each slice of a vector; CodecError for NaN or infinity."""
        if not np.isfinite(vector).all():
            raise CodecError("a vector with NaN or infinity cannot become a hypervector")
        shuffled = vector[order]
        return [shuffled[at : at + self.span] for at in range(0, self.dimension, self.span)]


@dataclass(frozen=True, slots=True)
class Slice:
    """One coded slice of a vector."""

    index: int
    scale: int  # the 16-bit code of codec/scale.py
    coded: Coded


@dataclass(frozen=True, slots=True)
class Hypervector:
    """The decoded slices of an update, in slice order; zero where a slice is absent."""

    slicing: Slicing
    trits: Trits  # int8 [D]
    scales: NDArray[np.int64]  # by slice, in units of 2**-24
    present: NDArray[np.bool_]  # by slice

    def put(self, index: int, trits: Trits, scale: int) -> None:
        """Fill in a slice while the update is gathered."""
        start = index * self.slicing.span
        self.trits[start : start + trits.size] = trits
        self.scales[index] = scale
        self.present[index] = True

    def delta_q24(self) -> DeltaQ24:
        """trit * scale of each coordinate, in slice order."""
        return self.trits * self.slicing.spread(self.scales)

    def only(self, counted: NDArray[np.bool_]) -> "Hypervector":
        """The same with no other slices than the counted ones."""
        return replace(self, scales=self.scales * counted, present=self.present & counted)


def choose_span(dimension: int, room: int, zeros: float) -> int:
    """The span for which coded slices fit in `room` bytes and fill as few frames as possible."""
    per_slice = min((room - SPARE_BYTES) * 8 / bits_per_trit(zeros), SPAN_MAX)
    return math.ceil(dimension / math.ceil(dimension / per_slice))


def zero_residual(dimension: int) -> Vector:
    """The residual of a node that has sent nothing: D zeros."""
    return np.zeros(dimension, dtype=np.float32)


def add_residual(residual: Vector, delta: Vector) -> Vector:
    """The vector to send, their sum; CodecError for NaN or infinity."""
    if delta.shape != residual.shape:
        raise CodecError(f"a delta of {delta.shape} does not fit a residual of {residual.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        corrected = delta + residual
    if not np.isfinite(corrected).all():
        raise CodecError("the delta holds NaN or infinity: training has diverged")
    return corrected


def settle_residual(corrected: Vector, counted: Vector) -> Vector:
    """The new residual: the part of `corrected` that the global update has not counted."""
    return corrected - counted


def encode_vector(
    vector: Vector,
    order: Places,
    slicing: Slicing,
    zeros: float,
    room: int,
    scale_max: int = SCALE_MAX,
) -> tuple[list[Slice], Hypervector]:
    """All slices of `vector`, each in at most `room` bytes, and what a receiver decodes from them.

    CodecError for NaN or infinity.

    `zeros` is the fraction of values that become zero. Scales are limited to `scale_max` (units of
    2**-24); the part of a value above the limit stays in the residual.
    """
    highest = floor_scale(scale_max)
    slices, decoded = [], []
    for index, part in enumerate(slicing.split(vector, order)):
        item, trits = _encode_slice(index, part, zeros, room, highest)
        slices.append(item)
        decoded.append((index, trits, decode_scale(item.scale)))
    return slices, gather(decoded, slicing)


def decode_slice(item: Slice, slicing: Slicing) -> tuple[Trits, int]:
    """The trits of one slice and its scale in units of 2**-24, or WireError."""
    return decode_trits(item.coded, slicing.size(item.index)), decode_scale(item.scale)


def gather(slices: list[tuple[int, Trits, int]], slicing: Slicing) -> Hypervector:
    """The hypervector of decoded slices (index, trits, scale); absent slices are zero."""
    trits = np.zeros(slicing.dimension, dtype=np.int8)
    scales = np.zeros(slicing.count, dtype=np.int64)
    gathered = Hypervector(slicing, trits, scales, np.zeros(slicing.count, dtype=np.bool_))
    for index, part, scale in slices:
        gathered.put(index, part, scale)
    return gathered


def scatter(numbers: NDArray[Number], order: Places) -> NDArray[Number]:
    """Numbers in slice order moved back to the order of the adapter vector."""
    vector = np.empty_like(numbers)
    vector[order] = numbers
    return vector


def ternarise(values: Vector, kept: int) -> tuple[Trits, float]:
    """The signs of the `kept` largest values (zero elsewhere) and their mean magnitude.

    Of equally large values those kept are spread evenly: the first ones would be a shorter code,
    and leave the codebook fewer bytes.

    The mean magnitude is the scale with the least squared error for a given choice of nonzeros (Li
    and Liu, "Ternary weight networks", 2016).
    """
    magnitudes = np.abs(values)
    first = max(0, values.size - kept)
    cut = np.partition(magnitudes, first)[first]
    chosen = magnitudes >= cut
    if (count := int(np.count_nonzero(chosen))) > kept:
        equals = np.flatnonzero(magnitudes == cut)
        missing = kept - (count - equals.size)
        chosen[equals] = False
        chosen[equals[np.arange(missing) * equals.size // missing]] = True
    if cut <= UNIT:
        chosen &= magnitudes > UNIT
    largest = np.flatnonzero(chosen)
    trits = np.zeros(values.size, dtype=np.int8)
    trits[largest] = np.sign(values[largest])
    return trits, total(magnitudes[largest]) / largest.size if largest.size else 0.0


def _encode_slice(
    index: int, values: Vector, zeros: float, room: int, highest: int
) -> tuple[Slice, Trits]:
    kept = max(1, round((1.0 - zeros) * values.size))
    while True:
        trits, scale = ternarise(values, kept)
        coded = encode_trits(trits)
        if len(coded.data) <= room:
            break
        kept = kept * room // len(coded.data)
    scale, coded, trits = _best_code(values, scale, coded, trits)
    # Larger codes are larger scales.
    return Slice(index, min(encode_scale(scale), highest), coded), trits


def _best_code(
    values: Vector, scale: float, coded: Coded, trits: Trits
) -> tuple[float, Coded, Trits]:
    """Scale, code and trits by the codebook if it captures more energy in as many bytes.

    Else as given.
    """
    if not coded.count:
        return scale, coded, trits
    room = len(coded.data)
    values = values / np.float32(scale)  # in this unit `coded` captures an energy of `count`
    if codebook.expected_share(values.size, room) * energy(values) <= coded.count:
        return scale, coded, trits  # skip the search: it is expected to capture less
    book_scale, names, codewords = codebook.encode(values, room)
    is_better = values.size * book_scale * book_scale > coded.count
    if not is_better or encode_scale(book_scale * scale) == 0:
        return scale, coded, trits
    return book_scale * scale, Coded(values.size, CODEBOOK, names), codewords
