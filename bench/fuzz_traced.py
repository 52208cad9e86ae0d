"""The memory that an input takes at once, as Python's allocator tells it.

    python -m bench.fuzz_traced TARGET FILE

measures the input in the file in a process of its own, and fails where it takes too much. Python
keeps the names that it has interned in one table: whoever adds the name that fills it, say one in
65,000, seems to take the 1.9 MB of the next table. In a fresh process the same input does not.
"""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

AGAIN = "again"  # the file of a run's folder with the input that is measured once more


class TooMuchMemory(AssertionError):
    """An input took more memory at once than its target declares."""


def check_memory(target: Any, data: bytes) -> None:
    """Run an input; TooMuchMemory where it takes more at once than the target declares."""
    tracemalloc.start()
    try:
        target.run(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if peak > target.memory_max:
        raise TooMuchMemory(f"{peak} bytes at once, where {target.memory_max} are declared")


def is_refuted(target: Any, data: bytes, folder: Path) -> bool:
    """Whether the input, too much in this process, is not so in a fresh one."""
    path = folder / AGAIN
    path.write_bytes(data)
    command = [sys.executable, "-m", "bench.fuzz_traced", target.name, str(path)]
    return subprocess.run(command, check=False).returncode == 0


def main(name: str, path: Path) -> None:
    """Measure one input after the seeds, which make what is made once and kept."""
    from bench.fuzz_targets import TARGETS

    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)
    check_memory(TARGETS[name], path.read_bytes())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
