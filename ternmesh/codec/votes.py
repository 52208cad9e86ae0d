"""Bundling: a sum of hypervectors as slices of integer votes, a gateway's partial aggregate.

A partial aggregate has few frames, so each is filled: every slice takes the form that captures most
energy in the room. Votes are a uniform quantiser with a dead zone (Sullivan, "Efficient scalar
quantization of exponential and Laplacian random variables", 1996) with the scale of least squared
error; with large steps votes are trits. The codebook is used where no few values stand out.
"""

import numpy as np

from ternmesh.codec import codebook
from ternmesh.codec.encoder import Slice, Slicing, ternarise
from ternmesh.codec.entropy_coder import CODEBOOK, VOTE_MAX, Coded, decode_trits, encode_trits
from ternmesh.codec.scale import UNIT, decode_scale, encode_scale, floor_scale
from ternmesh.types import Places, Vector

# The smallest value that gets a vote (in steps), and the largest vote. The last form is trits.
FORMS = ((0.5, VOTE_MAX), (0.65, VOTE_MAX), (0.8, VOTE_MAX), (0.5, 1))
HALVINGS = 12  # of the range in which the finest step that fits is searched

_Candidate = tuple[float, int, Coded]  # captured energy, scale code, code


def encode_votes(
    vector: Vector, order: Places, slicing: Slicing, room: int, scale_max: int
) -> list[Slice]:
    """All slices of `vector`, each in at most `room` bytes; CodecError for NaN or infinity.

    No vote times its scale is larger than `scale_max` (units of 2**-24, at least 1).
    """
    parts = slicing.split(vector, order)
    return [_encode_slice(index, part, room, scale_max) for index, part in enumerate(parts)]


def _encode_slice(index: int, values: Vector, room: int, scale_max: int) -> Slice:
    peak = float(np.abs(values).max())
    if peak > UNIT:
        candidates = [
            _by_votes(values, peak, zone, min(most, scale_max), room, scale_max)
            for zone, most in FORMS
        ]
        energy = float(np.square(values, dtype=np.float64).sum())
        best = max(captured for captured, _, _ in candidates)
        if codebook.expected_share(values.size, room) * energy > best:
            indices = Coded(values.size, CODEBOOK, codebook.encode(values, room)[1])
            candidates.append(_with_scale(values, indices, scale_max))
        captured, scale, coded = max(candidates, key=lambda item: item[0])
        if captured > 0:
            return Slice(index, scale, coded)
    return Slice(index, 0, encode_trits(np.zeros(values.size, np.int8)))


def _by_votes(
    values: Vector, peak: float, zone: float, most: int, room: int, scale_max: int
) -> _Candidate:
    """The code with the finest step that fits: each value in steps, limited to `most`.

    Values below `zone` steps get no vote.
    """
    coarse = peak / zone
    fine = max(UNIT, peak / VOTE_MAX)
    best = encode_trits(ternarise(values, 1)[0])  # if no step fits: many values are equally large
    for _ in range(HALVINGS):
        step = float(np.sqrt(coarse * fine))
        steps = np.floor(np.abs(values) / np.float32(step) + np.float32(1 - zone))
        coded = encode_trits((np.sign(values) * np.minimum(steps, most)).astype(np.int8))
        if len(coded.data) <= room:
            best, coarse = coded, step
        else:
            fine = step
    return _with_scale(values, best, scale_max)


def _with_scale(values: Vector, coded: Coded, scale_max: int) -> _Candidate:
    """The code with the allowed scale of least squared error, and the energy that it captures."""
    votes = decode_trits(coded, values.size).astype(np.float64)
    product = float(votes @ values)
    weight = float(votes @ votes)
    if not weight or product <= 0:
        return 0.0, 0, coded
    highest = floor_scale(scale_max // int(np.abs(votes).max()))
    scale = min(max(1, encode_scale(product / weight)), highest)  # larger codes, larger scales
    worth = decode_scale(scale) * UNIT
    return worth * (2 * product - worth * weight), scale, coded
