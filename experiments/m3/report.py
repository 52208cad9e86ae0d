"""The report, one HTML file: measured figures, plots, and the published figures beside them.

The page of the Resonance Protocol's M3 names DistilBERT, SNLI and 50 rounds. Its lab log of the
same day has OPT-350m, Alpaca and 3 rounds. The training code was never published; the published
sizes follow from the model of the log.
"""

import html
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.m3.pages import COLOURS, page, svg, table
from experiments.m3.results import FLOAT_BYTES, ArmResult
from experiments.m3.settings import NODES, Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE = "Resonance Protocol, M3 series (nick-yudin/resonance-protocol, December 2025)"
OPT_LAYERS, OPT_WIDTH, OPT_RANK = 24, 1024, 8
OPT_NUMBERS = OPT_LAYERS * 2 * OPT_RANK * (OPT_WIDTH + OPT_WIDTH)  # q and v: 786,432
CODE_BITS = 2  # of a number in M3b's code
LOG_BITS = 64  # of a number that the log compares with
NAMES_BYTES = 9_000  # about the size of names and scales in M3b's message
NOTES = (
    "Bytes are those of messages, without the headers of MQTT and TCP. The downlink is counted "
    "once for both nodes. Bytes of ternmesh are those of real programs over MQTT and include tags, "
    "signatures, receipts and announcements. The messages of the published arms are written and "
    "read, but sent over no network.",
    "Accuracy is that of the last global adapter, which both nodes hold, on all dev and extra "
    "pairs. One seed: differences of a point are noise; `python -m bench m3` has eight. Wall time "
    "counts the evaluation of each round. A packet of ternmesh mixes all components.",
)


def _part(part: str, arm: ArmResult) -> str:
    return f"{arm.parts[part]:,.0f}" if part in arm.parts else ""


ROWS: Mapping[str, Callable[[ArmResult], str]] = {
    "trained numbers": lambda arm: f"{arm.dimension:,}",
    "bytes up, a node and round": lambda arm: f"{arm.bytes_up:,.0f}",
    "bytes down, a round": lambda arm: f"{arm.bytes_down:,.0f}",
    "bytes up, whole run": lambda arm: f"{arm.run_bytes_up:,}",
    "bytes down, whole run": lambda arm: f"{arm.run_bytes_down:,}",
    **{f"bytes up, {part}": partial(_part, part) for part in ("q", "k", "v", "out", "head")},
    "steps of each node": lambda arm: f"{arm.steps:,}",
    "rounds": lambda arm: str(len(arm.rounds)),
    "accuracy": lambda arm: f"{arm.accuracy:.2%}",
    "wall time": lambda arm: f"{arm.seconds:,.0f} s",
}


def write_report(experiment: Experiment, results: Mapping[str, ArmResult]) -> str:
    """Return the page."""
    arms = list(results.values())
    parts = [
        "<h1>M3: two nodes learn together</h1>",
        f"<p>Encoder {html.escape(experiment.encoder)}, SNLI, {experiment.rounds} rounds of "
        f"{experiment.steps} steps on each of two nodes, seed {experiment.seed}.</p>",
        table(
            ("", *(arm.name for arm in arms)),
            [(title, *(show(arm) for arm in arms)) for title, show in ROWS.items()],
        ),
        *(f"<p class=note>{html.escape(note)}</p>" for note in NOTES),
        "<h2>Bytes of one round</h2>",
        svg("bytes", lambda axes: _draw_bytes(axes, arms)),
        "<h2>Loss and accuracy by round, of both nodes</h2>",
        svg("loss", lambda axes: _draw_curves(axes, arms, "loss")),
        svg("accuracy", lambda axes: _draw_curves(axes, arms, "accuracy")),
        "<h2>Published and measured figures</h2>",
        f"<p class=note>{html.escape(SOURCE)}. The measured column is of this run.</p>",
        table(("", "published", "what it counts", "measured"), comparisons(results)),
    ]
    return page("ternmesh experiment m3", parts)


def _draw_bytes(axes: "Axes", arms: Sequence[ArmResult]) -> None:
    for arm, colour in zip(arms, COLOURS, strict=False):
        versions = [item.version for item in arm.rounds]
        up = [sum(item.bytes_up.values()) / max(1, len(item.bytes_up)) for item in arm.rounds]
        down = [item.bytes_down for item in arm.rounds]
        axes.plot(versions, up, color=colour, label=f"{arm.name}, up, a node")
        axes.plot(versions, down, ":", color=colour, label=f"{arm.name}, down")
    float_bytes = FLOAT_BYTES * max(arm.dimension for arm in arms)
    axes.axhline(float_bytes, color="#777777", ls="--", label="float32")
    axes.set_yscale("log")


def _draw_curves(axes: "Axes", arms: Sequence[ArmResult], what: str) -> None:
    for arm, colour in zip(arms, COLOURS, strict=False):
        for node, style in zip(NODES, ("-", ":"), strict=True):
            values = [getattr(item, what).get(node) for item in arm.rounds]
            shown = [np.nan if value is None else value for value in values]
            versions = [item.version for item in arm.rounds]
            axes.plot(versions, shown, style, color=colour, label=f"{arm.name}, node {node}")


def text_bytes(count: int = 10_000, seed: int = 0) -> float:
    """Return the mean bytes of a float32 number in JSON with its separator: about 22.4."""
    drawn = np.random.default_rng(seed).standard_normal(count).astype(np.float32) * 0.02
    return len(json.dumps(drawn.tolist())) / count


def comparisons(results: Mapping[str, ArmResult]) -> list[tuple[str, str, str, str]]:
    """Return rows of: name, published figure, what it counts, measured figure.

    `results` are those of the arms that were run, by name.
    """
    m3a, m3b, ours = (results.get(name) for name in ("m3a", "m3b", "ours"))
    coded = OPT_NUMBERS * CODE_BITS // 8
    text_mb = OPT_NUMBERS * text_bytes() / 1e6
    return [
        (
            "M3a, bytes of one update",
            "17.5 MB",
            f"JSON text of the {OPT_NUMBERS:,} LoRA numbers of OPT-350m (q and v), about 22 "
            f"characters each ({text_mb:.1f} MB); as float32 they are "
            f"{OPT_NUMBERS * FLOAT_BYTES / 1e6:.2f} MB",
            _size(m3a),
        ),
        (
            "M3b, bytes of one update",
            "271 KB",
            f"{CODE_BITS} bits a number ({coded:,} bytes) as base64 ({coded * 4 // 3:,}), with "
            f"about {NAMES_BYTES // 1000} KB of names and scales; the code is dense: 70 % of zeros "
            "save nothing",
            _size(m3b),
        ),
        (
            "Compression",
            "32x",
            f"{LOG_BITS} bits over {CODE_BITS}: the log compares with float64. Text over base64 is "
            "65x. Against float32, 271 KB are 11.6x; against float16, 5.8x",
            _ratios(m3a, m3b),
        ),
        (
            "Accuracy, M3a to M3b",
            "85.2 % to 84.8 %",
            "no accuracy in the log: a loss of 1.92 to 2.02 (5 % worse), on Alpaca",
            _accuracies(m3a, m3b),
        ),
        (
            "Steps and rounds",
            "500 steps, 50 rounds",
            "3 rounds in the log; the plot of M3a's convergence was drawn from a formula and noise",
            "; ".join(f"{r.name}: {r.steps}, {len(r.rounds)}" for r in results.values()),
        ),
        (
            "Hypervectors",
            "10,000 dimensions",
            "none in M3b: the numbers of each tensor become signs, of the state and not of its "
            "change, and the rounding error is not carried over",
            "not run" if ours is None else f"ours: {ours.accuracy:.1%}, {_size(ours)}",
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
    shown = [f"{r.name}: {r.accuracy:.1%}" for r in (m3a, m3b) if r is not None]
    return ", ".join(shown) or "not run"
