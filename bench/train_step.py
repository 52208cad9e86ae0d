"""A training step in plain onnxruntime against torch eager: time, peak memory, equal gradients.

One process per engine and run, runs interleaved so that a busy machine hurts both; the time of an
engine is the median over runs of each run's median step. Memory is the peak resident set of the
whole process, imports included.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.result import Figure, Result

RUNS, RUNS_QUICK = 5, 1
ENGINES = ("onnxruntime", "torch")
THREADS = (2, 1)


def measure(*, quick: bool) -> Result:
    """Both models, on two threads and on one; `quick` leaves the encoder out."""
    figures: dict[str, Figure] = {}
    peers: dict[str, float] = {}
    errors = []
    for model in ("keyword",) if quick else ("keyword", "encoder"):
        with tempfile.TemporaryDirectory() as folder:
            _work("export", model, 2, folder)
            for threads in THREADS:
                suffix = model if threads == 2 else f"{model}_1_thread"
                times, peaks = _compare(model, threads, folder, RUNS_QUICK if quick else RUNS)
                ratio = times["onnxruntime"] / times["torch"]
                figures[f"time_ratio_{suffix}"] = Figure(ratio, "<=0.80" if threads == 2 else None)
                memory = peaks["onnxruntime"] / peaks["torch"]
                figures[f"memory_ratio_{suffix}"] = Figure(memory, "<=0.5")
                for engine in ENGINES:
                    peers[f"{engine}_{suffix}_ms"] = times[engine] * 1000
                    peers[f"{engine}_{suffix}_mib"] = peaks[engine]
            errors.append(_gradient_error(Path(folder)))
    figures["gradient_error"] = Figure(max(errors), "<=1e-4")
    notes = (
        f"the encoder's weights: {_work('weights', 'encoder', 1, '.')}",
        "torch eager runs its fused attention (sdpa); memory is the peak of the whole process",
        "x86-64, not an Arm board: ratios carry over better than times",
    )
    return Result("train_step", figures, peers, notes, quick=quick)


def _compare(
    model: str, threads: int, folder: str, runs: int
) -> tuple[dict[str, float], dict[str, float]]:
    answers: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for run in range(runs):
        for engine in ENGINES:
            answer = json.loads(_work(engine, model, threads, folder))
            answers[engine].append(answer)
            print(
                f"{model}, {threads} threads, run {run + 1}/{runs}, {engine}: "
                f"{answer['median_s'] * 1000:.1f} ms, {answer['peak_mib']:.0f} MiB",
                flush=True,
            )
    times = {e: float(np.median([a["median_s"] for a in rows])) for e, rows in answers.items()}
    peaks = {e: float(np.median([a["peak_mib"] for a in rows])) for e, rows in answers.items()}
    return times, peaks


def _gradient_error(folder: Path) -> float:
    ours, theirs = (np.load(folder / f"gradient-{engine}.npy") for engine in ENGINES)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def _work(engine: str, model: str, threads: int, folder: str) -> str:
    command = [sys.executable, "-m", "bench.train_step_worker", engine, model, str(threads), folder]
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    answer = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment, "HF_HUB_OFFLINE": "1"},
    )
    return answer.stdout.strip().splitlines()[-1] if engine != "export" else ""
