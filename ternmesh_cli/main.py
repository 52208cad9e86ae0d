"""The `ternmesh` command. Each subcommand is imported only when it is called."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from ternmesh import __version__
from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli.process import EXIT_CODES, ExitCode, HelpText, Run, Subcommands, complain
from ternmesh_service import commands
from ternmesh_store.database import StoreError
from transports.base import NameTaken, TransportError

# The summary of each command, its module in this package, and the function that adds its arguments
COMMANDS = {
    "adapt": ("make a plain .onnx classifier learn on boards", "adapt", "add_arguments"),
    "backup": ("copy the state of a host or board", "backup", "add_backup_arguments"),
    "broker": ("deploy a mosquitto for a fleet", "broker.command", "add_arguments"),
    "data": ("show and delete the samples of a board", "samples", "add_data_arguments"),
    "demo": ("see three rooms learn ten words from each other", "demo.command", "add_arguments"),
    "doctor": ("find out what keeps a host or board from its work", "doctor", "add_arguments"),
    "enrol": ("manage the members of a fleet and their keys", "enrol", "add_arguments"),
    "export": ("write what was learned as files for other programs", "export", "add_arguments"),
    "firmware": ("set up radio modems", "firmware", "add_arguments"),
    "forecast": ("simulate what a fleet on radios would learn", "forecast", "add_arguments"),
    "gateway": ("join a radio neighbourhood to a broker", "programs", "add_gateway_arguments"),
    "host": ("host a fleet", "programs", "add_host_arguments"),
    "import": ("import what a sensor has recorded", "samples", "add_import_arguments"),
    "label": ("label the samples of a board", "samples", "add_label_arguments"),
    "models": ("make a model for your own labels", "models", "add_arguments"),
    "node": ("take part in a fleet with this board's data", "programs", "add_node_arguments"),
    "page": ("print the address of a host's or board's web page", "page", "add_arguments"),
    "pipeline": ("train a model in stages far apart", "pipeline", "add_arguments"),
    "predict": ("predict with what a board has learned", "predict", "add_arguments"),
    "radio": ("plan a radio channel, and emulate radios", "radio", "add_arguments"),
    "release": ("make and install releases of a model", "release", "add_arguments"),
    "restore": ("bring a copy of the state back", "backup", "add_restore_arguments"),
    "settings": ("show and change settings of boards, from the host", "settings", "add_arguments"),
    "setup": ("install a board or a host: settings, keys and service", "setup", "add_arguments"),
    "split": ("train a model cut between boards and host", "split", "add_arguments"),
    "status": ("ask a running host, board or gateway", "status", "add_arguments"),
    "wake-word": ("serve a board's words to Home Assistant", "wake_word", "add_arguments"),
    "upgrade": ("install a newer ternmesh, on trial", "upgrade", "add_arguments"),
}

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (that of the process by default) and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = make_parser(arguments).parse_args(arguments)
        if getattr(options, "finds_config", False) and options.config is None:
            options.config = commands.find(commands.kinds_of(arguments))
        config = getattr(options, "config", None)
        os.environ[commands.CONFIG] = str(config) if isinstance(config, Path) else ""
        run: Run = options.run
        try:
            return run(options)
        finally:
            if os.geteuid() == 0 and commands.kinds_of(arguments) and isinstance(config, Path):
                with suppress(ConfigError, OSError):  # it hides no result and no other error
                    import_module("ternmesh_cli.setup").give_state(config)
    except ConfigError as error:
        return _complain(error, ExitCode.MISUSED)
    except NameTaken as error:
        return _complain(error, ExitCode.NAME_TAKEN)
    except (TernmeshError, StoreError, TransportError) as error:
        return _complain(error, ExitCode.REFUSED)
    except ImportError as error:  # of a package that not all have: ours say how to install it
        _log.debug("a package is missing", exc_info=error)
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


def make_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The command line, with the arguments of those commands that `arguments` names."""
    parser = argparse.ArgumentParser(
        commands.program(),
        formatter_class=HelpText,
        description="Boards learn together over links that carry almost nothing.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"ternmesh {__version__}")
    rows = Subcommands(parser)
    for name, (summary, module, add_arguments) in COMMANDS.items():
        row = rows.add(name, summary)
        if name in arguments:  # the modules of the others would stay in the memory of a board
            getattr(import_module(f"ternmesh_cli.{module}"), add_arguments)(row)
    return parser


if __name__ == "__main__":
    sys.exit(main())
