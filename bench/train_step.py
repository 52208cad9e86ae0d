"""A training step in plain onnxruntime against torch eager: time, peak memory, equal gradients.

One process per engine and run, runs interleaved so that a busy machine slows both; the time of an
engine is the median over runs of each run's median step. Memory is the peak resident set of the
whole process, imports included.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import worker_output
from bench.result import Figure, Result, machine

RUNS, RUNS_QUICK = 5, 1
ENGINES = ("onnxruntime", "torch")


def measure(*, quick: bool) -> Result:
    """Both models, on two threads and on one; `quick` takes the keyword model on two threads."""
    figures: dict[str, Figure] = {}
    peers: dict[str, float] = {}
    errors = []
    for model in ("keyword",) if quick else ("keyword", "encoder"):
        with tempfile.TemporaryDirectory() as folder:
            step_of("export", model, folder)
            for threads in (2,) if quick else (2, 1):
                suffix = model if threads == 2 else f"{model}_1_thread"
                times, peaks = _compare(model, threads, folder, RUNS_QUICK if quick else RUNS)
                ratio = times["onnxruntime"] / times["torch"]
                figures[f"time_ratio_{suffix}"] = Figure(ratio, "<=0.80" if threads == 2 else None)
                print(f"time ratio, {suffix}: {ratio:.2f} on {machine()['cpu']}", flush=True)
                memory = peaks["onnxruntime"] / peaks["torch"]
                figures[f"memory_ratio_{suffix}"] = Figure(memory, "<=0.5")
                for engine in ENGINES:
                    peers[f"{engine}_{suffix}_ms"] = times[engine] * 1000
                    peers[f"{engine}_{suffix}_mib"] = peaks[engine]
            ours, theirs = (np.load(Path(folder, f"gradient-{engine}.npy")) for engine in ENGINES)
            errors.append(float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)))
    figures["gradient_error"] = Figure(max(errors), "<=1e-4")
    notes = (
        f"time ratios are of this processor, {machine()['cpu']}: the encoder's was 0.56 on one "
        "processor and 0.89 on another",
        "the encoder: BERT of 22 M parameters, random weights, 8 x 48 tokens",
        "torch eager runs its fused attention (sdpa); memory is the peak of the whole process",
    )
    return Result("train_step", figures, peers, notes, quick=quick)


def _compare(
    model: str, threads: int, folder: str, runs: int
) -> tuple[dict[str, float], dict[str, float]]:
    answers: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for run in range(runs):
        for engine in ENGINES:
            answer = step_of(engine, model, folder, threads)
            answers[engine].append(answer)
            print(
                f"{model}, {threads} threads, run {run + 1}/{runs}, {engine}: "
                f"{answer['median_s'] * 1000:.1f} ms, {answer['peak_mib']:.0f} MiB",
                flush=True,
            )
    times = {e: float(np.median([a["median_s"] for a in rows])) for e, rows in answers.items()}
    peaks = {e: float(np.median([a["peak_mib"] for a in rows])) for e, rows in answers.items()}
    return times, peaks


def step_of(engine: str, model: str, folder: str, threads: int = 2) -> dict[str, Any]:
    """What one process of the worker measures: see its module; empty for "export"."""
    arguments = (engine, model, str(threads), folder)
    answer = worker_output("bench.train_step_worker", *arguments, threads=threads)
    values: dict[str, Any] = json.loads(answer) if engine != "export" else {}
    return values
