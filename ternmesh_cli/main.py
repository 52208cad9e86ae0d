"""The `ternmesh` command. Each subcommand loads its packages only when it is called."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ternmesh import __version__
from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli import ble, enrol, gateway, host, node, pipeline, radio, release, split, status
from ternmesh_cli.broker import command as broker
from ternmesh_cli.demo import command as demo
from ternmesh_cli.experiment import command as experiment
from ternmesh_cli.said import HelpText, as_run, program
from ternmesh_store.database import StoreError
from transports.base import NameTaken, TransportError

REFUSED, MISUSED, NAME_TAKEN, INTERRUPTED = 1, 2, 3, 130
EXIT_CODES = """\
exit codes:
  0  done, or stopped by SIGINT or SIGTERM
  1  cannot start or go on, for want of data, disk or model; a sentence on stderr says why
  2  the command line or the configuration is wrong; a sentence says what is allowed
  3  another process has this one's name on the broker, and was there before
  130  interrupted before it was done (demo, experiment, status)
"""

_log = logging.getLogger(__name__)


class Command(NamedTuple):
    """A subcommand; `run` returns an exit code, or raises an error that is a sentence."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = (
    Command("ble", "try BLE without hardware", ble.add_arguments, ble.run),
    Command("broker", "deploy a mosquitto for a fleet", broker.add_arguments, broker.run),
    Command("demo", "see three boards learn three voices", demo.add_arguments, demo.run),
    Command("enrol", "say who belongs to a fleet", enrol.add_arguments, enrol.run),
    Command("experiment", "run a published experiment", experiment.add_arguments, experiment.run),
    Command(
        "gateway", "join a radio neighbourhood to a broker", gateway.add_arguments, gateway.run
    ),
    Command("host", "host a fleet", host.add_arguments, host.run),
    Command("node", "take part in a fleet with this board's data", node.add_arguments, node.run),
    Command("pipeline", "train a model in stages far apart", pipeline.add_arguments, pipeline.run),
    Command("radio", "plan a radio channel", radio.add_arguments, radio.run),
    Command("release", "make and install releases of a model", release.add_arguments, release.run),
    Command("split", "train a model cut between boards and host", split.add_arguments, split.run),
    Command("status", "ask a running host or node", status.add_arguments, status.run),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (that of the process by default) and return its exit code."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        return command.run(options)
    except ConfigError as error:
        return _complain(error, MISUSED)
    except NameTaken as error:
        return _complain(error, NAME_TAKEN)
    except (TernmeshError, StoreError, TransportError) as error:
        return _complain(error, REFUSED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has enough
        return REFUSED
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except Exception as error:  # noqa: BLE001  (the outermost loop: nothing else would tell)
        _log.critical("an error that should not happen", exc_info=error)
        return _complain(f"{type(error).__name__}: {error}", REFUSED)


def _complain(sentence: object, code: int) -> int:
    print(f"ternmesh: {as_run(str(sentence))}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    text = HelpText
    parser = argparse.ArgumentParser(program(), formatter_class=text, epilog=EXIT_CODES)
    parser.description = "Boards learn together over links that carry almost nothing."
    parser.add_argument("--version", action="version", version=f"ternmesh {__version__}")
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        row = rows.add_parser(
            command.name,
            help=command.summary,
            description=command.summary.capitalize() + ".",
            formatter_class=text,
            epilog=EXIT_CODES,
        )
        row.set_defaults(command=command)
        command.add_arguments(row)
    return parser


if __name__ == "__main__":
    sys.exit(main())
