"""The first steps of a model, in a child process with limits of memory and time.

Whatever kills the child (exhausted memory, a crash of onnxruntime, an endless loop) is an error in
the parent. The child runs this module as a program: `python -m edge.releases.trial FOLDER
THREADS MEMORY_MIB CPU_S`.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from edge.errors import BoardFault, ModelError, OutOfMemory

STEPS = 3  # timed, after a first one that is not
ANSWER_MAX = 4096  # bytes
ROOT = Path(__file__).parents[2]
# One arena and no idle threads: the limit counts address space, used or not.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def try_model(
    folder: Path, *, threads: int = 1, memory_mib: int = 512, cpu_s: int = 60, wall_s: float = 120.0
) -> float:
    """The seconds of one training step on zeros with the model in `folder`; ModelError if it fails.

    BoardFault if the process cannot be started. Memory is counted beyond the interpreter's own.
    """
    numbers = (threads, memory_mib, cpu_s)
    # -P: no module is imported from the current directory.
    program = [sys.executable, "-P", "-m", "edge.releases.trial", str(folder.resolve())]
    try:
        with tempfile.TemporaryFile() as out:  # a pipe would have to be read while waiting
            done = subprocess.run(
                [*program, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
                timeout=wall_s,
                check=False,
            )
            out.seek(0)
            answer = out.read(ANSWER_MAX)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{folder}: no step was done within {wall_s:g} s") from error
    except OSError as error:
        raise BoardFault(
            f"the trial of {folder} cannot be started ({error}): free memory, or check the disk"
        ) from error
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        more = f": it used up {cpu_s} s of processor time" if name == "SIGXCPU" else ""
        raise ModelError(f"{folder}: the process that tried the model died of {name}{more}")
    return _read_answer(folder, answer)


def _read_answer(folder: Path, answer: bytes) -> float:
    try:
        content = json.loads(answer)
        if "error" in content:
            raise ModelError(str(content["error"]))
        return float(content["latency_s"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ModelError(f"{folder}: the process that tried the model gave no answer") from error


def main() -> int:
    """The child process: prints {"latency_s": seconds} or {"error": sentence} as JSON."""
    folder, *numbers = sys.argv[1:]
    threads, memory_mib, cpu_s = map(int, numbers)
    import edge.onnx.session  # noqa: F401  (its libraries do not count: load them before)

    _limit(memory_mib << 20, cpu_s)
    try:
        latency_s = _measure(Path(folder), threads)
    except (MemoryError, ModelError) as error:
        sentence = " ".join(str(error).split())
        if isinstance(error, MemoryError | OutOfMemory):
            sentence = f"{folder}: its first steps need more than {memory_mib} MiB"
        json.dump({"error": sentence[: ANSWER_MAX // 8]}, sys.stdout)
    else:
        json.dump({"latency_s": latency_s}, sys.stdout)
    return 0


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Limit further memory and processor time; no file may be larger than an answer."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + cpu_s, int(used) + cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (ANSWER_MAX, ANSWER_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _measure(folder: Path, threads: int) -> float:
    """Load and check the model, predict, take steps; the seconds of the fastest step."""
    from edge.data.front import Front
    from edge.onnx.session import Inference, TrainStep, load_model

    loaded = load_model(folder)
    outside, package = loaded.package.outside(), loaded.package.tail()
    samples = {one.name: np.zeros((1, *one.shape[1:]), one.dtype) for one in outside.inputs}
    Front(loaded, threads).rows(samples)
    initial = loaded.initial
    zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in package.batch_inputs}
    # The adapter's tensors are inputs: a trial writes no adapter file.
    inputs = {spec.name: zeros[spec.name] for spec in package.inputs} | package.split(initial)
    inference = Inference(folder, package, threads)
    step = TrainStep(folder, package, threads)
    times = []
    inference.predict(inputs)
    for _ in range(1 + STEPS):
        begun = time.perf_counter()
        _, gradient = step.run(initial, zeros)
        if gradient.shape != initial.shape:
            raise ModelError(f"{folder}: a gradient has the shape {gradient.shape}")
        times.append(time.perf_counter() - begun)
    return min(times[1:])


if __name__ == "__main__":
    sys.exit(main())
