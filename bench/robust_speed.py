"""How fast the rules are: beside ByzFL in an environment of its own, with equal answers.

`python -m bench.robust_speed FOLDER` is ByzFL's side, run by that environment's Python.
"""

import importlib
import json
import site
import statistics
import subprocess
import sys
import time
import types
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEMBERS, NUMBERS, LIARS, REPEATS = 64, 300_000, 19, 5
PEER = "byzfl==0.0.11"
NEEDS = ("numpy", "scipy")  # its rules need no more
RULES: dict[
    str, tuple[str, dict[str, Any], float]
] = {  # ours: the class in ByzFL, its arguments, and how many times faster ours is to be
    "krum": ("Krum", {"f": LIARS}, 4.0),
    "multi_krum": ("MultiKrum", {"f": LIARS}, 4.0),
    "nnm": ("NNM", {"f": LIARS}, 12.0),
    "geometric_median": ("GeometricMedian", {"nu": 1e-6, "T": 100}, 2.0),
    "median": ("Median", {}, 1.0),
    "trimmed_mean": ("TrMean", {"f": LIARS}, 1.0),
}
Array = NDArray[np.float32]


def updates() -> Array:
    """What all rules get: float32 [64, 300,000], the liars far from the others."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((MEMBERS, NUMBERS)).astype(np.float32)
    rows[:LIARS] += np.float32(0.5)
    return rows


def median_ms(function: Callable[[], Any]) -> tuple[float, Any]:
    """The median time of some calls after one that is not timed, and the answer."""
    answer = function()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times), answer


def peer(folder: Path) -> None:
    """Time ByzFL's rules on arrays and on tensors; writes answers and the shorter times."""
    import torch

    # Without the package's own imports: its benchmarks need a torchvision that fits its torch.
    package = types.ModuleType("byzfl")
    package.__path__ = [str(Path(site.getsitepackages()[0], "byzfl"))]
    sys.modules["byzfl"] = package
    rules = importlib.import_module("byzfl.aggregators")
    rows, found = np.load(folder / "updates.npy"), {}
    for name, (kind, arguments, _) in RULES.items():
        rule = getattr(rules, kind)(**arguments)
        ms, answer = median_ms(partial(rule, rows))
        np.save(folder / f"{name}.npy", np.asarray(answer, np.float32))
        if name != "geometric_median":  # 100 steps of its torch form take 20 s
            ms = min(ms, median_ms(partial(rule, torch.from_numpy(rows)))[0])
        found[name] = ms
    (folder / "times.json").write_text(json.dumps(found))


def measure_speed() -> dict[str, tuple[float, float, float]]:
    """By rule: our time and ByzFL's in ms, and the largest difference of the answers."""
    from ternmesh.federated.rules import PRE_STEPS, Context
    from ternmesh.federated.rules import RULES as OURS

    rows = updates()
    weights, context = np.ones(MEMBERS), Context(byzantine=LIARS)
    found = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "updates.npy", rows)
        _run_peer(folder)
        theirs_ms = json.loads((folder / "times.json").read_text())
        for rule in RULES:
            function: Callable[..., Any] = OURS.get(rule) or PRE_STEPS[rule]
            ms, answer = median_ms(partial(function, rows, weights, context))
            ours = answer[0] if rule in PRE_STEPS else answer
            apart = float(np.abs(ours - np.load(folder / f"{rule}.npy")).max())
            found[rule] = ms, float(theirs_ms[rule]), apart
    return found


def _run_peer(folder: Path) -> None:
    """Make the environment, with this one's torch, and run `peer` in it."""
    import torch

    home = folder / "environment"
    venv.create(home, with_pip=True)
    python, quiet = str(home / "bin" / "python"), ("--quiet", "--disable-pip-version-check")
    install = (python, "-m", "pip", "install", *quiet)
    subprocess.run([*install, *NEEDS], check=True)
    subprocess.run([*install, "--no-deps", PEER], check=True)
    packages = next((home / "lib").glob("python*")) / "site-packages"
    (packages / "torch_of_this_one.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    root = str(Path(__file__).parents[1])
    subprocess.run([python, "-m", "bench.robust_speed", str(folder)], check=True, cwd=root)


if __name__ == "__main__":
    peer(Path(sys.argv[1]))
