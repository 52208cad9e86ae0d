"""Training without back-propagation: what it learns, sends and needs, against the gradient.

The demo's three unseen voices in 20 rounds. "1x" is as many forward passes as the gradient's steps
cost, where a training step counts as three; 10x and 50x are multiples of that.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.demo import _accuracy, _clips
from bench.fleet import Clips, FleetRun, run_fleet
from bench.result import Figure, Result, mean_figure
from bench.train_step import _work
from edge.adam import AdamSettings
from edge.config import GRADIENT, ZEROTH_ORDER
from edge.session import Inference, LoadedBundle, load_bundle
from edge.trainer import Arrays, Trainer, Vector, round_rng
from edge.zeroth_order import ZerothOrder, estimate
from host.config import RunConfig, plan_of
from models.zoo import bundle_path
from ternmesh.plan import Plan
from ternmesh_cli.demo.fleet import BOARDS, RUN

PASSES_PER_STEP = 3  # forward and backward, as they are usually counted
SCALAR_SIZE, SEAL_SIZE, HEAD_SIZE = 2, 14, 8  # bytes: a slope as float16; what a frame costs
EPSILON = 1e-3
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Arm:
    """Zeroth-order training of one cost; chosen on a quarter of the training clips (index % 4)."""

    name: str
    steps: int
    probes: int
    learning_rate: float
    seeds: int
    packets: bool = False  # deltas as ternary packets, instead of the scalars with shared seeds

    @property
    def scalar_bytes(self) -> int:
        """What a node sends in a round if only its slopes travel, sealed."""
        return SCALAR_SIZE * self.steps * self.probes + SEAL_SIZE + HEAD_SIZE


# The longest first, so that no process waits for the other at the end.
ARMS = (
    Arm("50x", steps=120, probes=5, learning_rate=0.004, seeds=2),
    Arm("10x", steps=120, probes=1, learning_rate=0.004, seeds=2),
    Arm("10x_packets", steps=120, probes=1, learning_rate=0.004, seeds=2, packets=True),
    Arm("1x", steps=12, probes=1, learning_rate=0.01, seeds=4),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run ended with; bytes are those of a node and round."""

    accuracy: float
    bytes_up: float
    bytes_down: float


class Scalars:
    """A zeroth-order step from slopes that were rounded to float16, as they would travel."""

    def __init__(self, arm: Arm, seed: int, loaded: LoadedBundle, name: str) -> None:
        self._step = _zeroth_order(arm, seed, loaded, name)
        self._seed = _seed(seed, name)

    def run(self, adapter: Vector, batch: Arrays) -> tuple[float, Vector]:
        """Loss, and the estimate that every other node could make again from the scalars."""
        loss, slopes = self._step.project(adapter, batch)
        rounded = slopes.astype(np.float16).astype(np.float64)
        return loss, estimate(self._seed, adapter, rounded)


def measure(*, quick: bool) -> Result:
    """Accuracy and bytes over seeds, two processes at a time; then memory and time, alone."""
    arms = [replace(ARMS[-1], seeds=2)] if quick else list(ARMS)
    jobs: list[tuple[Arm | None, int]] = [(arm, seed) for arm in arms for seed in range(arm.seeds)]
    jobs += [(None, seed) for seed in range(arms[-1].seeds)]
    outcomes = _run_all(jobs)
    loaded = load_bundle(bundle_path("keyword"))
    dev = [_clips("dev", board) for board in BOARDS]
    figures = {"accuracy_before": Figure(_accuracy(loaded, loaded.initial, dev))}
    for arm in (None, *reversed(arms)):
        found = [outcome for (job, _), outcome in zip(jobs, outcomes, strict=True) if job == arm]
        figures |= _figures(arm, found)
    for model in ("keyword",) if quick else ("keyword", "encoder"):
        figures |= _cost(model, loaded)
    notes = (
        "accuracy on the 150 dev clips of the three unseen speakers after 20 rounds; rates and "
        "epsilon were chosen on training clips set aside",
        "gradient: the demo's run, ternary packets in an in-memory fleet; Nx: N times "
        f"{PASSES_PER_STEP * RunConfig().local_steps} forward passes a node and round, deltas "
        "averaged in float32 as if every node had replayed the others' slopes, which are rounded "
        "to float16; Nx_packets: the same training, its deltas in ternary packets",
        f"scalar bytes are arithmetic: {SCALAR_SIZE} a slope, {SEAL_SIZE} seal, {HEAD_SIZE} head; "
        "down is every node's scalars; no hello, receipt, repeat or catch-up is counted",
        "own: resident memory after 28 steps, less what the process had before its session (the "
        "frozen weights are in it); peak: the whole process, where loading a model holds its "
        "weights twice; a step is one batch with gradient, or one pair of forward passes",
    )
    return Result("zeroth_order", figures, {}, notes, quick=quick)


def _run_all(jobs: Sequence[tuple[Arm | None, int]]) -> list[Outcome]:
    outcomes = []
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for (arm, seed), outcome in zip(
            jobs, pool.map(_run, *zip(*jobs, strict=True)), strict=True
        ):
            name = arm.name if arm else GRADIENT
            print(f"{name}, seed {seed}: {outcome.accuracy:.1%}", flush=True)
            outcomes.append(outcome)
    return outcomes


def _run(arm: Arm | None, seed: int) -> Outcome:
    """One run of one arm; None is the gradient."""
    loaded = load_bundle(bundle_path("keyword"))
    train = [_clips("train", board) for board in BOARDS]
    dev = [_clips("dev", board) for board in BOARDS]
    plan = _plan(arm, loaded)
    if arm is None:
        ended = run_fleet(loaded, train, plan, seed)
    elif arm.packets:
        make_step = partial(_zeroth_order, arm, seed)
        ended = run_fleet(loaded, train, plan, seed, make_step=make_step)
    else:
        up = float(arm.scalar_bytes)
        ended = FleetRun(_replay(arm, loaded, train, plan, seed), up, up * len(BOARDS))
    return Outcome(_accuracy(loaded, ended.vector, dev), ended.bytes_up, ended.bytes_down)


def _replay(
    arm: Arm, loaded: LoadedBundle, train: Sequence[Clips], plan: Plan, seed: int
) -> Vector:
    """What all nodes agree on at the end, if each replays the others' training from its slopes."""
    trainers = [
        Trainer(Scalars(arm, seed, loaded, board), clips, loaded.bundle.batch, AdamSettings())
        for board, clips in zip(BOARDS, train, strict=True)
    ]
    vector, samples = loaded.initial, [len(clips) for clips in train]
    for number in range(plan.rounds):
        deltas = []
        for board, trainer in zip(BOARDS, trainers, strict=True):
            trainer.begin(number, vector, plan, round_rng(seed, board, number))
            while trainer.step():
                pass
            deltas.append(trainer.delta())
        vector = vector + np.average(deltas, axis=0, weights=samples).astype(np.float32)
    return vector


def _plan(arm: Arm | None, loaded: LoadedBundle) -> Plan:
    run = RunConfig(**RUN)
    if arm is not None:  # its rate was chosen without a drop
        run = replace(
            run, local_steps=arm.steps, learning_rate=arm.learning_rate, learning_rate_drop=0.0
        )
    return plan_of(run, loaded.bundle.dimension)


def _zeroth_order(arm: Arm, seed: int, loaded: LoadedBundle, name: str) -> ZerothOrder:
    forward = Inference(loaded.folder, loaded.bundle)
    return ZerothOrder(
        forward, loaded.bundle, probes=arm.probes, epsilon=EPSILON, seed=_seed(seed, name)
    )


def _seed(seed: int, name: str) -> bytes:
    return f"{seed} {name}".encode()


def _figures(arm: Arm | None, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    name = arm.name if arm else GRADIENT
    return {
        f"accuracy_{name}": mean_figure([outcome.accuracy for outcome in outcomes]),
        f"bytes_up_{name}": Figure(float(np.mean([outcome.bytes_up for outcome in outcomes]))),
        f"bytes_down_{name}": Figure(float(np.mean([outcome.bytes_down for outcome in outcomes]))),
    }


def _cost(model: str, keyword: LoadedBundle) -> dict[str, Figure]:
    """Memory and time of a step in both modes, one process each."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = keyword.folder
        if model == "keyword":
            clips = _clips("train", BOARDS[0]).batch(np.arange(keyword.bundle.batch))
            np.savez(Path(folder) / "batch.npz", allow_pickle=False, **clips)
            np.save(Path(folder) / "vector.npy", keyword.initial)
        else:
            _work("export", model, 2, folder)
            bundle = Path(folder)
        answers = {mode: _worker(mode, bundle, folder) for mode in (GRADIENT, ZEROTH_ORDER)}
    return {
        f"{model}_{mode}_{key}": Figure(value)
        for mode, answer in answers.items()
        for key, value in (
            ("own_mib", answer["own_mib"]),
            ("peak_mib", answer["peak_mib"]),
            ("step_ms", 1000 * answer["step_s"]),
        )
    }


def _worker(mode: str, bundle: Path, data: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.zeroth_order_worker", mode, str(bundle), data]
    root = Path(__file__).parents[1]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    values: dict[str, float] = json.loads(answer.stdout.strip().splitlines()[-1])
    return values
