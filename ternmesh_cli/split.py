"""`ternmesh split`: train one model on boards and a host, cut between them."""

import argparse
from importlib import import_module
from types import ModuleType

from ternmesh.config import ConfigError
from ternmesh.extras import installed
from ternmesh_cli import process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = process.Subcommands(parser)
    export = rows.add("export", "write the parts that a host's configuration names", _export)
    process.add_config(export, is_found=False)
    for name, summary, run in (
        ("host", "train the later part for all boards", _host),
        ("board", "train the first part with this board's data", _board),
    ):
        row = rows.add(name, summary, run)
        process.add_config(row, is_found=False)
        process.add_insecure(row)
        what = "exit when the training is finished"
        row.add_argument("--until-finished", action="store_true", help=what)


def _export(arguments: argparse.Namespace) -> int:
    from host.split.config import read_split_host_config

    config = read_split_host_config(arguments.config)
    _stage().export(config)
    print(f"{config.model}: copy all but host.safetensors to each board")
    return 0


def _host(arguments: argparse.Namespace) -> int:
    from host.split.config import read_split_host_config
    from host.split.service import run_split_host

    config = read_split_host_config(arguments.config)
    run_split_host(
        config,
        _stage().load_stage,
        process.start(config.log_level),
        insecure=arguments.insecure,
        until_finished=arguments.until_finished,
    )
    return 0


def _stage() -> ModuleType:
    """The module that needs torch; ConfigError where torch is not installed."""
    with installed("host,train,pipeline", "the host of a split training needs torch", ConfigError):
        return import_module("host.split.stage")


def _board(arguments: argparse.Namespace) -> int:
    from edge.split.config import read_split_board_config
    from edge.split.node import run_split_board

    config = read_split_board_config(arguments.config)
    run_split_board(
        config,
        process.start(config.log_level),
        insecure=arguments.insecure,
        until_finished=arguments.until_finished,
    )
    return 0
