"""`ternmesh host`: host a fleet until told to stop."""

import argparse

from ternmesh_cli import process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh host`."""
    process.add_arguments(parser)
    process.add_insecure(parser)
    parser.add_argument(
        "--until-finished",
        action="store_true",
        help="exit once the run is over and the nodes had time to fetch its last reference",
    )
    parser.add_argument(
        "--new-run",
        action="store_true",
        help="give up what a run of another model or another [run] has learned, or one whose file "
        "is damaged; a run of the same model and [run] goes on",
    )


def run(arguments: argparse.Namespace) -> int:
    """Host; returns the exit code."""
    from host.config import read_host_config
    from host.service import run_host

    config = read_host_config(arguments.config)
    process.set_up_logging(config.log_level)
    run_host(
        config,
        process.stop_on_signals(),
        until_finished=arguments.until_finished,
        new_run=arguments.new_run,
        insecure=arguments.insecure,
    )
    return 0
