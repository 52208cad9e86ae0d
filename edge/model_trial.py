"""The first load of a model, in a child process that may use only so much memory and time.

What kills the child (a bomb, a crash of onnxruntime, a loop) is a sentence in the parent. The child
is this module as a program: `python -m edge.model_trial FOLDER MODE THREADS MEMORY_MIB CPU_S`.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge.errors import BoardFault, ModelError
from ternmesh.bundle import Bundle

STEPS = 3  # that are timed, after one that is not
ANSWER_MAX = 4096  # bytes
OUT_OF_MEMORY = ("std::bad_alloc", "Failed to allocate memory")  # in onnxruntime's words
ROOT = Path(__file__).parents[1]
# One arena and no idle threads: address space is counted whether it is used or not.
SPARING = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """What a model may use beside the interpreter until it has taken a few steps."""

    memory_mib: int = 512
    cpu_s: int = 60
    wall_s: float = 120.0


def try_model(folder: Path, limits: TrialLimits, *, with_gradient: bool, threads: int = 1) -> float:
    """Seconds that one step on zeros takes with the bundle in `folder`; ModelError if it fails.

    A step is a training step, or a prediction where a board trains without gradients.
    BoardFault where no process can be started for it.
    """
    numbers = (int(with_gradient), threads, limits.memory_mib, limits.cpu_s)
    # -P: what lies in a current directory is never a module.
    program = [sys.executable, "-P", "-m", "edge.model_trial", str(folder.resolve())]
    try:
        with tempfile.TemporaryFile() as out:  # A pipe would have to be emptied while waiting.
            done = subprocess.run(
                [*program, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, **SPARING, "PYTHONPATH": str(ROOT)},
                timeout=limits.wall_s,
                check=False,
            )
            out.seek(0)
            answer = out.read(ANSWER_MAX)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{folder}: no step was done within {limits.wall_s:g} s") from error
    except OSError as error:
        raise BoardFault(
            f"no process can try {folder} ({error}): free memory, or look at the disk"
        ) from error
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        more = f": it used up {limits.cpu_s} s of processor time" if name == "SIGXCPU" else ""
        raise ModelError(f"{folder}: the process that tried the model died of {name}{more}")
    return _read_answer(folder, answer)


def _read_answer(folder: Path, answer: bytes) -> float:
    try:
        content = json.loads(answer)
        if "error" in content:
            raise ModelError(str(content["error"]))
        return float(content["latency_s"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ModelError(f"{folder}: the process that tried the model said nothing") from error


def main() -> int:
    """The child: prints {"latency_s": seconds} or {"error": sentence}."""
    folder, *numbers = sys.argv[1:]
    with_gradient, threads, memory_mib, cpu_s = map(int, numbers)
    import edge.session  # noqa: F401  (before the limits: its libraries are not the model's)

    _limit(memory_mib << 20, cpu_s)
    try:
        latency_s = _measure(Path(folder), threads, with_gradient=bool(with_gradient))
    except (MemoryError, ModelError) as error:
        sentence = " ".join(str(error).split())
        if isinstance(error, MemoryError) or any(word in sentence for word in OUT_OF_MEMORY):
            sentence = f"{folder}: its first steps need more than {memory_mib} MiB"
        return _say({"error": sentence[: ANSWER_MAX // 8]})
    return _say({"latency_s": latency_s})


def _say(answer: dict[str, object]) -> int:
    sys.stdout.write(json.dumps(answer))
    return 0


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """From here on: so much more memory and processor time, and no files but a short answer."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + cpu_s, int(used) + cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (ANSWER_MAX, ANSWER_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _measure(folder: Path, threads: int, *, with_gradient: bool) -> float:
    """Load and check the bundle, predict, take steps; seconds of the fastest step."""
    from edge.session import Inference, TrainStep, load_bundle

    loaded = load_bundle(folder)
    bundle, initial = loaded.bundle, loaded.initial
    zeros = _zeros(bundle)
    # Fed, not loaded as a file: a trial writes none.
    inputs = {spec.name: zeros[spec.name] for spec in bundle.inputs} | bundle.split(initial)
    inference = Inference(folder, bundle, threads)
    step = TrainStep(folder, bundle, threads)
    times = []
    inference.predict(inputs)
    for _ in range(1 + STEPS):
        begun = time.perf_counter()
        if with_gradient:
            _, gradient = step.run(initial, zeros)
            if gradient.shape != initial.shape:
                raise ModelError(f"{folder}: a gradient has the shape {gradient.shape}")
        else:
            inference.predict(inputs)
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def _zeros(bundle: Bundle) -> dict[str, np.ndarray]:
    """One batch of zeros, as train_step.onnx takes it."""
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in bundle.batch_inputs}


if __name__ == "__main__":
    sys.exit(main())
