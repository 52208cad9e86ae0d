"""The codec's claims: energy captured per bit, the entropy coder, time.

Energy captured is 1 - NMSE at the optimal scale, which every codec is granted; bits are those of
the bytes that the codec returned, over the count of numbers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.codecs import PEERS, WIRE, Codec, Vector, captured
from bench.demo import clips_of
from bench.jobs import worker_output
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import average_in_float
from edge.onnx.session import load_model
from host.config import RunConfig, plan_of
from models.zoo import package_path
from ternmesh_cli.demo.fleet import BOARDS

RATES, RATES_QUICK = (0.05, 0.1, 0.25, 0.5, 1.0), (0.1, 0.25)
CLAIMED_RATE = 0.25
SIZE, SIZE_QUICK = 65_536, 16_384
SEEDS, SEEDS_QUICK = 5, 1
HEAD_BITS = 80  # every codec may exceed the budget by so much, for its head; it is counted
SCALE = 0.01  # deltas are about this large
REPEATS, REPEATS_QUICK = 9, 1
EQUAL = 0.995  # "best or equal": within half a per cent, less than seeds differ
# Energy per bit of nncodec 2.1.3 at RATES, measured on 2026-11-21 on the same vectors, on straight
# lines between its quantisation steps. It needs an environment of its own, so it is not run again.
NNCODEC = {
    "gaussian": (0.763, 0.8315, 0.8398, 0.7925, 0.6819),
    "laplace": (1.591, 1.5186, 1.2658, 1.0211, 0.7417),
    "student_t3": (5.0179, 3.3451, 1.9173, 1.2432, 0.794),
    "real": (0.3497, 0.4812, 0.603, 0.6644, 0.6499),
}
NOTES = (
    "energy per bit: captured energy at the optimal scale over the bits of the codec's bytes, "
    "head included, without frames; wire is what packets carry",
    "cells: four distributions at five rates; nncodec's values are of 2026-11-21",
    "real: raw deltas of the keyword model after 20 steps of Adam, rounds 0 to 4",
)
Cells = dict[str, dict[str, dict[str, float]]]  # distribution -> rate -> codec -> energy per bit


def measure(*, quick: bool) -> Result:
    """All parts; `quick` takes fewer seeds, rates and repeats, and shorter vectors."""
    repeats = REPEATS_QUICK if quick else REPEATS
    print("coder and encoder", flush=True)
    coder, encode = _work("coder", 1, repeats), _work("encode", 1, repeats // 3)
    vectors = distributions(SEEDS_QUICK if quick else SEEDS, SIZE_QUICK if quick else SIZE)
    cells, claimed = energy_per_bit(vectors, RATES_QUICK if quick else RATES)
    figures = {
        **_coder_figures(coder),
        **{
            f"energy_per_bit_{name}": mean_figure(values, ">=1.05" if name == "gaussian" else None)
            for name, values in claimed.items()
        },
        "cells_best": Figure(share_of_best(cells), ">=1.0"),
        "encode_150k_sparse_ms": Figure(encode["sparse"] * 1e3, "<=50"),
        "encode_150k_sparse_memory": Figure(encode["sparse_memory"], "<=4"),
        "encode_150k_codebook_s": Figure(encode["codebook"], "<=2"),
        "encode_150k_codebook_memory": Figure(encode["codebook_memory"], "<=4"),
    }
    details = {"energy_per_bit": cells, "coder": coder, "encode": encode}
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
            row["nncodec"] = NNCODEC[name][RATES.index(rate)]
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


def _work(part: str, threads: int, repeats: int) -> Any:
    return json.loads(
        worker_output("bench.codec_worker", part, str(threads), str(repeats), threads=threads)
    )
