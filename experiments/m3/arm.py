"""Run one arm from its start, or from where it was killed, to its result."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge.data.sources import NpzSettings, open_folder
from edge.errors import ModelError
from edge.evaluation import Evaluator, spread
from edge.onnx.session import Inference, adapter_version, load_model
from experiments.m3.fleet import Fleet, open_fleet, read_rounds
from experiments.m3.prepare import TEST, Prepared, prepare
from experiments.m3.settings import NODES, Arm, Experiment
from experiments.m3.storage import ArmResult, ExperimentError, load_result, save_result

RESULT = "result.json"
POLL_S = 0.25
STALL_S = 900.0  # without a new global adapter for this long, the experiment gives up


@dataclass(frozen=True, slots=True)
class Status:
    """What an arm does now."""

    activity: str
    version: int = 0  # of the global adapter that all nodes hold


class AccuracyMeter:
    """Measures the accuracy of `.onnx_adapter` files on pairs that no node trains on."""

    def __init__(self, prepared: Prepared) -> None:
        loaded = load_model(prepared.model)
        self.package = loaded.package
        self._inference = Inference(loaded.folder, loaded.package)
        self._evaluator = Evaluator(self._inference, loaded.package)
        self._data = open_folder(prepared.samples(TEST), loaded.package, NpzSettings({}, {}))

    def accuracy(self, adapter: Path) -> float:
        """Return the share of right answers on all pairs."""
        self._inference.use_adapter(adapter)
        count = len(self._data)
        for _ in self._evaluator.evaluate(self._data, spread(count, count)):
            pass
        return self._evaluator.take()[0] or 0.0


def finished_result(experiment: Experiment, arm: Arm) -> ArmResult | None:
    """Return the saved result, None if the arm is not finished; ExperimentError."""
    return load_result(experiment.folder / arm.name / RESULT)


def run_arm(
    experiment: Experiment, arm: Arm, url: str, fleet_name: str, show: Callable[[Status], None]
) -> ArmResult:
    """Run the arm, or the rest of it, over the broker at `url`; ExperimentError."""
    folder = experiment.folder / arm.name
    prepared = prepare(experiment, arm, lambda activity: show(Status(activity)))
    meter = AccuracyMeter(prepared)
    with open_fleet(experiment, arm, prepared, url, f"{fleet_name}-{arm.name}") as fleet:
        _watch(fleet, arm.run.rounds, show)
        rounds = read_rounds(fleet, arm)
    show(Status("testing the last adapter"))
    if len({fleet.adapter(node).read_bytes() for node in NODES}) != 1:
        raise ExperimentError(f"{arm.name}: the nodes hold different adapters: see {folder}")
    result = ArmResult(
        name=arm.name,
        title=arm.title,
        dimension=meter.package.dimension,
        rounds=rounds,
        steps=arm.run.local_steps * arm.run.rounds,
        accuracy=meter.accuracy(fleet.adapter(NODES[0])),
    )
    save_result(folder / RESULT, result)
    return result


def _watch(fleet: Fleet, rounds: int, show: Callable[[Status], None]) -> None:
    """Wait until every node holds the last global adapter."""
    latest = -1
    changed_at = time.monotonic()
    while latest < rounds:
        time.sleep(POLL_S)
        for worker in fleet.workers:
            worker.keep_alive()
        version = min(_version(fleet.adapter(node)) for node in NODES)
        if version > latest:
            latest, changed_at = version, time.monotonic()
            show(Status("learning", version))
        if time.monotonic() > changed_at + STALL_S:
            raise ExperimentError(
                f"no new global adapter for {STALL_S:.0f} s: see the logs in {fleet.folder}"
            )


def _version(adapter: Path) -> int:
    """Return the version of an adapter file, -1 if there is none yet."""
    if not adapter.exists():
        return -1
    try:
        return adapter_version(adapter)
    except ModelError as error:
        raise ExperimentError(f"{error}: remove {adapter.parent.parent}") from error
