"""One fuzzing run of one target in a process of its own, with atheris (imported here only).

    python -m bench.fuzz_worker TARGET FOLDER SECONDS

Seconds are those that the process computes, so a busy machine makes a run longer, not smaller. The
folder's `corpus/` grows; what is found goes to `findings/`, each with its traceback, and the run
goes on. What libFuzzer itself finds (no answer within `PATIENCE_S`, too much memory, a crash of the
interpreter) ends the run with an artifact there.
"""

import hashlib
import importlib
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench.fuzz_files import CORPUS, FINDINGS, INSTRUMENTED, Finding, Stats, write_stats
from bench.fuzz_traced import TooMuchMemory, check_memory, is_refuted

PATIENCE_S = 60  # for one input, whatever else the machine does
SLOW_S = 1.0  # of computing, for one input
MEMORY_MB = 2048  # of the process
TRACED_EVERY = 101  # one input in so many has its memory measured
STATS_EVERY_S = 0.5


class Run:
    """Tries inputs on one target; of equal findings the shortest input is kept."""

    def __init__(self, target: Any, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._begun = self._written = time.process_time()
        self._slowest_s = 0.0
        self._executions = 0
        self._findings: dict[str, Finding] = {}
        self._sizes: dict[str, int] = {}

    def one(self, data: bytes) -> None:
        """Try one input."""
        self._executions += 1
        try:
            if self._executions % TRACED_EVERY == 0:
                self._check_memory(data)
            else:
                self._check_time(data)
        except Exception as error:  # noqa: BLE001  (that is what is looked for)
            self._found(data, error)
        if (now := time.process_time()) > self._written + STATS_EVERY_S:
            self._write(now)

    @property
    def spent_s(self) -> float:
        """The CPU seconds of this process since the run began."""
        return time.process_time() - self._begun

    def _check_time(self, data: bytes) -> None:
        begun = time.process_time()
        self._target.run(data)
        spent = time.process_time() - begun
        self._slowest_s = max(self._slowest_s, spent)
        if spent > SLOW_S:
            raise AssertionError(f"{spent:.2f} s for one input, where {SLOW_S} are enough")

    def _check_memory(self, data: bytes) -> None:
        try:
            check_memory(self._target, data)
        except TooMuchMemory:
            if not is_refuted(self._target, data, self._folder):
                raise

    def _found(self, data: bytes, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        if self._sizes.get(where, sys.maxsize) <= len(data):
            return
        path = self._folder / FINDINGS / hashlib.sha256(where.encode()).hexdigest()[:16]
        path.write_bytes(data)
        path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))
        self._sizes[where] = len(data)
        self._findings[where] = Finding(where, str(error)[:300], str(path))
        self._write(time.process_time())

    def _write(self, now: float) -> None:
        self._written = now
        found = tuple(self._findings.values())
        spent = now - self._begun
        write_stats(self._folder, Stats(self._executions, spent, found, self._slowest_s))

    def finish(self) -> None:
        """Write how far the run came."""
        self._write(time.process_time())


def main() -> None:
    """Fuzz until the time is over."""
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        raise SystemExit(
            "fuzzing needs the package atheris: pip install 'ternmesh[fuzz]'"
        ) from None
    logging.disable()
    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        targets: Any = importlib.import_module("bench.fuzz_targets")
    target = targets.TARGETS[name]
    for seed in target.seeds():
        target.run(seed)  # What is made once and kept is made before memory is measured.
    run, parent = Run(target, folder), os.getppid()

    def one(data: bytes) -> None:
        run.one(data)
        if run.spent_s >= seconds or os.getppid() != parent:
            run.finish()
            os._exit(0)  # libFuzzer has written its inputs; it knows no other way out

    options = {
        "max_len": target.length_max,
        "timeout": PATIENCE_S,
        "report_slow_units": PATIENCE_S,  # a pause of the machine is no finding: see `SLOW_S`
        "rss_limit_mb": MEMORY_MB,
        "artifact_prefix": f"{folder / FINDINGS}/",
    }
    arguments = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup(["fuzz", *arguments, str(folder / CORPUS)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
