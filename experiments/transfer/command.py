"""`python -m experiments transfer`: teach models of other architectures by knowledge packets."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.data import FILES, find_data
from experiments.transfer.pairs import PAIRS
from experiments.transfer.report import report
from ternmesh.errors import TernmeshError
from ternmesh_cli.process import number

SEEDS_MAX = 16


class TransferFailed(TernmeshError):
    """A process of the experiment has failed; its own message is above."""


def main(options: Sequence[str]) -> None:
    """Run the experiment, or the rest of it. Raises the errors of `experiments.__main__`."""
    arguments = _parser().parse_args(options)
    pairs, folder = arguments.pairs, arguments.dir.resolve()
    if arguments.task:
        pairs = [f"{arguments.task}:{arguments.teacher}:{arguments.student}"]
    needs_data = not all(pair.startswith("digits") for pair in pairs)
    data = find_data(*FILES, given=arguments.data) if needs_data else Path()
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(pair, seed) for pair in pairs for seed in range(arguments.seeds)]
    results: dict[str, list[dict[str, Any]]] = {}
    for done, (pair, seed) in enumerate(jobs):
        path = folder / f"{pair.replace(':', '-').replace('/', '-')}-{seed}.json"
        if not path.is_file():
            print(f"{pair}, seed {seed}: {done + 1} of {len(jobs)}", file=sys.stderr, flush=True)
            path.write_text(_run(pair, seed, folder, data))
        results.setdefault(pair, []).append(json.loads(path.read_text()))
    print(json.dumps(results) if arguments.json else report(results))


def _run(pair: str, seed: int, folder: Path, data: Path) -> str:
    """The result of one process, a JSON line. It shows its own progress on stderr."""
    command = [sys.executable, "-m", "experiments.transfer.arms", pair, str(seed)]
    kept = folder / "models"
    done = subprocess.run(
        [*command, str(kept), str(data)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise TransferFailed(f"{pair} with seed {seed} ended with {done.returncode}: see above")
    return done.stdout.strip().splitlines()[-1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments transfer", description=__doc__)
    add = parser.add_argument
    help_dir = "folder of the experiment; the same command continues a stopped one"
    add("--dir", type=Path, required=True, help=help_dir)
    add("--data", type=Path, metavar="FOLDER", help="data of the tasks (default: TERNMESH_DATA)")
    help_pairs = f"some of {','.join(PAIRS)} (default: digits-cnn,digits-mlp)"
    add("--pairs", type=_pairs, default=["digits-cnn", "digits-mlp"], metavar="PAIR,...",
        help=help_pairs)  # fmt: skip
    add("--seeds", type=number(1, SEEDS_MAX), default=1, help="default: 1")
    add("--task", choices=("banking", "snli"), help="instead of pairs: models by name")
    add("--teacher", default="distilbert-base-uncased", help="encoder of Hugging Face, or folder")
    add("--student", default="gpt2", help="a Hugging Face model, or folder")
    add("--json", action="store_true", help="print all results as one JSON line")
    return parser


def _pairs(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in PAIRS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no pair: use {','.join(PAIRS)}")
    return names
