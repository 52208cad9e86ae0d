"""`ternmesh split`: train one model on boards and a host, cut between them."""

import argparse
import json
from importlib import import_module
from types import ModuleType

from ternmesh.config import ConfigError
from ternmesh_cli import process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh split`."""
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary, run in (
        ("export", "write the parts that a host's configuration names", _export),
        ("host", "train the later part for all boards", _host),
        ("board", "train the first part with this board's data", _board),
    ):
        row = rows.add_parser(name, help=summary, description=summary.capitalize() + ".")
        process.add_arguments(row)
        row.set_defaults(split=run)
        if name != "export":
            process.add_insecure(row)
            row.add_argument("--until-finished", action="store_true", help="exit when all is done")
        if name == "board":
            row.add_argument("--json", action="store_true", help="at the end, how it went")


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    code: int = arguments.split(arguments)
    return code


def _export(arguments: argparse.Namespace) -> int:
    from host.split_config import read_split_host_config

    config = read_split_host_config(arguments.config)
    _stage().export(config)
    print(f"{config.bundle}: copy all but host.safetensors to each board")
    return 0


def _host(arguments: argparse.Namespace) -> int:
    from host.split import run_split_host
    from host.split_config import read_split_host_config

    config = read_split_host_config(arguments.config)
    process.set_up_logging(config.log_level)
    stop = process.stop_on_signals()
    run_split_host(
        config,
        _stage().load_stage,
        stop,
        insecure=arguments.insecure,
        until_finished=arguments.until_finished,
    )
    return 0


def _stage() -> ModuleType:
    """What computes with torch; ConfigError where that is not installed."""
    try:
        return import_module("host.split_stage")
    except ImportError as error:
        raise ConfigError(
            f"the host of a split training needs torch ({error}): "
            "pip install 'ternmesh[host,train,pipeline]'"
        ) from error


def _board(arguments: argparse.Namespace) -> int:
    from edge.split import run_split_board
    from edge.split_config import read_split_board_config

    config = read_split_board_config(arguments.config)
    process.set_up_logging(config.log_level)
    stop = process.stop_on_signals()
    status = run_split_board(
        config, stop, insecure=arguments.insecure, until_finished=arguments.until_finished
    )
    if arguments.json:
        print(json.dumps(status))
    return 0
