"""`ternmesh models`: the shelf of models that are made here for one's own labels."""

import argparse
from pathlib import Path

from ternmesh_cli.process import ExitCode, Subcommands, add_option, number, path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = Subcommands(parser)
    rows.add("list", "show what can be made", _list)
    row = rows.add("add", "make one for labels of your own", _add)
    row.add_argument("name", metavar="NAME", help="as `ternmesh models list` shows it")
    row.add_argument("--out", type=path, metavar="FOLDER", help="a new folder; else ./NAME")
    what = "the names of the classes, with commas; one is for anything else"
    row.add_argument("--labels", required=True, metavar="A,B,..", help=what)
    add_option(row, "--rows", number(1, 1024), 16, "that the model looks at")
    add_option(row, "--columns", number(1, 4096), 1, "numbers in a row of a sensor")


def _list(_arguments: argparse.Namespace) -> int:
    from models.shelf import HEARING, KINDS, WHEEL

    for name, summary in KINDS.items():
        needs = f" (needs the package {WHEEL}, Apache-2.0)" if name in HEARING else ""
        print(f"{name}: {summary}{needs}")
    return ExitCode.DONE


def _add(arguments: argparse.Namespace) -> int:
    from models.shelf import add

    labels = [label.strip() for label in arguments.labels.split(",")]
    folder = arguments.out or Path(arguments.name)
    package = add(arguments.name, folder, labels, arguments.rows, arguments.columns)
    print(f'{folder}: {package.dimension} numbers to learn; write model = "{folder}" into settings')
    return ExitCode.DONE
