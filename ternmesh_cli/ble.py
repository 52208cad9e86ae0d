"""`ternmesh ble`: Bluetooth controllers that are not there."""

import argparse

from ternmesh_cli import ble_emulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `ternmesh ble`."""
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    summary = "Bluetooth controllers over TCP, to try BLE without hardware"
    row = rows.add_parser(
        "emulate",
        help=summary,
        description=f"{summary}.",
        formatter_class=parser.formatter_class,
        epilog=parser.epilog,
    )
    ble_emulate.add_arguments(row)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit code."""
    return ble_emulate.run(arguments)
