"""Knowledge packets between architectures, with every control that could prove them useless.

`python -m bench transfer`: four seeds of each pair, in processes of `experiments.transfer`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import Finished, Job, finish
from bench.result import Figure, Result, mean_figure
from experiments.data import FILES, find_data
from experiments.transfer.report import ARMS

SEEDS, SEEDS_QUICK = 4, 1
DIGITS = ("digits-cnn", "digits-mlp")
BANKING = ("banking-stories260k", "banking-gpt2")
OTHERS, SNLI = ("wisdm-cnn", "notes-cnn"), ("snli-stories260k",)
CONTROLS = ("before", "few", "self_training")
NOTES = (
    "digits: a transformer teaches a CNN and an MLP (LoRA adapters, trained before on three other "
    "voices); banking: a head on frozen MiniLM embeddings teaches two small decoders; wisdm: an "
    "MLP teaches a CNN; notes: a head on frozen MiniLM embeddings of a note about each window "
    "(made up; 15 % are about any activity) teaches that CNN; snli: a small net on frozen MiniLM "
    "embeddings teaches stories260k. gpt2-small was trained here on 3.9 MB of text: no published "
    "weights of GPT-2 are at hand",
    "efficiency: (student by packet - its best control) / (teacher after - its best control). The "
    "best control is the best of: as it comes, few labels, few labels and self-training on the "
    "probe set. Both sides have the same few labels and probe set; above 1 the student had more "
    "to gain than the teacher",
    "published_ratio: (student by packet - as it comes) / (teacher after - as it comes)",
    "bytes are frames with heads, signatures and tags: of 1,024 bytes, and of 184 over radios. "
    "They were cut, sealed in size and read again here; no bearer took part",
    "the best control is chosen on the test samples, in favour of the controls",
    "membership: the attacker knows the true label of each sample and takes the teacher's "
    "probability of it; half of the samples were the teacher's",
)

Run = Mapping[str, Any]
Runs = Mapping[str, Sequence[Run]]


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All pairs and seeds; `quick` takes one seed of the pairs without language models."""
    seeds = range(SEEDS_QUICK if quick else SEEDS)
    pairs = (*DIGITS, *OTHERS) if quick else (*DIGITS, *BANKING, *OTHERS, *SNLI)
    finished, data = Finished(resume), find_data(*FILES)
    kept = tempfile.mkdtemp(prefix="ternmesh-transfer-") if resume is None else f"{resume}.models"
    jobs = [
        Job(f"{pair} {seed}", ("experiments.transfer.arms", pair, str(seed), kept, str(data)))
        for seed in seeds
        for pair in pairs
    ]
    finish(finished, jobs, _describe)
    runs = {pair: [finished.values[f"{pair} {seed}"] for seed in seeds] for pair in pairs}
    return Result("transfer", _figures(runs), _peers(runs), NOTES, {"pairs": _details(runs)}, quick)


def _describe(value: Run) -> str:
    student = value["student"]
    return f"{student['best']:.1%} without a teacher, {student['packet']:.1%} by packet"


def _figures(runs: Runs) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    found = {pair: [run["efficiency"] for run in rows] for pair, rows in runs.items()}
    for task, pairs in (("digits", DIGITS), ("banking", BANKING)):
        students = [mean_figure(found[pair], ">=0.93") for pair in pairs if pair in found]
        if students:  # the worst student of the task
            figures[f"efficiency_{task}"] = min(students, key=lambda figure: figure.value)
    figures |= {f"efficiency_{pair}": mean_figure(values) for pair, values in found.items()}
    for pair, rows in runs.items():
        limit = None if pair.startswith("snli") else ">=0.98"
        shares = [run["student"]["packet"] / run["student"]["fp32"] for run in rows]
        figures[f"of_fp32_{pair}"] = mean_figure(shares, limit)
    for rows in [rows for pair, rows in runs.items() if pair in SNLI]:  # the source's own task
        for name, arm in (("hard", "packet"), ("shuffled", "shuffled"), ("true", "true_labels")):
            figures[f"snli_{name}_labels"] = mean_figure([run["student"][arm] for run in rows])
    for name, key in (("packet_bytes", "labels"), ("packet_bytes_radio", "labels_radio")):
        largest = max(run["bytes"][key] for rows in runs.values() for run in rows)
        figures[name] = Figure(largest, "<=27000")
    figures |= {
        f"packet_bytes_{pair}": mean_figure([run["bytes"]["labels"] for run in rows])
        for pair, rows in runs.items()
    }
    for pair, rows in runs.items():
        for key in ("packet", "fp32"):
            aucs = [run["membership"][key] for run in rows]
            figures[f"membership_auc_{key}_{pair}"] = mean_figure(aucs)
    return figures


def _peers(runs: Runs) -> dict[str, float]:
    """What else could be sent, and what the source reports."""
    peers = {"published_efficiency": 0.93, "published_bytes": 271_000, "sent_by_its_code": 2.7e6}
    for pair, rows in runs.items():
        for key in ("logits_fp32", "labelled_data", "published_hypervectors"):
            peers[f"{key}_bytes_{pair}"] = float(np.mean([run["bytes"][key] for run in rows]))
    return peers


def _details(runs: Runs) -> dict[str, Any]:
    """Accuracies in percent with their intervals, by pair and arm."""
    return {
        pair: {
            "published_ratio": _row([run["published_ratio"] for run in rows], 1.0),
            "teacher": {
                arm: _row([run["teacher"][arm] for run in rows])
                for arm in (*CONTROLS, "best", "after")
            },
            "student": {
                arm: _row([run["student"][arm] for run in rows])
                for arm in ("best", *ARMS)
                if arm in rows[0]["student"]
            },
            "bytes": rows[0]["bytes"],
            "rows": rows[0]["rows"],
        }
        for pair, rows in runs.items()
    }


def _row(values: Sequence[float], scale: float = 100.0) -> list[float]:
    """Mean, and the ends of its interval."""
    figure = mean_figure([scale * value for value in values])
    return [round(one, 2) for one in (figure.value, *(figure.ci95 or ()))]
