"""`ternmesh doctor`: what keeps a host, a board or a gateway from its work, and what to do.

Each check has a thread of its own and a time limit, so none hides or delays another. Checks only
read. They use neither the broker's name nor the serial port of the running program.
"""

import argparse
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli import keys, process
from ternmesh_cli.doctor_checks import WARNING, WRONG, Check, Subject, checks_of
from ternmesh_cli.process import ExitCode
from ternmesh_cli.programs import read_program
from ternmesh_cli.setup import acting_as, default_config, service_user
from ternmesh_service import commands
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import read_status
from ternmesh_store.database import StoreError, is_in_use
from ternmesh_store.state_file import STATE
from transports.base import TransportError

LIMIT_S = 20.0  # of all checks together

Finding = tuple[str, str, str]  # the check, its result, and a sentence that also says what to do


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    what = "settings of the board, host or gateway (default: all here or in /etc/ternmesh)"
    parser.add_argument("--config", type=process.path, metavar="FILE", help=what)
    process.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run all checks and print what they found."""
    paths = [arguments.config] if arguments.config else commands.found(commands.ALL)
    findings: list[Finding] = []
    for path in paths or [default_config(commands.NODE)]:
        os.environ[commands.CONFIG] = str(path)
        with acting_as(service_user(path)):  # what the service may do is what counts
            rows = diagnose(look(path, time.time()))
        findings += rows
        for check, result, sentence in () if arguments.json else rows:
            print(commands.as_run(f"{result:8} {check:9} {sentence}"))
    if arguments.json:
        names = ("check", "result", "sentence")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in findings], indent=1))
    is_wrong = any(result == WRONG for _, result, _ in findings)
    return ExitCode.REFUSED if is_wrong else ExitCode.DONE


def look(path: Path, now: float) -> Subject:
    """What is known about the program with these settings, without an error for what is wrong."""
    end = config = status = None
    error = silence = ""
    try:
        end = keys.read(path)
        config = read_program(end.program, path)
    except ConfigError as failure:
        error = str(failure)
    try:
        if end is not None and (answer := end.ask({"command": "status"})) is not None:
            status = read_status(answer)
        elif end is not None and is_in_use(end.folder / STATE):
            silence = f"it runs, but nothing answers on {end.socket}: was that removed? Restart it"
    except ControlError as failure:
        silence = str(failure)
    return Subject(path, now, end, config, status, error, silence)


def diagnose(
    subject: Subject, checks: Sequence[Check] = (), limit_s: float = LIMIT_S
) -> list[Finding]:
    """The findings of all checks that fit, in their order, after `limit_s` at the latest."""
    checks = checks or checks_of(subject)
    found: dict[str, list[Finding]] = {}

    def work(check: Check) -> None:
        name = check.__name__
        try:
            found[name] = [(name, *row) for row in check(subject)]
        except (TernmeshError, StoreError, TransportError, OSError, ImportError) as error:
            found[name] = [(name, WRONG, str(error))]
        except Exception as error:  # noqa: BLE001  (a broken check must not hide the others)
            sentence = f"this check failed, which should not happen: {error!r}"
            found[name] = [(name, WARNING, sentence)]

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the parts that the checks use say the same in a sentence
    threads = [threading.Thread(target=work, args=(check,), daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, give_up_at - time.monotonic()))
    logging.disable(before)
    late = f"no result within {limit_s:.0f} s: a disk or a server does not answer"
    names = [check.__name__ for check in checks]
    return [row for name in names for row in found.get(name, [(name, WRONG, late)])]
