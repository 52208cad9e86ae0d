"""Parts of a benchmark as processes of their own, two at a time, each kept when it ends."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.parts import Parts

AT_ONCE, POLL_S = 2, 0.2  # processes, and how often they are looked at
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Job:
    """`python -m` with `arguments`, whose last line of output is the JSON value of `part`."""

    part: str
    title: str
    arguments: tuple[str, ...]


def finish(parts: Parts, jobs: Sequence[Job], say: Callable[[Mapping[str, Any]], str]) -> None:
    """Run what is missing, in order, with the time that is left; `say` tells of a value.

    SystemExit where a job ends badly: what has ended before is kept.
    """
    done = parts.all()
    missing = [job for job in jobs if job.part not in done]
    running: dict[subprocess.Popen[str], Job] = {}
    began, finished, total = time.monotonic(), 0, len(missing)
    while missing or running:
        while missing and len(running) < AT_ONCE:
            job = missing.pop(0)
            running[_start(job)] = job
        for process in [p for p in running if p.poll() is not None]:
            job = running.pop(process)
            value = _value(job, process)
            parts.add(job.part, value)
            finished += 1
            left_s = (time.monotonic() - began) / finished * (total - finished)
            count = f"{finished}/{total}"
            print(f"{count} {job.title}: {say(value)}; {left_s / 60:.0f} min left", flush=True)
        time.sleep(POLL_S)


def _start(job: Job) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *job.arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, **ONE_THREAD},
    )


def _value(job: Job, process: subprocess.Popen[str]) -> dict[str, Any]:
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{job.title} ended with {process.returncode}")
    value: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return value
