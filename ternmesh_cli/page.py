"""`ternmesh page`: the address of the web page of a host or board, with its token."""

import argparse
import sys

from ternmesh.config import ConfigError
from ternmesh_cli.keys import read
from ternmesh_cli.process import add_config
from ternmesh_cli.programs import read_program
from ternmesh_service.page.config import TOKEN, PageConfig, read_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add_config(parser, "the configuration of a host or board")
    what = "make another token: from the next start on, the old one opens nothing"
    parser.add_argument("--new-token", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Print it; the token stands behind #, which browsers send to nobody."""
    end = read(arguments.config)
    page = getattr(read_program(end.program, arguments.config), "page", PageConfig())
    if page.port == 0:
        raise ConfigError(f"{arguments.config} has no page: set port in [page], 8080 say")
    if arguments.new_token:
        (end.folder / TOKEN).unlink(missing_ok=True)
        print("start the program again: until then it takes the old token", file=sys.stderr)
    print(f"{page.url}#token={read_token(end.folder)}")
    return 0
