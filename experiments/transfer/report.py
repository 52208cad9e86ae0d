"""What the transfer experiment found, as a table.

Efficiency is what the student gains over its best control without a teacher, divided by what the
teacher gained by its own samples over its best control. The published ratio compares with both
models as they come.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Runs = Mapping[str, Sequence[Mapping[str, Any]]]

ARMS = {
    "before": "as it comes",
    "few": "its few labels alone",
    "self_training": "few labels and probe set, no teacher",
    "packet": "by packet",
    "soft_labels": "by soft labels in eighths",
    "half_lost": "by packet, half of its frames lost",
    "relational": "by packet with hypervectors",
    "structure": "by similarities of hypervectors alone, no labels",
    "hypervectors": "by hypervectors alone, learned encoding",
    "published_hypervectors": "by hypervectors alone, published encoding",
    "prototypes": "not trained: nearest prototype",
    "fp32": "by logits in fp32",
    "shuffled": "by packet, its labels shuffled",
    "true_labels": "by true labels of the probe set",
}


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


def report(results: Runs) -> str:
    """A table for each pair: means over its seeds."""
    lines = []
    for pair, runs in results.items():
        lines += ["", f"{pair}, {len(runs)} seeds"]
        rows = [("teacher without its samples", [run["teacher"]["best"] for run in runs])]
        rows.append(("teacher with its samples", [run["teacher"]["after"] for run in runs]))
        for arm, title in ARMS.items():
            if arm in runs[0]["student"]:
                rows.append((f"student {title}", [run["student"][arm] for run in runs]))
        rows.append(("transfer efficiency", [efficiency(run) for run in runs]))
        rows.append(("the published ratio", [published_ratio(run) for run in runs]))
        lines += [f"  {title:55} {np.mean(values):7.1%}" for title, values in rows]
        for name, size in runs[0]["bytes"].items():
            lines.append(f"  bytes of {name.replace('_', ' '):46} {size:7,}")
        for key in ("packet", "fp32"):
            auc = float(np.mean([run["membership"][key] for run in runs]))
            lines.append(f"  AUC of a membership attack on {key:25} {auc:7.3f}")
    return "\n".join(lines)
