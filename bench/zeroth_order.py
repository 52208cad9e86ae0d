"""Training without back-propagation: what it learns, sends and needs, against the gradient.

The demo's three unseen voices in 20 rounds, in ternary packets as the product sends them. "1x" is
as many forward passes as the gradient's steps cost, where a training step counts as three; 10x and
50x are multiples of that.
"""

import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from bench.demo import clips_of
from bench.result import Figure, Result, items_figure
from bench.simulated_fleet import correct, gradient_step, run_fleet
from bench.train_step import step_of
from edge.onnx.session import Inference, LoadedModel, load_model
from edge.zeroth_order import ZerothOrder
from host.config import RunConfig, plan_of
from models.zoo import package_path
from ternmesh_cli.demo.fleet import BOARDS, RUN

PASSES_PER_STEP = 3  # forward and backward, as they are usually counted
EPSILON = 1e-3
PROCESSES = 2
COSTS = (("onnxruntime", "gradient"), ("zeroth_order", "zeroth_order"))  # engine, name of figures
NOTES = (
    "accuracy on the 150 dev clips of the three unseen speakers after 20 rounds; the intervals "
    "cover seeds and clips; rates and epsilon were chosen on training clips set aside",
    "gradient: the demo's run in an in-memory fleet; Nx: the same run with N times "
    f"{PASSES_PER_STEP * RunConfig().local_steps} forward passes a node and round",
    "own: resident memory after the last step, less that of the process before its session (the "
    "frozen weights are in it); peak: the whole process, where loading a model holds its "
    "weights twice; a step is one batch with gradient, or one pair of forward passes",
)


@dataclass(frozen=True, slots=True)
class Arm:
    """Training of one cost (no probes: by the gradient); chosen on a quarter of the clips."""

    name: str
    seeds: int
    steps: int = 0
    probes: int = 0
    learning_rate: float = 0.0


# The longest first, so that no process waits for the other at the end.
ARMS = (
    Arm("50x", 2, steps=120, probes=5, learning_rate=0.004),
    Arm("10x", 2, steps=120, probes=1, learning_rate=0.004),
    Arm("1x", 4, steps=12, probes=1, learning_rate=0.01),
    Arm("gradient", 4),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which dev clips are right at the end (bool [clips]), and bytes of a node and round."""

    right: NDArray[np.bool_]
    bytes_up: float
    bytes_down: float


def measure(*, quick: bool) -> Result:
    """Accuracy and bytes over seeds, two processes at a time; then memory and time, alone."""
    arms = [replace(arm, seeds=1) for arm in ARMS[-2:]] if quick else ARMS
    jobs = [(arm, seed) for arm in arms for seed in range(arm.seeds)]
    outcomes: dict[str, list[Outcome]] = {arm.name: [] for arm in arms}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for (arm, seed), outcome in zip(jobs, pool.map(run, *zip(*jobs, strict=True)), strict=True):
            print(f"{arm.name}, seed {seed}: {outcome.right.mean():.1%}", flush=True)
            outcomes[arm.name].append(outcome)
    loaded = load_model(package_path("keyword"))
    figures = {"accuracy_before": Figure(float(_right(loaded, loaded.initial).mean()))}
    for name, found in outcomes.items():
        figures[f"accuracy_{name}"] = items_figure([outcome.right for outcome in found])
        figures[f"bytes_up_{name}"] = Figure(float(np.mean([o.bytes_up for o in found])))
        figures[f"bytes_down_{name}"] = Figure(float(np.mean([o.bytes_down for o in found])))
    for model in ("keyword",) if quick else ("keyword", "encoder"):
        with tempfile.TemporaryDirectory() as folder:
            step_of("export", model, folder)
            for engine, name in COSTS:
                cost = step_of(engine, model, folder, threads=1)
                figures[f"{model}_{name}_own_mib"] = Figure(cost["own_mib"])
                figures[f"{model}_{name}_peak_mib"] = Figure(cost["peak_mib"])
                figures[f"{model}_{name}_step_ms"] = Figure(1000 * cost["median_s"])
    return Result("zeroth_order", figures, {}, NOTES, quick=quick)


def run(arm: Arm, seed: int) -> Outcome:
    """One run of one arm through the whole protocol."""
    loaded = load_model(package_path("keyword"))
    settings, make_step = RunConfig(**RUN), gradient_step
    if arm.probes:
        make_step = partial(_zeroth_order, arm, seed)
        # Its rate was chosen without a fall.
        settings = replace(
            settings, local_steps=arm.steps, learning_rate=arm.learning_rate, learning_rate_drop=0.0
        )
    plan = plan_of(settings, loaded.package.dimension)
    train = [clips_of("train", board) for board in BOARDS]
    ended = run_fleet(loaded, train, plan, seed, make_step=make_step)
    return Outcome(_right(loaded, ended.vector), ended.bytes_up, ended.bytes_down)


def _right(loaded: LoadedModel, vector: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.concatenate([correct(loaded, vector, clips_of("dev", board)) for board in BOARDS])


def _zeroth_order(arm: Arm, seed: int, loaded: LoadedModel, name: str) -> ZerothOrder:
    forward = Inference(loaded.folder, loaded.package)
    probe_seed = f"{seed} {name}".encode()
    return ZerothOrder(forward, loaded.package, probes=arm.probes, epsilon=EPSILON, seed=probe_seed)
