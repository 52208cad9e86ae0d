"""The parts of a long benchmark: processes of their own, some at a time, each kept when it ends."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AT_ONCE, POLL_S = 2, 0.2  # processes unless told otherwise, and how often they are looked at


class Finished:
    """The values of finished parts by name, in a file of one JSON line for each.

    Nothing checks that an older file was made by the same code: give it only to go on.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path or Path(tempfile.mkdtemp(prefix="ternmesh-bench-"), "parts.jsonl")
        self.values: dict[str, Any] = {}
        if self._path.exists():
            rows = [json.loads(line) for line in self._path.read_text().splitlines()]
            self.values = {row["part"]: row["value"] for row in rows}
        print(f"after an interruption go on with --resume {self._path}", flush=True)

    def add(self, part: str, value: Any) -> None:
        """Keep a part at once: the process may be killed after it."""
        with self._path.open("a") as file:
            file.write(json.dumps({"part": part, "value": value}) + "\n")
        self.values[part] = value


@dataclass(frozen=True, slots=True)
class Job:
    """`python -m` with `arguments`, whose last line of output is the JSON value of `part`."""

    part: str
    arguments: tuple[str, ...]


def finish(
    finished: Finished,
    jobs: Sequence[Job],
    describe: Callable[[Mapping[str, Any]], str],
    at_once: int = AT_ONCE,
) -> None:
    """Run what is missing, in order; prints `describe` of each value and the time that is left.

    SystemExit where a job fails: what ended before is kept.
    """
    missing = [job for job in jobs if job.part not in finished.values]
    running: dict[subprocess.Popen[str], Job] = {}
    began, ended, total = time.monotonic(), 0, len(missing)
    while missing or running:
        while missing and len(running) < at_once:
            job = missing.pop(0)
            running[_start(job)] = job
        for process in [p for p in running if p.poll() is not None]:
            job = running.pop(process)
            output = process.communicate()[0]
            if process.returncode:
                raise SystemExit(f"{job.part} ended with {process.returncode}")
            value = json.loads(output.strip().splitlines()[-1])
            finished.add(job.part, value)
            ended += 1
            left_min = (time.monotonic() - began) / ended * (total - ended) / 60
            shown = f"{ended}/{total} {job.part}: {describe(value)}"
            print(f"{shown}; {left_min:.0f} min left", flush=True)
        time.sleep(POLL_S)


def _start(job: Job) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *job.arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env=environment(threads=1),
    )


def environment(threads: int) -> dict[str, str]:
    """The environment of a process with so many threads."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    # Threads that spin after their work would slow down what is timed next.
    others = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **dict.fromkeys(names, str(threads)), **others}


def worker_output(module: str, *arguments: str) -> str:
    """The last line that `python -m module arguments` prints; CalledProcessError if it fails."""
    answer = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env=environment(threads=1),
    )
    return answer.stdout.strip().splitlines()[-1]
