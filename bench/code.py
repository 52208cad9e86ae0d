"""The erasure code: its time for an object on a lossy link, and how often it needs more."""

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench.result import Figure, Result, mean_figure
from ternmesh.link.erasure_code import (
    INVERSES,
    Bytes,
    Decoder,
    Layout,
    best_symbol_bytes,
    coefficients,
    encode_symbols,
    multiply,
)

LOSS = 0.2
ROOM = 238  # bytes of a symbol
LARGE, SMALL = 300_000, 10_000
SEEDS, SEEDS_QUICK = 15, 3
SOURCES, LOST = 126, 25  # a generation of the large object, and what it loses
TRIALS, TRIALS_QUICK = 1_000_000, 20_000
TRIALS_OF_A_NAME = 2_500  # one name has 65,410 repair symbols for such a generation
CHECKED = 200  # trials of each outcome that the decoder itself runs as well
Losses = NDArray[np.bool_]


def measure(*, quick: bool) -> Result:
    """Times by CPU seconds of one thread; failures by ranks, checked against the decoder."""
    seeds = range(SEEDS_QUICK if quick else SEEDS)
    large = [transfer_s(LARGE, seed) for seed in seeds]
    small = [transfer_s(SMALL, seed) for seed in seeds]
    print("failures", flush=True)
    trials = TRIALS_QUICK if quick else TRIALS
    at_k, above = failures(trials, LOST)
    figures = {
        "code_300kb_s": mean_figure(large, "<=0.5"),
        "code_10kb_ms": mean_figure([1e3 * s for s in small], "<=5"),
        "failures_k": Figure(at_k / trials, ci95=wilson(at_k, trials)),
        "failures_k_plus_1": Figure(above / trials, "<=1e-4", wilson(above, trials)),
    }
    notes = (
        f"times: CPU seconds to encode and decode, until all is there at {LOSS:.0%} loss",
        f"failures: {SOURCES} source symbols of which {LOST} were lost, and {LOST} or {LOST + 1} "
        f"repair symbols; the decoder agreed on the first {CHECKED} trials of each outcome",
    )
    return Result("code", figures, {}, notes, {"trials": trials}, quick)


def transfer_s(size: int, seed: int) -> float:
    """CPU seconds of both ends until the object is there; what is missing is sent again."""
    losses, data = _losses(seed), np.random.default_rng(seed).bytes(size)
    layout, name = Layout(size, best_symbol_bytes(size, ROOM)), seed.to_bytes(4, "little")
    begun = time.process_time()
    decoder = Decoder(layout, name)
    following = [layout.count + g for g in range(layout.generations)]
    indexes = list(range(layout.count))
    while indexes:
        for index, symbol in zip(indexes, encode_symbols(layout, name, data, indexes), strict=True):
            if not next(losses):
                decoder.add(index, symbol)
        indexes = []
        for g, missing in enumerate(decoder.missing):
            end = following[g] + missing * layout.generations
            indexes += range(following[g], end, layout.generations)
            following[g] = end
    received = decoder.data()
    spent = time.process_time() - begun
    assert received == data
    return spent


def failures(trials: int, lost: int) -> tuple[int, int]:
    """How many of the trials fail with as many symbols as there are to find, and with one more."""
    at_k = above = 0
    checks = {True: CHECKED, False: CHECKED}
    for number, start in enumerate(range(0, trials, TRIALS_OF_A_NAME)):
        count = min(TRIALS_OF_A_NAME, trials - start)
        rng, name = np.random.default_rng(number), number.to_bytes(4, "little")
        repairs = SOURCES + np.arange(count * (lost + 1)).reshape(count, lost + 1)
        gaps = np.argsort(rng.random((count, SOURCES)), axis=1)[:, :lost]
        rows = coefficients(name, repairs.reshape(-1).tolist(), SOURCES)
        unknown = np.take_along_axis(rows.reshape(count, lost + 1, -1), gaps[:, None], axis=2)
        failed = ~has_full_rank(unknown[:, :lost])
        still = ~has_full_rank(unknown[failed])
        at_k, above = at_k + int(failed.sum()), above + int(still.sum())
        for trial in np.flatnonzero(failed)[: checks[True]].tolist():
            _check(name, gaps[trial], repairs[trial, :lost], fails=True)
        for trial in np.flatnonzero(~failed)[: checks[False]].tolist():
            _check(name, gaps[trial], repairs[trial, :lost], fails=False)
        checks = {kind: left - int((failed == kind).sum()) for kind, left in checks.items()}
        checks = {kind: max(0, left) for kind, left in checks.items()}
    return at_k, above


def has_full_rank(matrices: Bytes) -> Losses:
    """Which matrices, uint8 (trials, rows, columns), have independent columns; bool (trials,)."""
    work, trial = matrices.copy(), np.arange(len(matrices))
    full = np.ones(len(work), np.bool_)
    for column in range(work.shape[2]):
        pivot = column + np.argmax(work[:, column:, column] != 0, axis=1)
        row = work[trial, pivot]
        work[trial, pivot] = work[:, column]
        full &= row[:, column] != 0
        row = multiply(INVERSES[row[:, column]][:, None], row)
        below = work[:, column + 1 :]
        below ^= multiply(below[:, :, column, None], row[:, None])
    return full


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a probability."""
    z2, share = 1.96**2, hits / trials
    middle = share + z2 / (2 * trials)
    half = (z2 * (share * (1 - share) + z2 / (4 * trials)) / trials) ** 0.5
    return (middle - half) / (1 + z2 / trials), (middle + half) / (1 + z2 / trials)


def _check(name: bytes, gaps: NDArray[np.int64], repairs: NDArray[np.int64], fails: bool) -> None:
    """The decoder finds of one trial what the ranks say."""
    layout, data = Layout(SOURCES, 1), bytes(range(SOURCES))
    decoder = Decoder(layout, name)
    indexes = [*sorted(set(range(SOURCES)) - set(gaps.tolist())), *repairs.tolist()]
    for index, symbol in zip(indexes, encode_symbols(layout, name, data, indexes), strict=True):
        decoder.add(index, symbol)
    assert decoder.is_complete != fails
    assert fails or decoder.data() == data


def _losses(seed: int) -> Iterator[bool]:
    """Whether each frame of a link is lost."""
    rng = np.random.default_rng([seed, 1])
    while True:
        yield bool(rng.random() < LOSS)
