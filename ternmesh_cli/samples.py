"""`ternmesh data` and `ternmesh label`: the samples that a board has from its source."""

import argparse
import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
from ternmesh_cli import keys, process
from ternmesh_cli.status_text import table
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import DATA, RELOAD, ControlError
from ternmesh_service.status import reasons
from ternmesh_store.state_file import STATE

HEADS = ("label", "samples", "bytes", "newest", "its age", "age of the oldest")
CONFIG = "the configuration of the board"
DAY_S = 86_400.0


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    rows = process.Subcommands(parser)
    row = rows.add("list", "show what is stored under each label", run_list)
    process.add_config(row, CONFIG)
    process.add_json(row)
    row = rows.add("forget", "delete the samples that fit all that is given", run_forget)
    process.add_config(row, CONFIG)
    row.add_argument("--key", help="the sample with this key")
    row.add_argument("--label", help="samples with this label, a name or a number")
    what = "older ones: 30d"
    row.add_argument("--older-than", dest="older_s", type=_days, metavar="DAYS", help=what)
    what = "samples that wait for a label"
    row.add_argument("--unlabelled", action="store_const", const=True, help=what)
    what = "samples that the model cannot compute"
    row.add_argument("--set-aside", action="store_const", const=True, help=what)
    row.add_argument("--all", action="store_true", help="all samples, after a question")
    row.add_argument("--yes", action="store_true", help="with --all: do not ask")


def add_label_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_label)
    process.add_config(parser, CONFIG)
    parser.add_argument("key", nargs="?", metavar="KEY", help="of a sample, labelled or not")
    parser.add_argument("label", nargs="?", metavar="LABEL", help="its label, a name or a number")
    parser.add_argument("--last", metavar="LABEL", help="label the newest sample that waits")


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_import)
    process.add_config(parser, CONFIG)
    process.add_json(parser)
    parser.add_argument("path", type=Path, help="a CSV file, or a folder of files with labels")
    parser.add_argument("--columns", help="of a CSV file: those of the model's input, with commas")
    parser.add_argument("--target", help="of a CSV file: the column with the label")
    parser.add_argument("--horizon", type=int, help="how many rows later the label is read")
    parser.add_argument("--separator", help="of a CSV file, where it is not found")
    process.add_option(parser, "--held-out", process.real(0.01, 0.99), 0.2, "the share to evaluate")


def run_import(arguments: argparse.Namespace) -> int:
    from edge.config import read_node_config
    from edge.data.history import read_history, write_history

    end, config = keys.read(arguments.config), read_node_config(arguments.config)
    names = ("columns", "target", "horizon", "separator")
    given = {name: getattr(arguments, name) for name in names}
    options = config.data.options | {k: v for k, v in given.items() if v is not None}
    if arguments.columns is not None:
        options["columns"] = tuple(arguments.columns.split(","))
    if config.data.path is not None or config.evaluate.path is not None:
        raise ConfigError(
            "[data] path and [evaluate] path go before what is imported: remove them first"
        )
    history = read_history(arguments.path, load_model_package(config.model), options)
    is_rows = not arguments.path.is_dir()
    trained, held_out = write_history(
        Path(config.state_dir), history, arguments.held_out, by_order=is_rows
    )
    is_running = end.ask({RELOAD: True}) is not None
    if arguments.json:
        counts = {"train": trained, "held_out": held_out}
        print(json.dumps(counts | {"left_out": history.left_out, "first": history.first}))
        return process.ExitCode.DONE
    print(f"{trained} samples to train on, {held_out} held out for evaluation")
    for reason in reasons(history.left_out, history.first):
        print(f"left out: {reason}")
    print("the board has read them" if is_running else "the board reads them at its start")
    return process.ExitCode.DONE


def run_list(arguments: argparse.Namespace) -> int:
    groups = _ask(arguments, {DATA: "list"})
    cells = [
        (label or "(none)", str(samples), str(size), repr(newest), *map(_age, ages))
        for label, samples, size, newest, *ages in map(dict.values, groups)
    ]
    print(json.dumps(groups) if arguments.json else "\n".join(table(HEADS, cells)))
    return process.ExitCode.DONE


def run_forget(arguments: argparse.Namespace) -> int:
    names = ("key", "label", "older_s", "unlabelled", "set_aside")
    given = ((name, getattr(arguments, name)) for name in names)
    which = {name: value for name, value in given if value is not None}
    if bool(which) == arguments.all:
        raise ConfigError(
            "say which: --key, --label, --older-than, --unlabelled, --set-aside; or --all alone"
        )
    if arguments.all and not arguments.yes:
        if not sys.stdin.isatty():
            raise ConfigError("this deletes all samples: if that is intended, add --yes")
        if input("Delete all samples? There is no way back [y/N] ") != "y":
            return process.ExitCode.REFUSED
    deleted = _ask(arguments, {DATA: "forget", "which": which})
    print(f"{deleted} samples deleted")
    if copies := [str(copy) for copy in keys.read(arguments.config).folder.glob(f"{STATE}.*")]:
        print(f"older copies of the state may still hold them: {', '.join(copies)}")
    is_gone = deleted == 0 and arguments.key is not None
    return process.ExitCode.REFUSED if is_gone else process.ExitCode.DONE


def run_label(arguments: argparse.Namespace) -> int:
    given = [value is not None for value in (arguments.key, arguments.label, arguments.last)]
    if given not in ([True, True, False], [False, False, True]):
        raise ConfigError(
            "give KEY and LABEL, or --last LABEL; the board's page shows what waits for a label"
        )
    label = arguments.last or arguments.label
    done = _ask(arguments, {DATA: "label", "key": arguments.key, "label": label})
    print(f"{done!r} is {label}" if done else "no sample has this key now: check it")
    return process.ExitCode.DONE if done else process.ExitCode.REFUSED


def _ask(arguments: argparse.Namespace, request: dict[str, Any]) -> Any:
    """The answer of the running board, or from its state file; ControlError."""
    end = keys.read(arguments.config)
    answer = end.ask(request)
    if answer is None:
        from edge.config import read_node_config
        from edge.data.labels import answer_stopped

        answer = answer_stopped(read_node_config(arguments.config), request)
    if DATA not in answer:
        raise ControlError(answer.get("error", f"{end.name} is no board of this version"))
    return answer[DATA]


def _age(seconds: float | None) -> str:
    return "unknown" if seconds is None else str(timedelta(seconds=round(seconds)))


def _days(text: str) -> float:
    """The seconds of `30d`."""
    if not re.fullmatch(r"\d{1,5}d", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of days: 30d")
    return float(text[:-1]) * DAY_S
