"""Every decoder against inputs that coverage guides: a value or our own error, nothing else.

What reads as a value must be written as the same bytes, or read again as the same value; nothing
may allocate more than it declares. Inputs that lead to new places are kept in tests/fuzz_corpus,
which the tests replay. Minutes are those that a target's process computes. A finished target is
kept at once, and is done again when code that it ran has changed: the run may be stopped at any
time, and goes on where it was.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from threading import Event, Lock

from bench.fuzz_corpus import keep, kept
from bench.fuzz_files import CORPUS, FINDINGS, REACH, Finding, read_stats
from bench.fuzz_parts import FuzzParts, Row
from bench.fuzz_targets import TARGETS
from bench.fuzz_targets.target import Target
from bench.result import Figure, Result

MINUTES, QUICK_MINUTES = 10.0, 1 / 60
START_S = 300.0  # what a process may take to begin, on a busy machine
BUSY_MAX = 100.0  # how many times longer than it computes a run may take
POLL_S = 0.2


def measure(*, quick: bool, minutes: float = MINUTES, only: Sequence[str] = ()) -> Result:
    """Fuzz each target for so many minutes, as many at once as there are cores."""
    minutes = QUICK_MINUTES if quick else minutes
    logging.disable()  # Decoders that log what they refuse would bury the table.
    targets = [target for name, target in TARGETS.items() if not only or name in only]
    rows = Campaign(targets, 60 * minutes, None if quick else FuzzParts()).run()
    executions = sum(row["executions"] for row in rows.values())
    seconds = sum(row["seconds"] for row in rows.values())
    least = min((row["seconds"] for row in rows.values()), default=0.0) / 60
    figures = {
        "findings": Figure(sum(len(row["findings"]) for row in rows.values()), "<=0"),
        "executions_per_s": Figure(executions / seconds if seconds else 0.0),
        "decoders": Figure(len(rows)),
        "minutes_each": Figure(least, None if quick else f">={MINUTES:g}"),
        "executions": Figure(executions),
        "slowest_input_s": Figure(max((row["slowest_s"] for row in rows.values()), default=0.0)),
        "corpus_files": Figure(sum(len(kept(target)) for target in targets)),
    }
    notes = (
        "atheris with coverage of our own Python; C code (cbor2, json, numpy) is not instrumented",
        "minutes are CPU minutes of each target's process; each figure is of one process",
        "memory is measured at one input in 101",
    )
    return Result("fuzz", figures, {}, notes, rows, quick=quick)


class Campaign:
    """Runs the targets that have not been done; `parts` None keeps and looks up nothing."""

    def __init__(self, targets: Sequence[Target], seconds: float, parts: FuzzParts | None) -> None:
        self._targets = targets
        self._seconds = seconds
        self._parts = parts
        self._stop = Event()
        self._keeping = Lock()  # what is kept is run in this process, whose scratch folder is one

    def run(self) -> dict[str, Row]:
        """One row for each target; when interrupted, what runs is stopped.

        RuntimeError after all others where targets could not be fuzzed.
        """
        rows = {target.name: row for target in self._targets if (row := self._done(target))}
        if rows:
            print(f"  {len(rows)} of {len(self._targets)} targets are done already", flush=True)
        to_do = [target for target in self._targets if target.name not in rows]
        begun, failed = time.monotonic(), []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {pool.submit(self._one, target): target.name for target in to_do}
            try:
                for count, job in enumerate(as_completed(jobs), 1):
                    name, error = jobs[job], job.exception()
                    if isinstance(error, Exception):
                        failed.append(f"{name}: {error!r}")
                        print(f"  {failed[-1]}", flush=True)
                        continue
                    rows[name] = row = job.result()
                    left_s = (time.monotonic() - begun) / count * (len(jobs) - count)
                    print(_progress(name, row, len(rows), len(self._targets), left_s), flush=True)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        if failed:
            raise RuntimeError("\n".join([f"{len(failed)} targets could not be fuzzed", *failed]))
        return {target.name: _shown(rows[target.name]) for target in self._targets}

    def _done(self, target: Target) -> Row | None:
        return self._parts.valid(target, self._seconds) if self._parts else None

    def _one(self, target: Target) -> Row:
        """Fuzz one target in a process of its own; what it learned joins the kept inputs."""
        begun = time.time()
        with tempfile.TemporaryDirectory(prefix="ternmesh-fuzz-") as name:
            folder = Path(name)
            inputs, found = folder / CORPUS, folder / FINDINGS
            inputs.mkdir()
            found.mkdir()
            for index, data in enumerate([*target.seeds(), *kept(target)]):
                (inputs / str(index)).write_bytes(data)
            code = self._process("bench.fuzz_worker", target, folder, str(self._seconds))
            stats = read_stats(folder)
            findings = [*stats.findings, *_artifacts(found, code)]
            if not findings:
                learned = [path.read_bytes() for path in inputs.iterdir()]
                with self._keeping:
                    keep(target, [*learned, *kept(target)])
            items = [{**asdict(item), "input": _hex(Path(item.input))} for item in findings]
            row = {**asdict(stats), "findings": items}
            if self._parts and not findings and stats.seconds >= self._seconds:
                self._process("bench.fuzz_reach", target, folder)
                self._parts.add(target, row, json.loads((folder / REACH).read_text()), begun)
        return row

    def _process(self, module: str, target: Target, folder: Path, *more: str) -> int:
        """Run a module on a folder; its exit code. RuntimeError where it does not even begin."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", module, target.name, str(folder), *more]
        root, limit = Path(__file__).parents[1], START_S + BUSY_MAX * self._seconds
        due = time.monotonic() + limit
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log)
            while process.poll() is None:
                if self._stop.wait(POLL_S) or time.monotonic() > due:
                    process.kill()
                    process.wait()
        if process.returncode and not any((folder / FINDINGS).iterdir()):
            said = (folder / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"fuzzing {target.name} ended with {process.returncode}: {said}")
        return process.returncode


def _progress(name: str, row: Row, done: int, of: int, left_s: float) -> str:
    left = f"about {left_s / 3600:.1f} h left" if left_s >= 3600 else f"{left_s / 60:.0f} min left"
    found = f"{row['executions']:>10} runs  {len(row['findings'])} findings"
    lines = [f"  {name:20} {found}  {done} of {of}, {left}"]
    lines += [f"    {f['where']}: {f['what']} (input {f['input']})" for f in row["findings"]]
    return "\n".join(lines)


def _shown(row: Row) -> Row:
    """What the result says of a target."""
    return {key: row[key] for key in ("executions", "seconds", "slowest_s", "findings")}


def _artifacts(folder: Path, code: int) -> list[Finding]:
    """What libFuzzer left where a run ended before its time."""
    made = [path for path in folder.iterdir() if path.name.partition("-")[0] in _KINDS]
    return [Finding(path.name.partition("-")[0], f"exit code {code}", str(path)) for path in made]


_KINDS = ("crash", "timeout", "oom", "leak")  # an input that is slow we find ourselves


def _hex(path: Path) -> str:
    return path.read_bytes()[:4096].hex()
