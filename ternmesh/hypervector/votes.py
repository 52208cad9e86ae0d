"""A float vector to slices of integer votes: what a gateway's bundle is made of.

A bundle's frames are few, so each is filled: of every slice the form that captures most energy in
the room is taken. Votes are a uniform quantiser with a dead zone (Sullivan, "Efficient scalar
quantization of exponential and Laplacian random variables", 1996) under the scale that fits best;
with large steps they are trits. The codebook takes over where nothing stands out.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError
from ternmesh.hypervector import codebook
from ternmesh.hypervector.coding import CODEBOOK, VOTE_MAX, Coded, decode, encode
from ternmesh.hypervector.encoder import Slice, Slicing, Vector, ternarise
from ternmesh.hypervector.scale import UNIT, decode_scale, encode_scale, floor_scale

# The least value, in steps, that gets a vote, and the most votes: trits need no magnitudes.
FORMS = ((0.5, VOTE_MAX), (0.65, VOTE_MAX), (0.8, VOTE_MAX), (0.5, 1))
HALVINGS = 12  # of the range in which the finest step that fits is sought

_Found = tuple[float, int, Coded]  # energy captured, scale, code


def encode_votes(
    vector: Vector, order: NDArray[np.int64], slicing: Slicing, room: int, scale_max: int
) -> list[Slice]:
    """All slices of `vector` (float32, D), each in at most `room` bytes; CodecError for NaN.

    No vote times its scale is worth more than `scale_max` (units of 2**-24, at least 1).
    """
    if not np.isfinite(vector).all():
        raise CodecError("a vector with NaN or infinity cannot become a hypervector")
    shuffled = vector[order]
    starts = range(0, slicing.dimension, slicing.span)
    return [
        _encode_slice(index, shuffled[start : start + slicing.span], room, scale_max)
        for index, start in enumerate(starts)
    ]


def _encode_slice(index: int, values: Vector, room: int, scale_max: int) -> Slice:
    peak = float(np.abs(values).max())
    if peak > UNIT:
        found = [
            _by_votes(values, peak, zone, min(most, scale_max), room, scale_max)
            for zone, most in FORMS
        ]
        energy = float(np.square(values, dtype=np.float64).sum())
        best = max(captured for captured, _, _ in found)
        if codebook.expected_share(values.size, room) * energy > best:
            names = Coded(values.size, CODEBOOK, codebook.encode(values, room)[1])
            found.append(_with_scale(values, names, scale_max))
        captured, scale, coded = max(found, key=lambda item: item[0])
        if captured > 0:
            return Slice(index, scale, coded)
    return Slice(index, 0, encode(np.zeros(values.size, np.int8)))


def _by_votes(
    values: Vector, peak: float, zone: float, most: int, room: int, scale_max: int
) -> _Found:
    """The finest step whose code fits; a value gets a vote from `zone` steps on."""
    coarse, fine = peak / zone, max(UNIT, peak / VOTE_MAX)
    best = encode(ternarise(values, 1)[0])  # where many are as large as the largest
    for _ in range(HALVINGS):
        step = float(np.sqrt(coarse * fine))
        coded = encode(_votes(values, step, zone, most))
        if len(coded.data) <= room:
            best, coarse = coded, step
        else:
            fine = step
    return _with_scale(values, best, scale_max)


def _votes(values: Vector, step: float, zone: float, most: int) -> NDArray[np.int8]:
    """Each value in steps, cut off at `most`; int8."""
    steps = np.floor(np.abs(values) / np.float32(step) + np.float32(1 - zone))
    return (np.sign(values) * np.minimum(steps, most)).astype(np.int8)


def _with_scale(values: Vector, coded: Coded, scale_max: int) -> _Found:
    """The scale with the least squared error that is allowed, and what is captured with it."""
    votes = decode(coded, values.size).astype(np.float64)
    product, weight = float(votes @ values), float(votes @ votes)
    if not weight or product <= 0:
        return 0.0, 0, coded
    highest = floor_scale(scale_max // int(np.abs(votes).max()))
    scale = min(max(1, encode_scale(product / weight)), highest)  # codes rise with worth
    worth = decode_scale(scale) * UNIT
    return worth * (2 * product - worth * weight), scale, coded
