"""The `ternmesh` command. Each subcommand loads its packages only when it is called."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from ternmesh import __version__

OK, REFUSED, MISUSED = 0, 1, 2
EXIT_CODES = """\
exit codes:
  0  done, or stopped by SIGINT or SIGTERM
  1  could not start or go on; a sentence on stderr says why
  2  the command line or the configuration is wrong; a sentence says what is allowed
"""

_log = logging.getLogger("ternmesh")


class Command(NamedTuple):
    """A subcommand: the module with its `add_arguments(parser)` and `run(arguments) -> int`."""

    name: str
    module: str
    summary: str


COMMANDS = (
    Command("host", "ternmesh_cli.host", "host a fleet: open rounds, combine, publish"),
    Command("node", "ternmesh_cli.node", "take part in a fleet with this board's own data"),
    Command("status", "ternmesh_cli.status", "ask a running host or node how it stands"),
)
