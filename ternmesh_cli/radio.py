"""`ternmesh radio`: what radios cost, and radios that are not there."""

import argparse
from importlib import import_module
from importlib.util import find_spec

SUBCOMMANDS = {
    "estimate": "frames, airtime and wall time of an object, before it is sent",
    "emulate": "radio modems on pseudo-terminals, to try a fleet without radios",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `ternmesh radio`; each is a module `radio_NAME` beside this one."""
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in SUBCOMMANDS.items():
        module = f"ternmesh_cli.radio_{name}"
        if find_spec(module) is None:
            continue
        row = rows.add_parser(
            name,
            help=summary,
            description=summary.capitalize() + ".",
            formatter_class=parser.formatter_class,
            epilog=parser.epilog,
        )
        plugged = import_module(module)
        row.set_defaults(run_radio=plugged.run)
        plugged.add_arguments(row)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit code."""
    code: int = arguments.run_radio(arguments)
    return code
