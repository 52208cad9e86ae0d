"""`ternmesh host`, `node` and `gateway`: the programs of a fleet. Each runs until a signal."""

import argparse
from pathlib import Path
from typing import Any

from ternmesh_cli import process


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, run_node)


def add_gateway_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, run_gateway)


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser, run_host)
    parser.add_argument(
        "--until-finished",
        action="store_true",
        help="exit when the run is over and the nodes have had time to fetch the last update",
    )
    parser.add_argument(
        "--new-run",
        action="store_true",
        help="discard a stored run of another model or another [run], or one with a damaged file; "
        "a run of the same model and [run] continues",
    )


def read_program(kind: str, path: Path) -> Any:
    """The settings of a "host", "node" or "gateway", by its own reader; ConfigError."""
    match kind:
        case "host":
            from host.config import read_host_config

            return read_host_config(path)
        case "gateway":
            from edge.gateway.service import read_gateway_config

            return read_gateway_config(path)
        case _:
            from edge.config import read_node_config

            return read_node_config(path)


def run_host(arguments: argparse.Namespace) -> int:
    from host.config import read_host_config
    from host.service import run_host

    config = read_host_config(arguments.config)
    run_host(
        config,
        process.start(config.log_level, config.log_format),
        until_finished=arguments.until_finished,
        new_run=arguments.new_run,
        insecure=arguments.insecure,
    )
    return 0


def run_node(arguments: argparse.Namespace) -> int:
    from edge.config import read_node_config
    from edge.service import run_node

    config = read_node_config(arguments.config)
    stop = process.start(config.log_level, config.log_format)
    run_node(config, stop, insecure=arguments.insecure)
    return 0


def run_gateway(arguments: argparse.Namespace) -> int:
    from edge.gateway.service import read_gateway_config, run_gateway

    config = read_gateway_config(arguments.config)
    stop = process.start(config.log_level, config.log_format)
    run_gateway(config, stop, insecure=arguments.insecure)
    return 0


def _add_arguments(parser: argparse.ArgumentParser, run: process.Run) -> None:
    parser.set_defaults(run=run)
    process.add_config(parser)
    process.add_insecure(parser)
