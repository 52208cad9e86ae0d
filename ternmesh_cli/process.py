"""What every long-running command does first: set up logging, mind signals."""

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from ternmesh_cli.said import LogText

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TERMINAL_LINE = "%(asctime)s %(message)s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--config."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML file")


def add_insecure(parser: argparse.ArgumentParser) -> None:
    """--insecure."""
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="without keys: for a broker on this machine; elsewhere [trust] insecure = true too",
    )


def set_up_logging(level: str) -> None:
    """One line an event on stderr: for people where that is a terminal, else for programs."""
    is_terminal = sys.stderr.isatty()
    formatter = LogText(TERMINAL_LINE, "%H:%M:%S") if is_terminal else LogText(LINE)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])


def stop_on_signals() -> threading.Event:
    """Set by the first SIGINT, SIGTERM or, unless nohup has it ignored, SIGHUP.

    A second one ends the process at once.
    """
    stop = threading.Event()

    def ask_to_stop(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, ask_to_stop)
    return stop
