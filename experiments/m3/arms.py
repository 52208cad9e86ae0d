"""An arm from its start to its result: a published one in this process, or ternmesh's programs."""

import shutil
import time
from collections import Counter
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
from experiments.m3.payload import decode, encode, part_bytes
from experiments.m3.prepare import TEST, Prepared, prepare
from experiments.m3.results import ArmResult, ExperimentError, Round
from experiments.m3.settings import HYPERVECTOR, NODES, Arm, Experiment
from host.config import plan_of
from ternmesh.types import Vector
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python, running
from transports.base import HOST

POLL_S = 0.25
STALL_S = 900.0  # without a new global adapter for this long, the experiment gives up
CURVE_PAIRS = 256  # test pairs for the accuracy by round
STATUS_TRIES = 30  # a busy host answers late
Show = Callable[[str], None]


def run_arm(experiment: Experiment, arm: Arm, broker: str, show: Show) -> ArmResult:
    """Run an arm; ExperimentError."""
    prepared = prepare(experiment, arm, show)
    loaded = load_model(prepared.model)
    began, parts = time.monotonic(), Counter[str]()
    if arm.codec == HYPERVECTOR:
        adapter, rounds = run_ternmesh(experiment, arm, prepared, loaded, broker, show)
    else:
        adapter, rounds, parts = run_published(experiment, arm, prepared, loaded, show)
    seconds, count = time.monotonic() - began, len(NODES) * len(rounds)
    show("testing the last adapter")
    return ArmResult(
        name=arm.name,
        title=arm.title,
        dimension=loaded.package.dimension,
        rounds=rounds,
        steps=arm.run.local_steps * arm.run.rounds,
        accuracy=accuracy(loaded, prepared, adapter),
        seconds=seconds,
        parts={part: size / count for part, size in parts.items()},
    )


def accuracy(
    loaded: LoadedModel, prepared: Prepared, adapter: Path, pairs: int | None = None
) -> float:
    """The share of right answers on pairs that no node trains on: all, or some of them."""
    inference = Inference(loaded.folder, loaded.package)
    inference.use_adapter(adapter)
    evaluator = Evaluator(inference, loaded.package)
    data = open_folder(prepared.samples(TEST), loaded.package, NpzSettings({}, {}))
    for _ in evaluator.evaluate(data, spread(len(data), pairs or len(data))):
        pass
    return evaluator.take()[0] or 0.0


def run_published(
    experiment: Experiment, arm: Arm, prepared: Prepared, loaded: LoadedModel, show: Show
) -> tuple[Path, tuple[Round, ...], Counter[str]]:
    """Each node sends its whole adapter and gets the mean of all back, by the published messages.

    The messages are written and read here; no broker carries them.
    """
    package, plan = loaded.package, plan_of(arm.run, loaded.package.dimension)
    trainers = {}
    for node in NODES:
        data = open_folder(prepared.samples(node), package, NpzSettings({}, {}))
        step = TrainStep(loaded.folder, package)
        trainers[node] = Trainer(step, data, package.batch, AdamSettings(), keep_moments=True)
    average, rounds, parts = loaded.initial, [], Counter[str]()
    adapter = experiment.folder / arm.name / ADAPTER
    adapter.parent.mkdir()
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
        parts += sum(map(part_bytes, sent.values()), Counter[str]())
        losses = {node: trainer.loss for node, trainer in trainers.items()}
        write_adapter(adapter, package, average, number + 1)
        right = dict.fromkeys(NODES, accuracy(loaded, prepared, adapter, CURVE_PAIRS))
        rounds.append(Round(number + 1, sizes, len(answer), losses, right))
        show(f"learning, round {number + 1} of {plan.rounds}")
    return adapter, tuple(rounds), parts


def run_ternmesh(
    experiment: Experiment,
    arm: Arm,
    prepared: Prepared,
    loaded: LoadedModel,
    broker: str,
    show: Show,
) -> tuple[Path, tuple[Round, ...]]:
    """`ternmesh host` and two `ternmesh node` with keys over the broker.

    Each global adapter is kept and tested at the end: a node that trains skips evaluations.
    """
    folder = experiment.folder / arm.name
    enrol_fleet("m3", folder / HOST, {node: folder / node for node in NODES})
    workers = [_worker(arm, prepared, broker, folder / end) for end in (HOST, *NODES)]
    adapters = [folder / node / ADAPTER for node in NODES]
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(running(worker))
        kept, latest, changed_at = dict[int, Path](), -1, time.monotonic()
        while latest < arm.run.rounds:
            time.sleep(POLL_S)
            for worker in workers:
                worker.keep_alive()
            version = min(adapter_version(a) if a.exists() else -1 for a in adapters)
            if version > latest:
                latest, changed_at = version, time.monotonic()
                copy = Path(shutil.copy(adapters[0], folder / f"{version}{ADAPTER}"))
                kept[adapter_version(copy)] = copy
                show(f"learning, round {version} of {arm.run.rounds}")
            if time.monotonic() > changed_at + STALL_S:
                raise ExperimentError(
                    f"no new global adapter for {STALL_S:.0f} s: see the logs in {folder}"
                )
        host, *told = (_history(worker, latest) for worker in workers)
    if len({adapter.read_bytes() for adapter in adapters}) != 1:
        raise ExperimentError(f"{arm.name}: the nodes hold different adapters: see {folder}")
    show("testing the adapters of all rounds")
    right = {at: accuracy(loaded, prepared, copy, CURVE_PAIRS) for at, copy in kept.items()}
    rounds = []
    for version, row in host.items():
        losses = [rows.get(version, {}).get("loss") for rows in told]
        curves = dict(zip(NODES, losses, strict=True)), dict.fromkeys(NODES, right.get(version))
        rounds.append(Round(version, row["bytes_up"], row["bytes_down"], *curves))
    return adapters[0], tuple(rounds)


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


def _history(worker: Worker, version: int) -> dict[int, dict[str, Any]]:
    """What a program tells of each version up to this one."""
    for _ in range(STATUS_TRIES):
        answer = worker.status()
        rows = {row["version"]: row for row in answer["history"]} if answer else {}
        if version in rows:
            return rows
        time.sleep(POLL_S)
    raise ExperimentError(f"{worker.name} does not tell of round {version}: see {worker.log}")
