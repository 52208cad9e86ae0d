"""The codec's claims: energy captured per bit, the entropy coder, time.

Energy captured is 1 - NMSE at the optimal scale, which every codec is granted; bits are those of
the bytes that the codec returned, over the count of numbers.
"""

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.keyword import clips_of
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import average_in_float
from edge.onnx.session import load_model
from host.config import RunConfig, plan_of
from models.zoo import package_path
from ternmesh.codec.encoder import Slicing, decode_slice, encode_vector, gather, scatter
from ternmesh.codec.entropy_coder import decode_trits, encode_trits
from ternmesh.codec.permutation import order, permute
from ternmesh.codec.scale import to_vector
from ternmesh.generator import derive_key, seeded_signs
from ternmesh.types import Vector
from ternmesh.wire.update import CHUNK_HEAD_SIZE, read_chunk, write_chunk
from ternmesh_cli.demo.fleet import BOARDS

SHARED = derive_key("bench", b"codec")
MODEL_HASH = bytes(32)
BODY_BYTES = 200  # of a chunk on the wire
LENGTH = struct.Struct("<H")
CHUNK, CHUNK_BITS = 4096, 14  # of SparseLoCo: 12 bits of index and 2 of value
SHARES_OF_ZEROS = (0.5, 0.7, 0.9, 0.95, 0.984, 0.995)
M3B = 786_432  # trits of the published update
RATES, RATES_QUICK = (0.05, 0.1, 0.25, 0.5, 1.0), (0.1, 0.25)
CLAIMED_RATE = 0.25
SIZE, SIZE_QUICK = 65_536, 16_384
SEEDS, SEEDS_QUICK = 5, 1
HEAD_BITS = 80  # every codec may exceed the budget by so much, for its head; it is counted
SCALE = 0.01  # deltas are about this large
REPEATS, REPEATS_QUICK = 9, 1
EQUAL = 0.995  # "best or equal": within half a per cent, less than seeds differ
NOTES = (
    "energy per bit: captured energy at the optimal scale over the bits of the codec's bytes, "
    "head included, without frames; wire is what packets carry",
    "cells: four distributions at five rates",
    "real: raw deltas of the keyword model after 20 steps of Adam, rounds 0 to 4",
)
Cells = dict[str, dict[str, dict[str, float]]]  # distribution -> rate -> codec -> energy per bit


@dataclass(frozen=True, slots=True)
class Codec:
    """`encode` takes a vector and the most bits; `decode` takes the bytes and the vector's size."""

    name: str
    encode: Callable[[Vector, int], bytes]
    decode: Callable[[bytes, int], Vector]


def measure(*, quick: bool) -> Result:
    """All parts; `quick` takes fewer seeds, rates and repeats, and shorter vectors."""
    repeats = REPEATS_QUICK if quick else REPEATS
    print("entropy coder", flush=True)
    coded = coder(repeats)
    vectors = distributions(SEEDS_QUICK if quick else SEEDS, SIZE_QUICK if quick else SIZE)
    cells, claimed = energy_per_bit(vectors, RATES_QUICK if quick else RATES)
    figures = {
        **_coder_figures(coded),
        **{
            f"energy_per_bit_{name}": mean_figure(values, ">=1.05" if name == "gaussian" else None)
            for name, values in claimed.items()
        },
        "cells_best": Figure(share_of_best(cells), ">=1.0"),
    }
    details = {"energy_per_bit": cells, "coder": coded}
    return Result("codec", figures, {}, NOTES, details, quick)


def distributions(seeds: int, size: int) -> dict[str, list[Vector]]:
    """The vectors to code, one for each seed."""
    rngs = [np.random.default_rng(seed) for seed in range(seeds)]
    return {
        "gaussian": [(SCALE * r.standard_normal(size)).astype(np.float32) for r in rngs],
        "laplace": [(SCALE * r.laplace(size=size)).astype(np.float32) for r in rngs],
        "student_t3": [(SCALE * r.standard_t(3, size)).astype(np.float32) for r in rngs],
        "real": record(seeds),
    }


def record(rounds: int) -> list[Vector]:
    """A delta of real training for each round: the keyword model, three voices that take turns.

    Adapters are averaged in float32, so that no codec has a part in what is recorded.
    """
    loaded = load_model(package_path("keyword"))
    plan = replace(plan_of(RunConfig(), loaded.package.dimension), rounds=rounds)
    states: list[Vector] = []

    def send(state: Vector) -> Vector:
        states.append(state)
        return state

    average_in_float(loaded, [clips_of("train", board) for board in BOARDS], plan, 0, send=send)
    start, deltas = loaded.initial, []
    for number in range(rounds):
        sent = states[number * len(BOARDS) : (number + 1) * len(BOARDS)]
        deltas.append(sent[number % len(BOARDS)] - start)
        start = np.mean(sent, axis=0, dtype=np.float32)
    return deltas


def energy_per_bit(
    vectors: Mapping[str, Sequence[Vector]], rates: Sequence[float]
) -> tuple[Cells, dict[str, list[float]]]:
    """The mean over seeds of every cell, and the wire's values by seed at the claimed rate."""
    cells: Cells = {}
    claimed: dict[str, list[float]] = {}
    for name, seeds in vectors.items():
        cells[name] = {}
        for rate in rates:
            found = {c.name: [_one(c, vector, rate) for vector in seeds] for c in (WIRE, *PEERS)}
            row = {codec: float(np.mean(values)) for codec, values in found.items()}
            cells[name][str(rate)] = row
            if rate == CLAIMED_RATE:
                claimed[name] = found[WIRE.name]
            shown = ", ".join(f"{codec} {value:.3f}" for codec, value in row.items())
            print(f"{name} at {rate} bit: {shown}", flush=True)
    return cells, claimed


def _one(codec: Codec, vector: Vector, rate: float) -> float:
    """Energy per bit at about `rate` bits a number; 0 where the codec cannot go so low."""
    budget = int(rate * vector.size) + HEAD_BITS
    wire = codec.encode(vector, budget)
    if not wire:
        return 0.0
    assert 8 * len(wire) <= budget, f"{codec.name} spent {8 * len(wire)} bits of {budget}"
    return captured(vector, codec.decode(wire, vector.size)) * vector.size / (8 * len(wire))


def share_of_best(cells: Cells) -> float:
    """The share of cells where what packets carry is best or equal."""
    every = [row for rows in cells.values() for row in rows.values()]
    return float(np.mean([row[WIRE.name] >= EQUAL * max(row.values()) for row in every]))


def _coder_figures(coder: dict[str, Any]) -> dict[str, Figure]:
    figures = {"m3b_payload_bytes": Figure(float(coder["0.7"]["bytes"]), "<=118400")}
    for zeros, row in coder.items():
        if zeros != "0.7":
            excess = 100 * (row["bytes"] / row["entropy"] - 1)
            figures[f"excess_percent_{zeros}"] = Figure(excess, "<=2")
    m3b = coder["0.7"]
    ours, theirs = m3b["encode"] + m3b["decode"], m3b["their_encode"] + m3b["their_decode"]
    figures["coder_time_ratio"] = Figure(ours / theirs, "<=1.0")
    return figures


# The entropy coder


def coder(repeats: int) -> dict[str, Any]:
    """Bytes, entropy and seconds of the entropy coder at several shares of zeros."""
    import constriction  # type: ignore[import-untyped, import-not-found, unused-ignore]

    answer = {}
    for zeros in SHARES_OF_ZEROS:
        odds = [(1 - zeros) / 2, zeros, (1 - zeros) / 2]
        trits = np.random.default_rng(0).choice(np.array([-1, 0, 1], np.int8), M3B, p=odds)
        counts = np.bincount(trits + 1, minlength=3) / M3B
        entropy = float(-(counts * np.log2(counts)).sum()) * M3B / 8
        symbols = (trits + 1).astype(np.int32)
        model = constriction.stream.model.Categorical(counts.astype(np.float32), perfect=False)

        def range_encode(
            symbols: NDArray[np.int32] = symbols, model: Any = model
        ) -> NDArray[np.uint32]:
            encoder = constriction.stream.queue.RangeEncoder()
            encoder.encode(symbols, model)
            compressed: NDArray[np.uint32] = encoder.get_compressed()
            return compressed

        def range_decode(words: NDArray[np.uint32], model: Any = model) -> None:
            constriction.stream.queue.RangeDecoder(words).decode(model, M3B)

        coded, words = encode_trits(trits), range_encode()
        times = interleaved(
            {
                "encode": partial(encode_trits, trits),
                "decode": partial(decode_trits, coded, M3B),
                "their_encode": range_encode,
                "their_decode": partial(range_decode, words),
            },
            repeats,
        )
        assert np.array_equal(decode_trits(coded, M3B), trits)
        sizes = {"bytes": len(coded.data), "their_bytes": int(words.nbytes), "entropy": entropy}
        answer[str(zeros)] = {**times, **sizes}
    return answer


def interleaved(tasks: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median seconds of each task, run in turns so that a busy machine hurts all alike."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            if turn or not repeats:  # the first turn warms up
                times[name].append(time.perf_counter() - begin)
    return {name: float(np.median(values)) for name, values in times.items()}


# What packets carry, and published codecs: a vector and a budget in bits, to bytes and back.
# Seeds that both ends share cost nothing.


def captured(vector: Vector, decoded: Vector) -> float:
    """The share of the energy that the decoded vector explains at its optimal scale (0 to 1)."""
    x, y = vector.astype(np.float64), decoded.astype(np.float64)
    energy = float(np.dot(y, y))
    return float(np.dot(x, y)) ** 2 / (energy * float(np.dot(x, x))) if energy else 0.0


def encode_wire(vector: Vector, bits: int) -> bytes:
    """Chunk bodies as packets carry them, behind their lengths, with as few zeros as fit."""
    low, high, best = 1, 999, b""
    while low <= high:
        zeros = (low + high) // 2
        wire = _bodies(vector, zeros / 1000, bits // 8)
        if 8 * len(wire) > bits:
            low = zeros + 1
        else:
            high, best = zeros - 1, wire
    return best


def _bodies(vector: Vector, zeros: float, bytes_max: int) -> bytes:
    head = LENGTH.size + CHUNK_HEAD_SIZE
    count = -(-bytes_max // (BODY_BYTES + head))
    slicing = Slicing(vector.size, -(-vector.size // count))
    room = min(BODY_BYTES, bytes_max // slicing.count - head)
    places = order(MODEL_HASH, 0, vector.size)
    slices = encode_vector(vector, places, slicing, zeros, max(room, 2))[0]
    bodies = [write_chunk(0, item) for item in slices]
    return b"".join(LENGTH.pack(len(body)) + body for body in bodies)


def decode_wire(wire: bytes, size: int) -> Vector:
    """Trits times scales, in the vector's order."""
    slices, at = [], 0
    while at < len(wire):
        (length,) = LENGTH.unpack_from(wire, at)
        at += LENGTH.size + length
        slices.append(read_chunk(wire[at - length : at]).slice)
    slicing = Slicing(size, -(-size // len(slices)))
    found = gather([(s.index, *decode_slice(s, slicing)) for s in slices], slicing)
    return to_vector(scatter(found.delta_q24(), order(MODEL_HASH, 0, size)))


def encode_sparseloco(vector: Vector, bits: int) -> bytes:
    """The largest of each 4,096 numbers in two bits each (arXiv 2508.15706).

    The four values are the means of their bins over the whole vector; they come first.
    """
    padded = _in_chunks(vector)
    kept = min(max(1, (bits - 128) // (CHUNK_BITS * len(padded))), CHUNK)
    where = np.argpartition(np.abs(padded), CHUNK - kept, axis=1)[:, -kept:]
    values = np.take_along_axis(padded, where, axis=1).reshape(-1)
    large = np.abs(values) > np.abs(values).mean()
    bins = large.astype(np.int64) + 2 * (values < 0)
    means = [values[bins == b].mean() if (bins == b).any() else 0.0 for b in range(4)]
    numbers = where.reshape(-1).astype(np.int64) + CHUNK * bins
    return np.array(means, dtype="<f4").tobytes() + pack_bits(numbers, CHUNK_BITS)


def decode_sparseloco(wire: bytes, size: int) -> Vector:
    """The means of the bins in their places."""
    padded = _in_chunks(np.zeros(size, dtype=np.float32))
    means = np.frombuffer(wire, dtype="<f4", count=4)
    kept = (len(wire) - 16) * 8 // (CHUNK_BITS * len(padded))
    numbers = unpack_bits(wire[16:], CHUNK_BITS, kept * len(padded)).reshape(-1, kept)
    np.put_along_axis(padded, numbers % CHUNK, means[numbers // CHUNK], axis=1)
    return padded.reshape(-1)[:size]


def _in_chunks(vector: Vector) -> Vector:
    padded = np.zeros((-(-vector.size // CHUNK), CHUNK), dtype=np.float32)
    padded.reshape(-1)[: vector.size] = vector
    return padded


def encode_eden(vector: Vector, bits: int) -> bytes:
    """The signs of the rotated vector, or of a seeded subset of it, after a scale (2108.08842).

    The rotation is a cosine transform under seeded signs; theirs is a Hadamard transform.
    """
    from scipy.fft import dct

    kept = min(vector.size, bits - 72)
    rotated = dct(seeded_signs(SHARED, vector.size) * vector, norm="ortho")
    part = rotated[_subset(vector.size, kept)]
    head = struct.pack("<fI", np.abs(part).mean(), kept)
    return head + np.packbits(part < 0).tobytes()


def decode_eden(wire: bytes, size: int) -> Vector:
    """The signs times the scale in their places, rotated back."""
    from scipy.fft import idct

    scale, kept = struct.unpack_from("<fI", wire)
    signs = np.unpackbits(np.frombuffer(wire, dtype=np.uint8, offset=8), count=kept)
    rotated = np.zeros(size, dtype=np.float32)
    rotated[_subset(size, kept)] = scale * (1 - 2 * signs.astype(np.float32))
    vector: Vector = seeded_signs(SHARED, size) * idct(rotated, norm="ortho")
    return vector


def _subset(size: int, kept: int) -> NDArray[np.int64]:
    return permute(SHARED, np.arange(kept, dtype=np.uint32), size)


def pack_bits(numbers: NDArray[np.int64], width: int) -> bytes:
    """Numbers of `width` bits each, lowest bit first."""
    bits = (numbers[:, None] >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def unpack_bits(data: bytes, width: int, count: int) -> NDArray[np.int64]:
    """The inverse of `pack_bits`."""
    raw = np.frombuffer(data, dtype=np.uint8)
    bits = np.unpackbits(raw, count=count * width, bitorder="little").reshape(count, width)
    numbers: NDArray[np.int64] = bits.astype(np.int64) @ (1 << np.arange(width))
    return numbers


WIRE = Codec("wire", encode_wire, decode_wire)
PEERS = (
    Codec("sparseloco", encode_sparseloco, decode_sparseloco),
    Codec("eden", encode_eden, decode_eden),
)
