"""What refusing costs: no hostile input of 64 KiB takes more than twice what its decoder declares.

Measured by the kernel in a process of its own, so that what C code allocates counts as well;
`tests/test_fuzz_corpus.py` measures the kept inputs by what Python allocates.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.fuzz_memory import ENVIRONMENT, FORGET, INPUT_MAX, inputs
from bench.fuzz_targets import TARGETS
from bench.fuzz_targets.target import Target

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not FORGET.exists(), reason="only Linux forgets a peak of memory")


@pytest.fixture(scope="module")
def peaks() -> dict[str, tuple[int, str]]:
    """Bytes of each target at its worst input."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.fuzz_memory"],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_refusing_takes_no_more_than_twice_what_is_declared(
    name: str, peaks: dict[str, tuple[int, str]]
) -> None:
    taken, label = peaks[name]
    assert taken <= 2 * TARGETS[name].memory_max, label


def test_something_is_measured(peaks: dict[str, tuple[int, str]]) -> None:
    """Memory that is used again would hide what an input takes."""
    assert sum(taken >= INPUT_MAX // 2 for taken, _ in peaks.values()) > len(TARGETS) // 2


def test_inputs_are_wide_and_no_longer_than_64_kib() -> None:
    made = dict(inputs(Target("any", lambda data: None, lambda: [b"abc" * 40, b"de"])))
    assert max(map(len, made.values())) == INPUT_MAX
    assert len(made) == len(set(made.values())) > 30
