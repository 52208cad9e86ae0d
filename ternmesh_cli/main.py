"""The `ternmesh` command. Each subcommand loads its packages only when it is called."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from ternmesh import __version__
from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli import (
    backup,
    ble,
    enrol,
    pipeline,
    programs,
    radio,
    release,
    settings,
    split,
    status,
)
from ternmesh_cli.broker import command as broker
from ternmesh_cli.demo import command as demo
from ternmesh_cli.process import EXIT_CODES, ExitCode, HelpText, Run, Subcommands, complain, program
from ternmesh_store.database import StoreError
from transports.base import NameTaken, TransportError

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (that of the process by default) and return its exit code."""
    try:
        options = _parser().parse_args(arguments)
        run: Run = options.run
        return run(options)
    except ConfigError as error:
        return _complain(error, ExitCode.MISUSED)
    except NameTaken as error:
        return _complain(error, ExitCode.NAME_TAKEN)
    except (TernmeshError, StoreError, TransportError) as error:
        return _complain(error, ExitCode.REFUSED)
    except BrokenPipeError:
        # The reader, `| head` say, has closed the pipe: the last flush must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.REFUSED
    except KeyboardInterrupt:
        return _complain("interrupted", ExitCode.INTERRUPTED)
    except OSError as error:  # of a path that the user named: no error of ours
        _log.debug("an error of the system", exc_info=error)
        where = f"cannot use {error.filename}" if error.filename else "the system refuses"
        return _complain(f"{where} ({error.strerror or error}): check the path", ExitCode.REFUSED)
    except Exception as error:  # noqa: BLE001  (the outermost frame: log any error)
        _log.critical("an error that should not happen", exc_info=error)
        return _complain(f"{type(error).__name__}: {error}", ExitCode.REFUSED)


def _complain(error: object, code: ExitCode) -> ExitCode:
    complain(error)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program(),
        formatter_class=HelpText,
        description="Boards learn together over links that carry almost nothing.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"ternmesh {__version__}")
    rows = Subcommands(parser)
    summary = "copy the state of a host or node"
    backup.add_backup_arguments(rows.add("backup", summary, backup.run_backup))
    ble.add_arguments(rows.add("ble", "try BLE without hardware"))
    broker.add_arguments(rows.add("broker", "deploy a mosquitto for a fleet"))
    demo.add_arguments(rows.add("demo", "see three boards learn three voices", demo.run))
    enrol.add_arguments(rows.add("enrol", "manage the members of a fleet and their keys"))
    summary = "join a radio neighbourhood to a broker"
    programs.add_arguments(rows.add("gateway", summary, programs.run_gateway))
    programs.add_host_arguments(rows.add("host", "host a fleet", programs.run_host))
    summary = "take part in a fleet with this board's data"
    programs.add_arguments(rows.add("node", summary, programs.run_node))
    pipeline.add_arguments(rows.add("pipeline", "train a model in stages far apart"))
    radio.add_arguments(rows.add("radio", "plan a radio channel, and emulate radios"))
    release.add_arguments(rows.add("release", "make and install releases of a model"))
    summary = "bring a copy of the state back"
    backup.add_restore_arguments(rows.add("restore", summary, backup.run_restore))
    summary = "show and change the settings of boards, from the host"
    settings.add_arguments(rows.add("settings", summary, settings.run))
    split.add_arguments(rows.add("split", "train a model cut between boards and host"))
    status.add_arguments(rows.add("status", "ask a running host, node or gateway", status.run))
    return parser


if __name__ == "__main__":
    sys.exit(main())
