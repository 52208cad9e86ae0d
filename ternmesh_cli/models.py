"""`ternmesh models`: the shelf of models that are made here for one's own labels."""

import argparse
import json

from ternmesh_cli.process import ExitCode, Subcommands, add_json, add_option, number, path

ROWS_MAX, COLUMNS_MAX = 1024, 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = Subcommands(parser)
    add_json(rows.add("list", "show what can be made", _list))
    row = rows.add("add", "make one for labels of your own", _add)
    row.add_argument("name", metavar="NAME", help="as `ternmesh models list` shows it")
    row.add_argument("--out", type=path, metavar="FOLDER", help="a new folder; else ./NAME")
    what = "the names of the classes, with commas; one is for anything else"
    row.add_argument("--labels", required=True, metavar="A,B,..", help=what)
    row.add_argument("--rows", type=number(1, ROWS_MAX), help="that the model looks at; else 16")
    add_option(row, "--columns", number(1, COLUMNS_MAX), 1, "numbers in a row of a sensor")


def _list(arguments: argparse.Namespace) -> int:
    from models.shelf import KINDS, WHEEL

    rows = [
        {"name": name, "for": kind.summary, "needs": WHEEL if kind.hears else None}
        for name, kind in KINDS.items()
    ]
    if arguments.json:
        print(json.dumps(rows))
    for row in () if arguments.json else rows:
        needs = f"; needs the package {row['needs']}, Apache-2.0" if row["needs"] else ""
        print(f"{row['name']}: {row['for']}{needs}")
    return ExitCode.DONE


def _add(arguments: argparse.Namespace) -> int:
    from models.shelf import add

    labels = [label.strip() for label in arguments.labels.split(",")]
    folder = arguments.out or path(arguments.name)
    package = add(arguments.name, folder, labels, arguments.columns, arguments.rows)
    print(f'{folder}: {package.dimension} numbers to learn; write model = "{folder}" into settings')
    return ExitCode.DONE
