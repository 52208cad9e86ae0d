"""The published figures of the Resonance Protocol's M3, what they count, and what we measure.

Its page names DistilBERT, SNLI and 50 rounds; its lab log, written on the day, has OPT-350m, Alpaca
and 3 rounds, and its training code was never published. The sizes follow from the log's model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ternmesh_cli.experiment.result import FLOAT_BYTES, ArmResult

SOURCE = "Resonance Protocol, M3 series (nick-yudin/resonance-protocol, December 2025)"
OPT_LAYERS, OPT_WIDTH, OPT_RANK = 24, 1024, 8
OPT_NUMBERS = OPT_LAYERS * 2 * OPT_RANK * (OPT_WIDTH + OPT_WIDTH)  # q and v: 786,432
CODE_BITS, LOG_BITS = 2, 64  # of M3b's code; of the numbers that the log compares with
NAMES_BYTES = 9_000  # of names and scales around M3b's base64, about


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published figure, what it counts, and what was measured here."""

    figure: str
    published: str
    meaning: str
    measured: str


def text_bytes(count: int = 10_000, seed: int = 0) -> float:
    """Mean bytes of a float32 number as JSON text, separator included: about 22.4."""
    drawn = np.random.default_rng(seed).standard_normal(count).astype(np.float32) * 0.02
    return len(json.dumps(drawn.tolist())) / count


def comparisons(results: Mapping[str, ArmResult]) -> list[Comparison]:
    """The published figures beside those of the arms that were run."""
    m3a, m3b, ours = (results.get(name) for name in ("m3a", "m3b", "ours"))
    coded = OPT_NUMBERS * CODE_BITS // 8
    text_mb = OPT_NUMBERS * text_bytes() / 1e6
    return [
        Comparison(
            "M3a, bytes of one update",
            "17.5 MB",
            f"JSON text of the {OPT_NUMBERS:,} LoRA numbers of OPT-350m (q and v), about 22 "
            f"characters each ({text_mb:.1f} MB); as float32 they are "
            f"{OPT_NUMBERS * FLOAT_BYTES / 1e6:.2f} MB",
            _size(m3a),
        ),
        Comparison(
            "M3b, bytes of one update",
            "271 KB",
            f"{CODE_BITS} bits a number ({coded:,} bytes) as base64 ({coded * 4 // 3:,}), with "
            f"about {NAMES_BYTES // 1000} KB of names and scales; a dense code, so that its 70 % "
            "of zeros save nothing",
            _size(m3b),
        ),
        Comparison(
            "Compression",
            "32x",
            f"{LOG_BITS} bits over {CODE_BITS}: the log takes float64 for the original. Text over "
            "base64 is 65x. Against float32, 271 KB are 11.6x, against float16 5.8x",
            _ratios(m3a, m3b),
        ),
        Comparison(
            "Accuracy, M3a to M3b",
            "85.2 % to 84.8 %",
            "no accuracy in the log: a loss of 1.92 to 2.02 (5 % worse), on Alpaca",
            _accuracies(m3a, m3b),
        ),
        Comparison(
            "Steps and rounds",
            "500 steps, 50 rounds",
            "3 rounds in the log; the plot of M3a's convergence was drawn from a formula and noise",
            "; ".join(f"{r.name}: {r.steps}, {len(r.rounds)}" for r in results.values()),
        ),
        Comparison(
            "Hypervectors",
            "10,000 dimensions",
            "none in M3b: each tensor's own numbers become signs; the state, not what changed in "
            "it, and what is rounded away is not carried over",
            "not run" if ours is None else f"ours: {ours.mean_accuracy:.1%}, {_size(ours)}",
        ),
    ]


def _size(result: ArmResult | None) -> str:
    if result is None:
        return "not run"
    return f"{result.bytes_up:,.0f} bytes for {result.dimension:,} numbers"


def _ratios(m3a: ArmResult | None, m3b: ArmResult | None) -> str:
    if m3b is None:
        return "not run"
    plain = FLOAT_BYTES * m3b.dimension / m3b.bytes_up
    text = f"M3b: {plain:.1f}x below float32, {plain / 2:.1f}x below float16"
    return text if m3a is None else f"{text}, {m3a.bytes_up / m3b.bytes_up:.1f}x below M3a's text"


def _accuracies(m3a: ArmResult | None, m3b: ArmResult | None) -> str:
    shown = [f"{r.name}: {r.mean_accuracy:.1%}" for r in (m3a, m3b) if r is not None]
    return ", ".join(shown) or "not run"
