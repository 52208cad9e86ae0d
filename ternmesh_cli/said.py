"""Commands in what we say are named as the user runs them: `./run enrol`, say."""

import argparse
import logging
import os
import re

PROGRAM = "TERNMESH_PROGRAM"  # what the script `run` was called as
_NAMED = re.compile(r"(?<=`)ternmesh(?= [a-z])|^(\s+)ternmesh(?= [a-z]+ )", re.MULTILINE)


def program() -> str:
    """What the user types to run us."""
    return os.environ.get(PROGRAM) or "ternmesh"


def as_run(text: str) -> str:
    """`text` with the commands in it as the user would type them."""
    return _NAMED.sub(lambda found: (found[1] or "") + program(), text)


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Help with its line ends, and its commands as the user would type them."""

    def format_help(self) -> str:
        """See `argparse.HelpFormatter`."""
        return as_run(super().format_help())


class LogText(logging.Formatter):
    """A line of log, and the commands in it as the user would type them."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return as_run(super().format(record))
