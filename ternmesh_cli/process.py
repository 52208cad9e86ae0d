"""The parts that commands share: exit codes, options, our name, logging, signals, TOML."""

import argparse
import faulthandler
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TextIO

from ternmesh.config import ConfigError
from ternmesh.timers import RateLimiter
from ternmesh_service.commands import SETTINGS, as_run
from ternmesh_service.notify import ServiceManager

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TERMINAL_LINE = "%(asctime)s %(message)s"
TOGETHER_S = 1.0  # equal signals so close are one: `timeout` sends two
# Of journald (sd-daemon(3))
PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, 50: 2}

_said = RateLimiter(60.0, 3600.0)  # seconds between equal lines of the log
_log = logging.getLogger(__name__)

Run = Callable[[argparse.Namespace], int]


class ExitCode(IntEnum):
    """How a command ended. The units in packaging/systemd restart by it.

    The sentence stands in `--help` and in docs/service.md.
    """

    sentence: str

    DONE = 0, "done, or stopped by SIGINT or SIGTERM"
    REFUSED = (
        1,
        "cannot start or continue: data, disk or model is missing; a sentence on stderr says why",
    )
    MISUSED = 2, "the command line or the configuration is wrong; a sentence says what is allowed"
    NAME_TAKEN = 3, "another process uses this name on the broker already"
    INTERRUPTED = 130, "interrupted before it was done, or while it started"

    def __new__(cls, code: int, sentence: str) -> "ExitCode":
        made = int.__new__(cls, code)
        made._value_ = code
        made.sentence = sentence
        return made


EXIT_CODES = "exit codes:\n" + "".join(f"  {code:d}  {code.sentence}\n" for code in ExitCode)


def number(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`, as `type` of an argument."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of {low} to {high}")
        return int(text)

    return parse


def real(low: float, high: float, unit: str = "") -> Callable[[str], float]:
    """A parser of numbers from `low` to `high`, as `type` of an argument."""
    allowed = f"a number of {low:g} to {high:g} {unit}".rstrip()

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be {allowed}")
        return value

    return parse


def path(text: str) -> Path:
    """A parser of paths, as `type` of an argument; "" would be the present folder."""
    if not text:
        raise argparse.ArgumentTypeError("a path is missing: . is the present folder")
    return Path(text)


class Subcommands:
    """The subcommands of a command."""

    def __init__(self, parser: argparse.ArgumentParser, epilog: str | None = None) -> None:
        self._formatter = parser.formatter_class
        self._epilog = epilog or parser.epilog
        self._rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(self, name: str, summary: str, run: Run | None = None) -> argparse.ArgumentParser:
        """A new subcommand. `run` becomes the attribute `run` of the parsed arguments."""
        row: argparse.ArgumentParser = self._rows.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=self._formatter,
            epilog=self._epilog,
        )
        if run is not None:
            row.set_defaults(run=run)
        return row


def add_config(
    parser: argparse.ArgumentParser, what: str = "TOML file", *, is_found: bool = True
) -> None:
    """The option --config, which may be left out where the settings are found (`commands`)."""
    what += f" (default: the one here or in {SETTINGS})" if is_found else ""
    parser.add_argument("--config", type=path, required=not is_found, metavar="FILE", help=what)
    parser.set_defaults(finds_config=is_found)


def add_json(parser: argparse.ArgumentParser, what: str = "print one JSON object") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_option(
    parser: argparse.ArgumentParser,
    name: str,
    parse: Callable[[str], float],
    default: float,
    what: str,
) -> None:
    """An option with a number as its value. Its help names the default."""
    parser.add_argument(name, type=parse, default=default, help=f"{what} (default: {default})")


def add_uses(
    parser: argparse.ArgumentParser, choice: str, uses: Mapping[str, Sequence[str]]
) -> None:
    """Declare the options that only some values of the option `choice` use (`refuse_unused`)."""
    parser.set_defaults(uses=(choice, uses), default_of=parser.get_default)


def refuse_unused(arguments: argparse.Namespace) -> None:
    """ConfigError for an option of `add_uses` that would have no effect."""
    choice, uses = arguments.uses
    chosen = getattr(arguments, choice)
    where = f"without --{choice}" if chosen is None else f"with --{choice} {chosen}"
    for name, values in uses.items():
        is_given = getattr(arguments, name) != arguments.default_of(name)
        if is_given and chosen not in values:
            raise ConfigError(
                f"--{name.replace('_', '-')} has no effect {where}: leave it out, or "
                f"choose --{choice} {' or '.join(values)}"
            )


def add_insecure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="run without keys, with a broker on this machine; any other broker also needs "
        "insecure = true in [security]",
    )


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Help that keeps its line ends and names commands as the user types them."""

    def format_help(self) -> str:
        return as_run(super().format_help())


class LogText(logging.Formatter):
    """Log lines that name commands as the user types them."""

    def format(self, record: logging.LogRecord) -> str:
        return as_run(super().format(record))


class JournalText(LogText):
    """Log lines for the journal of systemd: with their priority, and without the time."""

    def format(self, record: logging.LogRecord) -> str:
        priority = PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


def is_due(record: logging.LogRecord) -> bool:
    """Whether a line is new, or due again: the pauses double. Numbers make no warning new."""
    numbers = int | float if record.levelno >= logging.WARNING else ()
    others = [item for item in record.args or () if not isinstance(item, numbers)]
    return _said.allow(f"{record.levelno}{record.msg}{others}", time.monotonic())


def is_journal(stream: TextIO) -> bool:
    """Whether what is written to `stream` goes into the journal of systemd (systemd.exec(5))."""
    journal = os.environ.get("JOURNAL_STREAM")
    if journal is None:
        return False
    try:
        info = os.fstat(stream.fileno())
    except (OSError, ValueError):  # it is no file, or closed
        return False
    return journal == f"{info.st_dev}:{info.st_ino}"


def set_up_logging(level: str) -> None:
    """Log an event as a line on stderr, in the form of a journal, a terminal or a file."""
    formatter: logging.Formatter
    if is_journal(sys.stderr):
        formatter = JournalText("%(name)s: %(message)s")
    elif sys.stderr.isatty():
        formatter = LogText(TERMINAL_LINE, "%H:%M:%S")
    else:
        formatter = LogText(LINE)
    handler = logging.StreamHandler()
    handler.addFilter(is_due)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])


def complain(error: object) -> None:
    """Say why a command has failed: on stderr, and in `systemctl status`."""
    sentence = as_run(str(error))
    ServiceManager().status(sentence)
    if is_journal(sys.stderr):
        set_up_logging("INFO")  # where no configuration was read before
        _log.error("%s", sentence)
    else:
        print(f"ternmesh: {sentence}", file=sys.stderr)


def stop_on_signals() -> threading.Event:
    """An event that the first SIGINT, SIGTERM or SIGHUP sets; the same one later ends the process.

    SIGHUP stays ignored where nohup has it ignored.
    """
    stop = threading.Event()
    asked: SimpleQueue[int] = SimpleQueue()
    first: dict[int, float] = {}  # when a signal came, by its number

    def handle(number: int, _frame: FrameType | None) -> None:
        asked.put(number)  # it takes no lock: `set` might wait for one that this thread holds
        if time.monotonic() - first.setdefault(number, time.monotonic()) > TOGETHER_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def work() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=work, name="stop", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)
    return stop


def start(log_level: str) -> threading.Event:
    """Set up the logging of a long-running command, and return the event that stops it."""
    set_up_logging(log_level)
    faulthandler.enable(2)  # what each thread did, where the watchdog ends a program that hangs
    return stop_on_signals()


def write_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """The TOML text of tables by name; "" is the top level. A value of None is left out."""
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]"] if table else []
        given = {key: value for key, value in values.items() if value is not None}
        lines += [f"{key} = {toml_value(value)}" for key, value in given.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    # A JSON text, number, truth value or list of them is also TOML.
    return json.dumps(value, ensure_ascii=False)
