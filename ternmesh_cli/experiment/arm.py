"""One arm from its start, or from where it was killed, to its result."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.errors import ModelError
from edge.session import adapter_version, write_adapter
from models.text_layers import part
from ternmesh.bundle import Bundle
from ternmesh.config import ConfigError
from ternmesh_cli.experiment.errors import ExperimentError
from ternmesh_cli.experiment.files import read_json, write_json
from ternmesh_cli.experiment.fleet import Fleet, open_fleet, traffic
from ternmesh_cli.experiment.judge import Judge
from ternmesh_cli.experiment.prepare import prepare
from ternmesh_cli.experiment.result import ArmResult, load_result, save_result
from ternmesh_cli.experiment.settings import (
    CURVE_EVERY,
    CURVE_PAIRS,
    HYPERVECTOR,
    NODES,
    Arm,
    Experiment,
)

RESULT, SETTING, PROGRESS, SAMPLE = "result.json", "arm.json", "progress.json", "judged.tmp"
POLL_S = 0.25
SAVE_EVERY_S = 5.0
PATIENCE_S = 900.0  # with no new reference for so long, the experiment gives up


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an arm is, for whoever watches."""

    state: str
    version: int = 0
    accuracy: float | None = None


Tell = Callable[[Standing], None]


class Progress:
    """Seconds and accuracies of an arm so far; they survive a kill."""

    def __init__(self, path: Path, now: float) -> None:
        content: dict[str, Any] = read_json(path) or {"seconds": 0.0, "curve": {}}
        self.curve: dict[int, float] = {int(v): a for v, a in content["curve"].items()}
        self._path = path
        self._begun = now - content["seconds"]
        self._saved = now

    def seconds(self, now: float) -> float:
        """The time that this arm has taken, without that between two runs."""
        seconds: float = now - self._begun
        return seconds

    def save(self, now: float) -> None:
        """Keep both."""
        write_json(self._path, {"seconds": self.seconds(now), "curve": self.curve})
        self._saved = now

    def save_sometimes(self, now: float) -> None:
        """Keep both, if that was not done lately."""
        if now > self._saved + SAVE_EVERY_S:
            self.save(now)


def finished_result(experiment: Experiment, arm: Arm) -> ArmResult | None:
    """The result that is kept, None where the arm is not finished.

    ConfigError where the folder holds another setting of the arm.
    """
    folder = experiment.folder / arm.name
    keep_same(folder / SETTING, asdict(arm), f"{folder} holds another arm {arm.name}")
    return load_result(folder / RESULT)


def run_arm(experiment: Experiment, arm: Arm, url: str, name: str, tell: Tell) -> ArmResult:
    """Run an arm, or what is left of it; `name` begins its fleet's name on the broker."""
    folder = experiment.folder / arm.name
    prepared = prepare(experiment, arm, lambda state: tell(Standing(state)))
    judge = Judge(prepared)
    progress = Progress(folder / PROGRESS, time.monotonic())
    if 0 not in progress.curve:  # before the fleet starts: its first rounds may be quick
        write_adapter(folder / SAMPLE, judge.bundle, judge.initial, 0)
        _judge_copy(folder / SAMPLE, judge, progress)
    numbers = count_numbers(judge.bundle)
    with open_fleet(experiment, arm, prepared, url, f"{name}-{arm.name}") as fleet:
        _watch(fleet, arm, judge, progress, tell)
        moved = traffic(fleet, arm, numbers)
    seconds = progress.seconds(time.monotonic())
    tell(Standing("judging", arm.run.rounds))
    owns = {node: fleet.own(node) for node in NODES if fleet.own(node).exists()}
    result = ArmResult(
        name=arm.name,
        title=arm.title,
        numbers=numbers,
        rounds=moved.rounds,
        steps=arm.run.local_steps * arm.run.rounds,
        parts_up=moved.parts_up,
        parts_down=moved.parts_down,
        is_shared=arm.codec == HYPERVECTOR,
        accuracy={node: judge.accuracy(fleet.adapter(node)) for node in NODES},
        own={node: judge.accuracy(path) for node, path in owns.items()},
        curve=tuple(sorted(progress.curve.items())),
        repeats=moved.repeats,
        seconds=seconds,
    )
    save_result(folder / RESULT, result)
    return result


def keep_same(path: Path, identity: Mapping[str, Any], complaint: str) -> None:
    """Keep `identity` in the file at `path`, or ConfigError where another one is there."""
    kept = read_json(path)
    if kept is None:
        write_json(path, identity)
        return
    wanted = _flat(identity)
    known = _flat(kept)
    for key in sorted(wanted.keys() & known.keys()):  # another version may know other settings
        if wanted[key] != known[key]:
            raise ConfigError(
                f"{complaint}, with {key} = {known[key]!r}, not {wanted[key]!r}: "
                "name another --dir, or remove it"
            )


def count_numbers(bundle: Bundle) -> dict[str, int]:
    """How many trained numbers each part of the model has."""
    counts: dict[str, int] = {}
    for spec in bundle.adapter:
        size = 1
        for axis in spec.shape:
            size *= axis
        counts[part(spec.name)] = counts.get(part(spec.name), 0) + size
    return counts


def _watch(fleet: Fleet, arm: Arm, judge: Judge, progress: Progress, tell: Tell) -> None:
    """Follow the fleet until every node holds the last reference."""
    rounds, best = arm.run.rounds, 0
    moved_at = time.monotonic()
    while True:
        for worker in fleet.workers:
            worker.keep_alive()
        version = min(_version(fleet.adapter(node)) for node in NODES)
        now = time.monotonic()
        if version > best:
            if version // CURVE_EVERY > best // CURVE_EVERY or version == rounds:
                _judge_now(fleet, judge, progress)  # fast rounds may skip the very version
            best, moved_at = version, now
        latest = progress.curve[max(progress.curve)]
        tell(Standing("learning", max(version, 0), latest))
        progress.save_sometimes(now)
        if version >= rounds:
            progress.save(now)
            return
        if now > moved_at + PATIENCE_S:
            raise ExperimentError(
                f"{arm.name}: no new reference for {PATIENCE_S:.0f} s: see the logs in "
                f"{fleet.folder}"
            )
        time.sleep(POLL_S)


def _judge_now(fleet: Fleet, judge: Judge, progress: Progress) -> None:
    """Judge the reference that the first node holds now, on a copy that nobody replaces."""
    sample = fleet.folder / SAMPLE
    shutil.copyfile(fleet.adapter(NODES[0]), sample)
    _judge_copy(sample, judge, progress)


def _judge_copy(sample: Path, judge: Judge, progress: Progress) -> None:
    version = adapter_version(sample)
    if version not in progress.curve:
        progress.curve[version] = judge.accuracy(sample, CURVE_PAIRS)
        progress.save(time.monotonic())


def _version(adapter: Path) -> int:
    """The version of an adapter file, -1 where there is none yet."""
    if not adapter.exists():
        return -1
    try:
        return adapter_version(adapter)
    except ModelError as error:
        raise ExperimentError(f"{error}: remove {adapter.parent.parent}") from error


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dots in the names; tuples as the lists that JSON has."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat
