"""`ternmesh gateway`: join the boards of a radio neighbourhood to a broker until told to stop."""

import argparse

from ternmesh_cli import process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh gateway`."""
    process.add_arguments(parser)
    process.add_insecure(parser)


def run(arguments: argparse.Namespace) -> int:
    """Forward; returns the exit code."""
    from edge.gateway import read_gateway_config, run_gateway

    config = read_gateway_config(arguments.config)
    process.set_up_logging(config.log_level)
    run_gateway(config, process.stop_on_signals(), insecure=arguments.insecure)
    return 0
