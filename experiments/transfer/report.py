"""The report of the transfer experiment, one HTML file."""

import html
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ternmesh_cli.html_report import COLOURS, note, page, svg, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Runs = Mapping[str, Sequence[Mapping[str, Any]]]

ARMS = {
    "before": "as it comes",
    "few": "its few labels alone",
    "self_training": "few labels and probe set, no teacher",
    "packet": "by packet (soft labels)",
    "half_lost": "by packet, half of its frames lost",
    "relational": "by packet with hypervectors",
    "structure": "by similarities of hypervectors alone, no labels",
    "hypervectors": "by hypervectors alone, learned encoding",
    "published_hypervectors": "by hypervectors alone, published encoding",
    "prototypes": "not trained: nearest prototype",
    "fp32": "by logits in fp32",
    "true_labels": "by true labels of the probe set",
    "board": "by packet, through onnxruntime",
    "board_trained": "trained on the board by packet",
}
NOTES = (
    "Efficiency is what the student gains over its best control without a teacher, divided by what "
    "the teacher gained by its own samples over its best control. The controls of both have the "
    "same few labels and the same probe set.",
    "The published ratio compares with both models as they come.",
    "Bytes are those of frames, with heads, signatures and tags. The publication counts 271 KB for "
    "a packet; its code sent 2.7 MB of plain text. Its runs with hypervectors alone reached 59 to "
    "73 % accuracy.",
)


def efficiency(run: Mapping[str, Any]) -> float:
    """What the student gains by packet, relative to what the teacher had gained."""
    teacher, student = run["teacher"], run["student"]
    gained = teacher["after"] - teacher["best"]
    return float((student["packet"] - student["best"]) / gained)


def published_ratio(run: Mapping[str, Any]) -> float:
    """The same by the published definition: from both models as they come."""
    teacher, student = run["teacher"], run["student"]
    gained = teacher["after"] - teacher["before"]
    return float((student["packet"] - student["before"]) / gained)


def write_report(results: Runs) -> str:
    """The page for the runs of each pair."""
    parts = ["<h1>Knowledge across architectures</h1>", *map(note, NOTES)]
    for pair, runs in results.items():
        parts += [f"<h2>{html.escape(pair)}</h2>", svg(partial(_draw, runs))]
        parts.append(table(("", "accuracy"), _accuracies(runs)))
        parts.append(table(("", ""), _figures(runs)))
    return page("ternmesh experiment transfer", parts)


def _accuracies(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    teacher = [
        (f"teacher, {title}", _mean([run["teacher"][key] for run in runs]))
        for key, title in (("best", "without its samples"), ("after", "with its samples"))
    ]
    return teacher + [
        (f"student, {title}", _mean([run["student"][arm] for run in runs]))
        for arm, title in ARMS.items()
        if arm in runs[0]["student"]
    ]


def _figures(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    size = runs[0]["bytes"]
    return [
        ("seeds", str(len(runs))),
        ("transfer efficiency", _mean([efficiency(run) for run in runs])),
        ("the published ratio", _mean([published_ratio(run) for run in runs])),
        ("bytes of the soft labels", f"{size['labels']:,}"),
        ("the same over radios", f"{size['labels_radio']:,}"),
        ("bytes of the hypervectors", f"{size['hypervectors']:,}"),
        ("bytes of logits in fp32", f"{size['logits_fp32']:,}"),
        ("bytes of the labelled samples", f"{size['labelled_data']:,}"),
        ("membership attack on the packet, AUC", f"{_of(runs, 'packet'):.3f}"),
        ("membership attack on fp32 logits, AUC", f"{_of(runs, 'fp32'):.3f}"),
    ]


def _of(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([run["membership"][key] for run in runs]))


def _mean(values: Sequence[float]) -> str:
    spread = f" (± {np.std(values, ddof=1):.1%} between seeds)" if len(values) > 1 else ""
    return f"{np.mean(values):.1%}{spread}"


def _draw(runs: Sequence[Mapping[str, Any]], axes: "Axes") -> None:
    arms = [arm for arm in ARMS if arm in runs[0]["student"]]
    means = [100 * float(np.mean([run["student"][arm] for run in runs])) for arm in arms]
    teacher = 100 * float(np.mean([run["teacher"]["after"] for run in runs]))
    without = ("before", "few", "self_training")
    colours = [COLOURS[1] if arm in without else COLOURS[0] for arm in arms]
    axes.barh([ARMS[arm] for arm in arms], means, color=colours)
    axes.axvline(teacher, color=COLOURS[2], label="teacher")
    axes.invert_yaxis()
    axes.set_xlabel("accuracy, %")
    axes.legend(loc="lower left")
