"""`ternmesh pipeline train`: train a model in stages on this machine's ranks."""

import argparse
import json

from ternmesh_cli import process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh pipeline`."""
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    train = rows.add_parser("train", help="train, or go on from the last checkpoint")
    process.add_arguments(train)
    train.add_argument("--json", action="store_true", help="reports as lines of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train; returns the exit code."""
    from host.pipeline.config import read_pipeline_config
    from host.pipeline.launch import Ranks
    from host.pipeline.report import line

    config = read_pipeline_config(arguments.config)
    ranks = Ranks(config, arguments.config.resolve())
    stop = process.stop_on_signals()
    ranks.start()
    try:
        for report in ranks.reports(stop):
            print(json.dumps(report) if arguments.json else line(report), flush=True)
    finally:
        ranks.stop()
    return 0
