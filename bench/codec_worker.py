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

from ternmesh.codec.entropy_coder import decode_trits, encode_trits
from ternmesh.federated.aggregation import encode_update
from ternmesh.generator import derive_key
from ternmesh.plan import make_plan

DELTA = 150_000
SHARES = (0.5, 0.7, 0.9, 0.95, 0.984, 0.995)
M3B = 786_432


def main() -> None:
    """Run the part that is named."""
    part, threads, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    parts = {"coder": coder, "encode": encode}
    print(json.dumps(parts[part](threads, repeats)))


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


def encode(threads: int, repeats: int) -> dict[str, float]:  # noqa: ARG001
    """Seconds and peak extra memory of encoding a delta of 150,000 numbers.

    In the heavy-tailed one some values are large, and the codebook is not searched.
    """
    rng = np.random.default_rng(0)
    delta = (rng.standard_normal(DELTA) * 0.01).astype(np.float32)
    heavy = (rng.standard_t(3, DELTA) * 0.01).astype(np.float32)
    plan = make_plan(
        DELTA, rounds=1, local_steps=1, learning_rate=1e-3, frame_mtu=1024, up_zeros=0.95
    )
    model = derive_key("bench", b"model")[0].to_bytes(32, "little")
    tasks: dict[str, Callable[[], Any]] = {
        "sparse": lambda: encode_update(heavy, model, 1, plan),
        "codebook": lambda: encode_update(delta, model, 1, plan),
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
