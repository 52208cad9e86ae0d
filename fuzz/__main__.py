"""`python -m fuzz [NAME ...] [--minutes N]`: fuzz the decoders, each in a process of its own.

Exit code 1 where an input failed; its path is printed, and the tests run it from then on.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fuzz.table import TARGETS

_ROOT = Path(__file__).parents[1]


def fuzz_one(name: str, seconds: int) -> tuple[str, bool]:
    """Fuzz one target; a line or a report to print, and whether all inputs passed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="ternmesh-fuzz-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.run", name, str(seconds), folder],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    said = done.stderr + done.stdout  # atheris prints the traceback to stdout, at the end
    if done.returncode == 0:
        runs = re.search(r"Done (\d+) runs", said)
        return f"{name:20} {runs[1] if runs else '?':>10} inputs, no failure", True
    paths = re.findall(r"Test unit written to (.+)", said)
    return "\n".join([f"{name:20} FAILED", said[-2000:], *(f"failing: {p}" for p in paths)]), False


def main() -> None:
    """Fuzz the named targets, or all, as many at once as there are processors."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a target; all where none is named"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for each target")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    names = arguments.names or list(TARGETS)
    seconds = max(1, round(60 * arguments.minutes))
    has_passed = True
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(fuzz_one, name, seconds) for name in names]
        for count, job in enumerate(as_completed(jobs), 1):
            line, passed = job.result()
            has_passed &= passed
            print(f"{count:3}/{len(names)}  {line}", flush=True)
    sys.exit(not has_passed)


if __name__ == "__main__":
    main()
