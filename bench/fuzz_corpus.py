"""The inputs that are kept of fuzzing, in tests/fuzz_corpus: few, short, and each for a reason."""

import gc
import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from bench.fuzz_targets.target import Target

KEPT = Path(__file__).parents[1] / "tests" / "fuzz_corpus"
FILES_MAX, BYTES_MAX = 24, 512  # inputs of a target, bytes of one
REGRESSION = (
    "found-"  # how the name of an input begins that was a finding once: it is never dropped
)
_PACKAGES = (
    *("ternmesh", "ternmesh_store", "transports", "models", "edge", "host", "ternmesh_cli"),
    "bench",
)
_ROOT = Path(__file__).parents[1]
_OURS = tuple(str(_ROOT / package) + os.sep for package in _PACKAGES)  # not a .venv beside them

Step = tuple[str, int, int]


def path_of(target: Target, data: bytes) -> frozenset[Step]:
    """The pairs of lines of our packages that an input leads through, one after the other."""
    steps: set[Step] = set()

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS):
            return None
        before = 0

        def line(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal before
            if event == "line":
                steps.add((file, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line

    is_collecting = gc.isenabled()
    gc.disable()  # what others left behind must not be cleared away on this path
    sys.settrace(trace)
    try:
        target.run(data)
    except Exception as error:  # noqa: BLE001  (a finding is somebody else's business)
        steps.add((type(error).__name__, 0, 0))
    finally:
        sys.settrace(None)
        if is_collecting:
            gc.enable()
    return frozenset(steps)


def choose(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """The inputs, shortest first, of which each leads somewhere that those before it do not."""
    short = sorted({data for data in inputs if len(data) <= BYTES_MAX}, key=lambda d: (len(d), d))
    seen: set[Step] = set()
    gains: list[tuple[int, bytes]] = []
    for data in short:
        new = path_of(target, data) - seen
        if new:
            seen |= new
            gains.append((len(new), data))
    gains.sort(key=lambda item: -item[0])
    return [data for _, data in gains[:FILES_MAX]]


def keep(target: Target, inputs: Iterable[bytes]) -> int:
    """Replace what is kept of a target by what `choose` chooses; regressions stay. Its count."""
    folder = KEPT / target.name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = choose(target, inputs)
    for path in folder.iterdir():
        if not path.name.startswith(REGRESSION):
            path.unlink()
    for data in chosen:
        (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    return len(list(folder.iterdir()))


def kept(target: Target) -> list[bytes]:
    """The inputs that are kept of a target."""
    folder = KEPT / target.name
    return [path.read_bytes() for path in sorted(folder.glob("*"))]
