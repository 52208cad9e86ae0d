"""One timed part of `python -m bench codec` in a process of its own, so that threads are set.

`python -m bench.codec_worker PART THREADS REPEATS` prints one JSON line.
"""

import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.codecs import OURS
from ternmesh.generator import derive_key
from ternmesh.hypervector import algebra, coding
from ternmesh.plan import make_plan
from ternmesh.swarm.step import encode_update

QUERIES, ITEMS, TRITS = 100, 1000, 10_000
DELTA = 150_000
SHARES = (0.5, 0.7, 0.9, 0.95, 0.984, 0.995)
M3B = 786_432


def main() -> None:
    """Run the part that is named."""
    part, threads, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    parts = {"similarity": similarity, "coder": coder, "encode": encode}
    print(json.dumps(parts[part](threads, repeats)))


def similarity(threads: int, repeats: int) -> dict[str, float]:
    """Seconds for all similarities of 100 x 1,000 vectors of 10,000 trits, ours and torch-hd's."""
    import torch
    import torchhd  # type: ignore[import-untyped, import-not-found, unused-ignore]

    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    trits = rng.integers(-1, 2, (QUERIES + ITEMS, TRITS), dtype=np.int8)
    a, b = algebra.pack(trits[:QUERIES]), algebra.pack(trits[QUERIES:])
    map_a, map_b = (torchhd.random(n, TRITS, "MAP") for n in (QUERIES, ITEMS))
    bsc_a, bsc_b = (torchhd.random(n, TRITS, "BSC") for n in (QUERIES, ITEMS))
    popcount = algebra.popcount_tile
    exact = trits[:QUERIES].astype(np.float32) @ trits[QUERIES:].astype(np.float32).T
    assert np.array_equal(algebra.inner_products(a, b), exact)
    assert np.array_equal(algebra.products(a, b, popcount), exact)
    times = interleaved(
        {
            "ours": lambda: algebra.similarity(a, b),
            "ours_popcount": lambda: algebra.products(a, b, popcount),
            "map": lambda: torchhd.cosine_similarity(map_a, map_b),
            "ours_bundle": lambda: algebra.bundle(b),
            "map_bundle": lambda: torchhd.multibundle(map_b),
            "ours_bind": lambda: algebra.bind(b, b),
            "map_bind": lambda: torchhd.bind(map_b, map_b),
        },
        repeats,
    )
    few = QUERIES // 10  # the whole takes 16 s; its time is proportional to the queries
    bsc = interleaved({"bsc": lambda: torchhd.hamming_similarity(bsc_a[:few], bsc_b)}, 1)
    times["bsc"] = bsc["bsc"] * QUERIES / few
    map_bytes = map_b.element_size() * map_b.nelement()
    return {**times, "map_bytes": map_bytes, "ours_bytes": b.size_bytes}


def coder(threads: int, repeats: int) -> dict[str, Any]:  # noqa: ARG001
    """Bytes, entropy and seconds of the entropy coder at several shares of zeros."""
    import constriction  # type: ignore[import-untyped, import-not-found, unused-ignore]

    answer = {}
    for zeros in SHARES:
        odds = [(1 - zeros) / 2, zeros, (1 - zeros) / 2]
        trits = np.random.default_rng(0).choice(np.array([-1, 0, 1], np.int8), M3B, p=odds)
        counts = np.bincount(trits + 1, minlength=3) / M3B
        entropy = float(-(counts * np.log2(counts)).sum()) * M3B / 8
        symbols = (trits + 1).astype(np.int32)
        model = constriction.stream.model.Categorical(counts.astype(np.float32), perfect=False)
        coded, words = coding.encode(trits), _range_encode(symbols, model)
        times = interleaved(
            {
                "encode": partial(coding.encode, trits),
                "decode": partial(coding.decode, coded, M3B),
                "their_encode": partial(_range_encode, symbols, model),
                "their_decode": partial(_range_decode, words, model),
            },
            repeats,
        )
        assert np.array_equal(coding.decode(coded, M3B), trits)
        sizes = {"bytes": len(coded.data), "their_bytes": int(words.nbytes), "entropy": entropy}
        answer[str(zeros)] = {**times, **sizes}
    return answer


def _range_encode(symbols: NDArray[np.int32], model: Any) -> NDArray[np.uint32]:
    import constriction

    encoder = constriction.stream.queue.RangeEncoder()
    encoder.encode(symbols, model)
    words: NDArray[np.uint32] = encoder.get_compressed()
    return words


def _range_decode(words: NDArray[np.uint32], model: Any) -> None:
    import constriction

    constriction.stream.queue.RangeDecoder(words).decode(model, M3B)


def encode(threads: int, repeats: int) -> dict[str, float]:  # noqa: ARG001
    """Seconds and peak extra memory of encoding a delta of 150,000 numbers.

    In the heavy-tailed one some values stand out, and the codebook is not searched.
    """
    rng = np.random.default_rng(0)
    delta = (rng.standard_normal(DELTA) * 0.01).astype(np.float32)
    heavy = (rng.standard_t(3, DELTA) * 0.01).astype(np.float32)
    plan = make_plan(
        DELTA, rounds=1, local_steps=1, learning_rate=1e-3, frame_mtu=1024, up_zeros=0.95
    )
    model = derive_key("bench", b"model")[0].to_bytes(32, "little")
    mixture, _, pursuit = OURS
    tasks: dict[str, Callable[[], Any]] = {
        "sparse": lambda: encode_update(heavy, model, 1, plan),
        "codebook": lambda: encode_update(delta, model, 1, plan),
        "mixture": lambda: mixture.encode(delta, DELTA // 4 + 80, rng),
        "pursuit": lambda: pursuit.encode(delta, DELTA // 4 + 80, rng),
    }
    answer = interleaved(tasks, repeats)
    for name, task in tasks.items():
        tracemalloc.start()
        task()
        answer[f"{name}_memory"] = tracemalloc.get_traced_memory()[1] / delta.nbytes
        tracemalloc.stop()
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


if __name__ == "__main__":
    main()
