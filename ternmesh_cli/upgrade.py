"""`ternmesh upgrade`: sign a version of ternmesh, install it on trial, go back where it fails.

Everything of ternmesh is imported before the files are replaced: what is imported later would be of
the other version.
"""

import argparse
import json
import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ternmesh.errors import TernmeshError
from ternmesh_cli import keys, release
from ternmesh_cli.keys import End
from ternmesh_cli.process import Subcommands, add_json, add_option, number
from ternmesh_service import commands, rollback, software
from ternmesh_service.control_socket import ControlError
from ternmesh_service.release_files import entry_of
from ternmesh_service.rollback import KEPT, LAST, MARKER, Failed, run
from ternmesh_store.files import copy_file, make_private_folder

FOLDER = Path("/var/lib/ternmesh/upgrade")
RECOVERY = "ternmesh-upgrade.service"  # runs at the next start of a machine that lost its power
FILE_MAX = 1 << 30  # bytes of a package
TRIAL_S = 120
SILENT_S = 300.0  # a program that gives no answer for so long hangs: as long as WatchdogSec
LOOK_S = 2.0  # between two looks at a program on trial

SHOWN = ("step", "old", "new", "file", "units", "sentence")
CUT = "an upgrade goes on, or was cut: `systemctl start ternmesh-upgrade` brings it to its end"

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = Subcommands(parser)
    what = "sign a .deb with the key of the host or another signer"
    row = rows.add("sign", what, release.sign_software)
    row.add_argument("file", type=Path, metavar="FILE")
    release.add_signer(row)
    row = rows.add("install", "install a .deb, and go back where it fails", _install)
    row.add_argument("file", type=Path, metavar="FILE")
    what = "node.toml, host.toml or gateway.toml; again for each program (default: all here)"
    row.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help=what)
    row.add_argument("--insecure", action="store_true", help="also a file that nobody signed")
    what = "so long the new version must work"
    add_option(row, "--trial-s", number(0, 86_400), TRIAL_S, what)
    add_json(rows.add("status", "show the last upgrade", _status))


def _status(arguments: argparse.Namespace) -> int:
    last = {"sentence": "no upgrade was made here"}
    for name in (LAST, MARKER):
        with suppress(FileNotFoundError):
            last = {"sentence": CUT} | json.loads((FOLDER / name).read_text())
    shown = {name: last[name] for name in SHOWN if name in last}
    print(json.dumps(shown, indent=1) if arguments.json else shown["sentence"])
    return 0


def _install(arguments: argparse.Namespace) -> int:
    here = arguments.config or commands.found(commands.ALL)
    arguments.config = here or [commands.find(commands.ALL)]
    ends = ends_of(arguments.config)
    make_private_folder(FOLDER)
    _on_signals(signal.default_int_handler)
    try:
        with rollback.locked(FOLDER):
            if (cut := rollback.recover(FOLDER)) is not None:
                raise Failed(f"of the upgrade before: {cut}; give this command again")
            try:
                package, marker = _prepare(arguments, FOLDER / KEPT, ends)
            except BaseException:
                shutil.rmtree(FOLDER / KEPT, ignore_errors=True)
                raise
            print(_upgrade(package, marker, ends, arguments.trial_s))
    except Failed as error:
        raise TernmeshError(str(error)) from error
    return 0


def _on_signals(action: Callable[[int, Any], Any] | signal.Handlers) -> None:
    for number_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number_, action)


def _prepare(
    arguments: argparse.Namespace, kept: Path, ends: Mapping[str, End]
) -> tuple[software.Package, dict[str, Any]]:
    """Check everything, and keep the way back: after an error nothing has changed."""
    for unit in map(_unit, ("host", "node", "gateway")):
        runs = _pid(unit) is not None
        if unit not in ends and runs:
            raise Failed(f"{unit} runs here too: give its --config as well")
        if unit in ends and not (runs and ends[unit].ask({"command": "status"})):
            raise Failed(
                f"{unit} does not run with these settings: start it, so that the new version can "
                "be tried"
            )
    shutil.rmtree(kept, ignore_errors=True)
    file = kept / rollback.NEW / arguments.file.name
    file.parent.mkdir(parents=True)
    copy_file(arguments.file, file, FILE_MAX)  # what is checked is what is installed
    if not arguments.insecure:
        release.check_software(arguments.file, entry_of(file).sha256, arguments.config[0])
    package = software.read_package(file)
    run("systemctl", "enable", "--quiet", RECOVERY)
    marker = {
        "step": rollback.BEGUN,
        "file": str(arguments.file),
        "units": list(ends),
        **software.keep(package, kept),
    }
    shutil.copyfile(str(rollback.__file__), FOLDER / "rollback.py")
    rollback.write_marker(FOLDER, marker)
    return package, marker


def _upgrade(
    package: software.Package, marker: dict[str, Any], ends: Mapping[str, End], trial_s: float
) -> str:
    try:
        run("systemctl", "stop", *ends)
        software.install(package)
        run("systemctl", "start", *ends)  # until they say READY, or their time is over
        watch(ends, trial_s)
    except BaseException as error:
        _on_signals(signal.SIG_IGN)  # who presses Ctrl-C twice would stop the way back
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        raise Failed(rollback.roll_back(FOLDER, why)) from error
    _on_signals(signal.SIG_IGN)
    sentence = f"{package.version} runs in place of {package.installed}"
    rollback.finish(FOLDER, marker, rollback.DONE, sentence)
    return sentence


def watch(ends: Mapping[str, End], trial_s: float) -> None:
    """Return when each program has answered after its trial; Failed where one ends or hangs."""
    pids = {unit: _pid(unit) for unit in ends}
    begun = time.monotonic()
    heard = dict.fromkeys(ends, begun)
    while True:
        for unit, end in ends.items():
            if pids[unit] is None or _pid(unit) != pids[unit]:
                raise Failed(f"{unit} ended on trial")
            try:
                if end.ask({"command": "status"}) is not None:
                    heard[unit] = time.monotonic()
            except ControlError as error:
                _log.info("%s is busy (%s)", unit, error)
            if (silent_s := time.monotonic() - heard[unit]) > max(SILENT_S, trial_s):
                raise Failed(f"{unit} gave no answer for {silent_s:.0f} s on trial")
        if all(at > begun and at - begun >= trial_s for at in heard.values()):
            return
        time.sleep(LOOK_S)


def ends_of(paths: Iterable[Path]) -> dict[str, End]:
    """What is configured in these files, by its unit."""
    return {_unit(end.program): end for end in map(keys.read, paths)}


def _unit(program: str) -> str:
    return f"ternmesh-{program}.service"


def _pid(unit: str) -> str | None:
    """The process of a unit; None where it does not serve."""
    shown = run("systemctl", "show", "--property=ActiveState,MainPID", unit).splitlines()
    state = dict(line.split("=", 1) for line in shown)
    return state["MainPID"] if state["ActiveState"] == "active" else None
