"""An arm from its start to its result: a published one in this process, or ternmesh's programs."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from edge.config import ADAPTER
from edge.data.sources import NpzSettings, open_folder
from edge.evaluation import Evaluator, spread
from edge.onnx.session import (
    Inference,
    LoadedModel,
    TrainStep,
    adapter_version,
    load_model,
    write_adapter,
)
from edge.trainer import AdamSettings, Trainer, round_rng
from experiments.m3.payload import decode, encode
from experiments.m3.prepare import TEST, Prepared, prepare
from experiments.m3.settings import HYPERVECTOR, NODES, Arm, Experiment
from experiments.m3.storage import ArmResult, ExperimentError, Round
from host.config import plan_of
from ternmesh.types import Vector
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python, running
from transports.base import HOST

POLL_S = 0.25
STALL_S = 900.0  # without a new global adapter for this long, the experiment gives up
STATUS_TRIES = 30  # a busy host answers late
Show = Callable[[str], None]


def run_arm(experiment: Experiment, arm: Arm, show: Show) -> ArmResult:
    """Run an arm; ExperimentError."""
    prepared = prepare(experiment, arm, show)
    loaded = load_model(prepared.model)
    learn = run_ternmesh if arm.codec == HYPERVECTOR else run_published
    adapter, rounds = learn(experiment, arm, prepared, loaded, show)
    show("testing the last adapter")
    return ArmResult(
        name=arm.name,
        title=arm.title,
        dimension=loaded.package.dimension,
        rounds=rounds,
        steps=arm.run.local_steps * arm.run.rounds,
        accuracy=accuracy(loaded, prepared, adapter),
    )


def accuracy(loaded: LoadedModel, prepared: Prepared, adapter: Path) -> float:
    """The share of right answers on all pairs that no node trains on."""
    inference = Inference(loaded.folder, loaded.package)
    inference.use_adapter(adapter)
    evaluator = Evaluator(inference, loaded.package)
    data = open_folder(prepared.samples(TEST), loaded.package, NpzSettings({}, {}))
    for _ in evaluator.evaluate(data, spread(len(data), len(data))):
        pass
    return evaluator.take()[0] or 0.0


def run_published(
    experiment: Experiment, arm: Arm, prepared: Prepared, loaded: LoadedModel, show: Show
) -> tuple[Path, tuple[Round, ...]]:
    """Each node sends its whole adapter and gets the mean of all back, by the published messages.

    The messages are written and read here; no broker carries them.
    """
    package, plan = loaded.package, plan_of(arm.run, loaded.package.dimension)
    trainers = {}
    for node in NODES:
        data = open_folder(prepared.samples(node), package, NpzSettings({}, {}))
        step = TrainStep(loaded.folder, package)
        trainers[node] = Trainer(step, data, package.batch, AdamSettings(), keep_moments=True)
    average, rounds = loaded.initial, []
    for number in range(plan.rounds):
        sent = {}
        for node, trainer in trainers.items():
            rng = round_rng(arm.training.seed, node, number)
            trainer.begin(number, average, plan, rng)
            while trainer.step():
                pass
            sent[node] = encode(arm.codec, package, node, number, average + trainer.delta())
        states = [decode(arm.codec, package, message) for message in sent.values()]
        mean: Vector = np.stack(states).mean(axis=0, dtype=np.float64).astype(np.float32)
        answer = encode(arm.codec, package, HOST, number + 1, mean)
        average = decode(arm.codec, package, answer)
        sizes = {node: len(message) for node, message in sent.items()}
        rounds.append(Round(number + 1, sizes, len(answer)))
        show(f"learning, round {number + 1} of {plan.rounds}")
    adapter = experiment.folder / arm.name / ADAPTER
    adapter.parent.mkdir(parents=True, exist_ok=True)
    write_adapter(adapter, package, average, plan.rounds)
    return adapter, tuple(rounds)


def run_ternmesh(
    experiment: Experiment, arm: Arm, prepared: Prepared, _: LoadedModel, show: Show
) -> tuple[Path, tuple[Round, ...]]:
    """`ternmesh host` and two `ternmesh node` with keys over the broker; they may go on."""
    folder = experiment.folder / arm.name
    enrol_fleet("m3", folder / HOST, {node: folder / node for node in NODES})
    workers = [_worker(arm, prepared, experiment.broker, folder / end) for end in (HOST, *NODES)]
    adapters = [folder / node / ADAPTER for node in NODES]
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(running(worker))
        latest, changed_at = -1, time.monotonic()
        while latest < arm.run.rounds:
            time.sleep(POLL_S)
            for worker in workers:
                worker.keep_alive()
            version = min(adapter_version(a) if a.exists() else -1 for a in adapters)
            if version > latest:
                latest, changed_at = version, time.monotonic()
                show(f"learning, round {version} of {arm.run.rounds}")
            if time.monotonic() > changed_at + STALL_S:
                raise ExperimentError(
                    f"no new global adapter for {STALL_S:.0f} s: see the logs in {folder}"
                )
        rounds = _rounds_of(workers[0])
    if len({adapter.read_bytes() for adapter in adapters}) != 1:
        raise ExperimentError(f"{arm.name}: the nodes hold different adapters: see {folder}")
    return adapters[0], rounds


def _worker(arm: Arm, prepared: Prepared, url: str, folder: Path) -> Worker:
    end = folder.name
    tables: dict[str, Mapping[str, Any]] = {
        "": {"state_dir": str(folder), "model": str(prepared.model)},
        "link": {"url": url, "fleet": "m3"},
    }
    if end == HOST:
        tables["run"] = asdict(arm.run)
    else:
        tables[""] = {"name": end, **tables[""]}
        tables["data"] = {"path": str(prepared.samples(end))}
        tables["training"] = asdict(arm.training)
    config = folder / "config.toml"
    config.write_text(write_toml(tables))
    command = "host" if end == HOST else "node"
    arguments = python("ternmesh_cli.main", command, "--config", str(config))
    return Worker(end, folder, arguments, may_end=True)


def _rounds_of(host: Worker) -> tuple[Round, ...]:
    for _ in range(STATUS_TRIES):
        if answer := host.status():
            history = answer["history"]
            return tuple(Round(h["version"], h["bytes_up"], h["bytes_down"]) for h in history)
    raise ExperimentError(f"the host does not answer: see {host.log}")
