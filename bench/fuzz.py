"""Every decoder against inputs that coverage guides: a value or our own error, nothing else.

What reads as a value must be written as the same bytes, or read again as the same value; nothing
may allocate more than it declares. Inputs that lead to new places are kept in tests/fuzz_corpus,
which the tests replay. A target is done again when the code that it ran has changed.
"""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.fuzz_corpus import keep, kept
from bench.fuzz_files import CORPUS, FINDINGS, Finding, read_stats
from bench.fuzz_targets import TARGETS
from bench.fuzz_targets.target import Target
from bench.parts import Parts, fingerprint
from bench.result import Figure, Result

MINUTES, QUICK_MINUTES = 10.0, 1 / 60
START_S = 120.0  # what a run may take beyond its time, on a busy machine
_CORE = ("ternmesh", "bench.fuzz_targets")
_PACKAGES = {
    "bench.fuzz_targets.bearers": (*_CORE, "transports"),
    "bench.fuzz_targets.stores": (*_CORE, "ternmesh_store"),
    "bench.fuzz_targets.trust": (*_CORE, "edge"),
    "bench.fuzz_targets.programs": (*_CORE, "transports", "edge", "host", "ternmesh_cli"),
}

Row = dict[str, Any]


def measure(*, quick: bool, minutes: float = MINUTES, only: Sequence[str] = ()) -> Result:
    """Fuzz each target for so many minutes, as many at once as there are cores."""
    minutes = QUICK_MINUTES if quick else minutes
    logging.disable()  # Decoders that log what they refuse would bury the table.
    targets = [target for name, target in TARGETS.items() if not only or name in only]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = dict(pool.map(lambda target: (target.name, _row(target, minutes)), targets))
    executions = sum(row["executions"] for row in rows.values())
    seconds = sum(row["seconds"] for row in rows.values())
    figures = {
        "findings": Figure(sum(len(row["findings"]) for row in rows.values()), "<=0"),
        "executions_per_s": Figure(executions / seconds if seconds else 0.0),
        "decoders": Figure(len(rows)),
        "minutes_each": Figure(minutes, None if quick else ">=10"),
        "executions": Figure(executions),
        "corpus_files": Figure(sum(len(kept(target)) for target in targets)),
    }
    notes = (
        "atheris with coverage of our own Python; C code (cbor2, json, numpy) is not instrumented",
        "executions per second are of one process, memory measured at one input in 101",
    )
    return Result("fuzz", figures, {}, notes, rows, quick=quick)


def _row(target: Target, minutes: float) -> Row:
    """One target's result: what a long run kept of it where its code is the same, else a new run.

    A run in which something was found is never kept.
    """
    packages = _PACKAGES.get(getattr(target.check, "__module__", ""), _CORE)
    done = Parts("fuzz", fingerprint(minutes, packages))
    is_long = minutes >= MINUTES
    if is_long and (row := done.all().get(target.name)):
        return dict(row)
    row = fuzz(target, 60 * minutes)
    if is_long and not row["findings"]:
        done.add(target.name, row)
    print(f"  {target.name:20} {row['executions']:>10} runs  {len(row['findings'])} findings")
    return row


def fuzz(target: Target, seconds: float) -> Row:
    """Run one target in a process of its own; what it learned joins the inputs that are kept."""
    with tempfile.TemporaryDirectory(prefix="ternmesh-fuzz-") as name:
        folder = Path(name)
        inputs, found = folder / CORPUS, folder / FINDINGS
        inputs.mkdir()
        found.mkdir()
        for index, data in enumerate([*target.seeds(), *kept(target)]):
            (inputs / str(index)).write_bytes(data)
        code = _run(target.name, folder, seconds)
        stats = read_stats(folder)
        findings = [*stats.findings, *_artifacts(found, code)]
        if not findings:
            keep(target, [*(path.read_bytes() for path in inputs.iterdir()), *kept(target)])
        rows = [{**asdict(item), "input": _hex(Path(item.input))} for item in findings]
    return {"executions": stats.executions, "seconds": stats.seconds, "findings": rows}


def _run(name: str, folder: Path, seconds: float) -> int:
    command = [sys.executable, "-m", "bench.fuzz_worker", name, str(folder), str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    root = Path(__file__).parents[1]
    with (folder / "log").open("wb") as log:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdout=log,
            stderr=log,
            timeout=seconds + START_S,
            check=False,
        )
    if done.returncode and not any((folder / FINDINGS).iterdir()):
        raise RuntimeError(f"fuzzing {name} did not begin: {(folder / 'log').read_text()[-2000:]}")
    return done.returncode


def _artifacts(folder: Path, code: int) -> list[Finding]:
    """What libFuzzer left where a run ended before its time."""
    made = [path for path in folder.iterdir() if path.name.partition("-")[0] in _KINDS]
    return [Finding(path.name.partition("-")[0], f"exit code {code}", str(path)) for path in made]


_KINDS = ("crash", "timeout", "oom", "slow", "leak")


def _hex(path: Path) -> str:
    return path.read_bytes()[:4096].hex()
