"""A heavy-tailed vector as a few nested sparse layers: the large values, then the larger of them.

Layer 1 says which values are not zero, and their signs; layer 2 says which of those reach the
second level, and so on; what lies above the last layer is counted in unary. Each layer is gap-coded
in Golomb-Rice code, so a rare level costs its entropy, not a bit for each value. One layer is the
ternary slice codec; the others refine it.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError
from ternmesh.hypervector.rice import RICE_MAX, best_parameter, read_unary, take, unary
from ternmesh.hypervector.scale import decode_scale, encode_scale, to_vector

LAYERS_MAX = 3
LEVEL_MAX = 4095
_HEAD = struct.Struct("<B")  # layers
_LAYER = struct.Struct("<IBH")  # values, Rice parameter, code of their worth
_SLOPE = struct.Struct("<H")

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Levels:
    """A quantised vector: magnitudes 0 .. (int16, signed) and what each magnitude is worth.

    `worth[k - 1]` is the mean magnitude at level k, and `slope` the step between the levels after
    the last of `worth`; both are codes of hypervector/scale.py.
    """

    values: NDArray[np.int16]
    worth: tuple[int, ...]
    slope: int

    def vector(self) -> Vector:
        """The vector (float32) that the levels stand for."""
        where = np.flatnonzero(self.values)
        levels = self.values[where].astype(np.int64)
        table = np.array([0, *map(decode_scale, self.worth)], dtype=np.int64)
        known = np.minimum(np.abs(levels), len(self.worth))
        units = table[known] + decode_scale(self.slope) * (np.abs(levels) - known)
        vector = np.zeros(self.values.size, dtype=np.float32)
        vector[where] = to_vector(units * np.sign(levels))
        return vector


def quantise(vector: Vector, threshold: float, step: float, layers: int) -> Levels:
    """Magnitudes above `threshold` in levels of `step`; worths are means, so the error is least."""
    if not np.isfinite(vector).all():
        raise CodecError("a vector with NaN or infinity has no levels")
    above = np.flatnonzero(np.abs(vector) > threshold)
    magnitudes = np.abs(vector[above])
    level = 1 + np.minimum((magnitudes - threshold) / step, LEVEL_MAX - 1).astype(np.int16)
    if layers == 1:
        level[:] = 1
    values = np.zeros(vector.size, dtype=np.int16)
    values[above] = level * np.sign(vector[above]).astype(np.int16)
    worth = tuple(_mean(magnitudes[level == k]) for k in range(1, layers + 1))
    rest = level > layers
    excess = (level[rest] - layers).astype(np.float64)
    over = magnitudes[rest] - worth[-1]
    slope = float(np.dot(excess, over) / np.dot(excess, excess)) if excess.size else 0.0
    return Levels(values, tuple(map(encode_scale, worth)), encode_scale(max(0.0, slope)))


def encode(levels: Levels) -> bytes:
    """The nested layers as bytes: a head for each layer, then all bits, the signs last."""
    places = np.flatnonzero(levels.values)
    signs = (levels.values[places] < 0).astype(np.uint8)
    magnitudes = np.abs(levels.values[places]).astype(np.int64)
    layers = len(levels.worth)
    head, streams = _HEAD.pack(layers), []
    for layer, worth in enumerate(levels.worth):
        if layer:
            places = np.flatnonzero(magnitudes > layer)
            magnitudes = magnitudes[places]
        gaps = np.diff(places, prepend=-1) - 1
        rice = best_parameter(gaps)
        head += _LAYER.pack(places.size, rice, worth)
        remainders = (gaps[:, None] >> np.arange(rice)) & 1
        streams += [unary(gaps >> rice), remainders.astype(np.uint8).reshape(-1)]
    if layers > 1:
        head += _SLOPE.pack(levels.slope)
        streams.append(unary(magnitudes - layers))
    data = np.packbits(np.concatenate([*streams, signs]), bitorder="little")
    return head + data.tobytes()


def decode(data: bytes, size: int) -> Levels:
    """The levels of `size` values; WireError unless the bytes are a whole code."""
    heads, slope, at = _read_heads(data, size)
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8, offset=at), bitorder="little")
    members, magnitudes = np.arange(size), np.zeros(size, dtype=np.int64)
    at = 0
    for count, rice, _ in heads:
        quotients, at = read_unary(bits, at, count)
        remainders, at = take(bits, at, count * rice)
        low = remainders.reshape(count, rice).astype(np.int64) @ (1 << np.arange(rice))
        gaps = (quotients << rice) + low
        places = np.cumsum(gaps + 1) - 1
        if count and places[-1] >= members.size:
            raise WireError("levels", "a value stands beyond the end of its layer")
        members = members[places]
        magnitudes[members] += 1
    if len(heads) > 1:
        excess, at = read_unary(bits, at, members.size)
        magnitudes[members] += excess
    if magnitudes.max(initial=0) > LEVEL_MAX:
        raise WireError("levels", f"a level is at most {LEVEL_MAX}")
    found = np.flatnonzero(magnitudes)
    signs, at = take(bits, at, found.size)
    if bits.size - at >= 8 or bits[at:].any():
        raise WireError("levels", "bytes or bits are left over after the signs")
    magnitudes[found] *= 1 - 2 * signs.astype(np.int64)
    return Levels(magnitudes.astype(np.int16), tuple(worth for _, _, worth in heads), slope)


def _read_heads(data: bytes, size: int) -> tuple[list[tuple[int, int, int]], int, int]:
    layers = data[0] if data else 0
    end = _HEAD.size + layers * _LAYER.size + (_SLOPE.size if layers > 1 else 0)
    if not 1 <= layers <= LAYERS_MAX or len(data) < end:
        raise WireError("levels", f"a code has 1 to {LAYERS_MAX} layers and a head for each")
    heads = list(_LAYER.iter_unpack(data[_HEAD.size : _HEAD.size + layers * _LAYER.size]))
    (slope,) = _SLOPE.unpack_from(data, end - _SLOPE.size) if layers > 1 else (0,)
    counts = [size, *(count for count, _, _ in heads)]
    if counts != sorted(counts, reverse=True) or any(rice > RICE_MAX for _, rice, _ in heads):
        raise WireError("levels", "a layer holds more values than the one before it")
    for code in (slope, *(worth for _, _, worth in heads)):
        decode_scale(code)
    return heads, slope, end


def _mean(values: Vector) -> float:
    return float(values.mean(dtype=np.float64)) if values.size else 0.0
