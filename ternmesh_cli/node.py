"""`ternmesh node`: take part in a fleet until told to stop."""

import argparse

from ternmesh_cli import process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh node`."""
    process.add_arguments(parser)
    process.add_insecure(parser)


def run(arguments: argparse.Namespace) -> int:
    """Take part; returns the exit code."""
    from edge.config import read_node_config
    from edge.runtime import run_node

    config = read_node_config(arguments.config)
    process.set_up_logging(config.log_level)
    run_node(config, process.stop_on_signals(), insecure=arguments.insecure)
    return 0
