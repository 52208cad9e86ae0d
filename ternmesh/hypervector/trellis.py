"""A vector at one bit or less a number: the best path through a seeded trellis.

Every bit that is sent shifts into a window of `WINDOW` bits, and the window's value names `step`
reproduction values out of a seeded table; the encoder finds the path that lies nearest to the
vector (Viterbi). This is the trellis source code of Viterbi and Omura (1974), which comes within a
few per cent of the Gaussian distortion bound; the bit-shift form is that of QTIP (Tseng et al.,
2024). Decoding is a shift register and a table: a microcontroller can do it. Values are sums of
four bytes of the generator's words, so the table is integers and the same on every CPU.

Each chunk of `CHUNK_BITS` starts from an empty window and decodes alone.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError
from ternmesh.generator import Key, words

WINDOW = 13
CHUNK_BITS = 1024
BATCH = 1  # chunks that are searched side by side: more need more memory and gain little
_CENTRE, _SPREAD = 510, 147.8  # mean and standard deviation of a sum of four uniform bytes

Vector = NDArray[np.float32]


def table(key: Key, step: int, window: int = WINDOW) -> Vector:
    """The reproduction values of every window, float32 [2**window, step], standard deviation 1."""
    parts = words(key, step << window).astype("<u4").view(np.uint8).reshape(-1, step, 4)
    values: Vector = parts.sum(axis=2, dtype=np.int32).astype(np.float32)
    return (values - _CENTRE) / np.float32(_SPREAD)


def encode(vector: Vector, key: Key, step: int, window: int = WINDOW) -> tuple[bytes, float]:
    """The path of `vector` (float32) at 1 / `step` bits a number, and its scale (float).

    The scale is the one with the least squared error for that path. CodecError for NaN.
    """
    if not np.isfinite(vector).all():
        raise CodecError("a vector with NaN or infinity has no path through a trellis")
    size = -(-vector.size // step)
    padded = np.zeros((size, step), dtype=np.float32)
    padded.reshape(-1)[: vector.size] = vector
    values = table(key, step, window)
    # A path holds this share of the energy if it is as good as theory allows.
    share = 1 - 2.0 ** (-2 / step)
    rms = (float(np.dot(vector, vector)) / max(vector.size, 1)) ** 0.5
    padded /= np.float32(rms or 1.0)
    whole = size // CHUNK_BITS * CHUNK_BITS
    bits = np.empty(size, dtype=np.uint8)
    chunks = padded[:whole].reshape(-1, CHUNK_BITS, step)
    for first in range(0, len(chunks), BATCH):
        part = chunks[first : first + BATCH]
        found = _search(part, values * np.float32(share**0.5), window)
        bits[first * CHUNK_BITS :][: found.size] = found.reshape(-1)
    if whole < size:
        bits[whole:] = _search(padded[None, whole:], values * np.float32(share**0.5), window)[0]
    del padded, chunks  # what follows needs their room
    path = values[_windows(bits, window)].reshape(-1)[: vector.size]
    energy = float(np.dot(path, path))
    scale = max(0.0, float(np.dot(path, vector)) / energy) if energy else 0.0
    return np.packbits(bits, bitorder="little").tobytes(), scale


def decode(data: bytes, key: Key, step: int, size: int, window: int = WINDOW) -> Vector:
    """The `size` values (float32, before the scale) of a path; WireError for a wrong length."""
    count = -(-size // step)
    if len(data) != -(-count // 8):
        raise WireError("trellis", f"a path for {size} numbers has not {len(data)} bytes")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if bits[count:].any():
        raise WireError("trellis", "bits are left over after the path")
    return table(key, step, window)[_windows(bits[:count], window)].reshape(-1)[:size]


def _windows(bits: NDArray[np.uint8], window: int) -> NDArray[np.int32]:
    """What the window holds after each bit: the newest bit is the lowest."""
    whole = np.zeros(-(-bits.size // CHUNK_BITS) * CHUNK_BITS, dtype=np.int32)
    whole[: bits.size] = bits
    rows = np.pad(whole.reshape(-1, CHUNK_BITS), ((0, 0), (window - 1, 0)))
    held = np.zeros((len(rows), CHUNK_BITS), dtype=np.int32)
    for age in range(window):
        held += rows[:, window - 1 - age : window - 1 - age + CHUNK_BITS] << age
    return held.reshape(-1)[: bits.size]


def _search(chunks: Vector, values: Vector, window: int) -> NDArray[np.uint8]:
    """The bits of the nearest path of each chunk (float32 [n, length, step]), uint8 [n, length]."""
    count, length, _ = chunks.shape
    states = 1 << (window - 1)
    columns = np.ascontiguousarray(values.T)
    bias = -0.5 * np.square(columns).sum(axis=0)
    gain = np.full((count, states), -1e30, dtype=np.float32)
    gain[:, 0] = 0.0
    came = np.empty((length, count, states // 8), dtype=np.uint8)
    for time in range(length):
        branch = chunks[:, time] @ columns
        branch += bias
        branch.reshape(count, states, 2)[...] += gain[:, :, None]
        low, high = branch[:, :states], branch[:, states:]
        came[time] = np.packbits(high > low, axis=1, bitorder="little")
        np.maximum(low, high, out=gain)
    rows, state = np.arange(count), gain.argmax(axis=1)
    bits = np.empty((count, length), dtype=np.uint8)
    for time in reversed(range(length)):
        bits[:, time] = state & 1
        top = came[time, rows, state >> 3] >> (state & 7) & 1
        state = (top.astype(np.int64) * states + state) >> 1
    return bits
