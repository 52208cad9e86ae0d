"""`ternmesh completion`: what bash or zsh need to complete our commands. A .deb has it already."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from ternmesh_cli import process
from transports.base import MissingExtra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    what = 'of bash: eval "$(ternmesh completion bash)"; of zsh: save it as _ternmesh in fpath'
    parser.add_argument("shell", choices=("bash", "zsh"), help=what)


def run(arguments: argparse.Namespace) -> int:
    """Print the completion for a shell; MissingExtra without the package that writes it."""
    from ternmesh_cli.main import COMMANDS, make_parser

    try:
        import shtab
    except ImportError as error:
        raise MissingExtra("completion needs shtab: pip install 'ternmesh[node]'") from error
    os.environ.pop(process.PROGRAM, None)  # the script of a checkout is not installed
    parser = make_parser(tuple(COMMANDS))
    for action in _actions(parser):
        if action.type in (Path, process.path):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options of a command and of all below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for row in action.choices.values():
                yield from _actions(row)
