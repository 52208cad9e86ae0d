"""`ternmesh doctor`: what keeps a host, a node or a gateway from its work, and what to do.

Each check has a thread of its own and a time limit, so none hides or delays another. Checks only
read. They use neither the broker's name nor the serial port of the running program.
"""

import argparse
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli import doctor_checks, keys, process
from ternmesh_cli.doctor_checks import WARNING, WRONG, Result, Subject
from ternmesh_cli.process import ExitCode
from ternmesh_cli.programs import read_program
from ternmesh_cli.setup import acting_as, default_config, service_user
from ternmesh_service.control_socket import ControlError
from ternmesh_store.database import StoreError
from transports.base import TransportError

LIMIT_S = 20.0  # of all checks together
CHECKS: Mapping[str, Callable[[Subject], Iterator[Result]]] = {
    "settings": doctor_checks.settings,
    "clock": doctor_checks.clock,
    "disk": doctor_checks.disk,
    "state": doctor_checks.state,
    "keys": doctor_checks.keys_and_fleet,
    "program": doctor_checks.program,
    "broker": doctor_checks.broker,
    "port": doctor_checks.port,
    "airtime": doctor_checks.airtime,
    "model": doctor_checks.model,
    "data": doctor_checks.data,
    "memory": doctor_checks.memory,
    "unit": doctor_checks.unit,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. The sentence also says what to do."""

    check: str
    result: str
    sentence: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    what = "settings of the node, host or gateway (default: those of the unit)"
    parser.add_argument("--config", type=process.path, metavar="FILE", help=what)
    process.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run all checks and print what they found."""
    paths = [default_config(kind) for kind in ("node", "host", "gateway")]
    path = arguments.config or next((one for one in paths if one.exists()), paths[0])
    with acting_as(service_user(path)), _quiet():  # what the service may do is what counts
        findings = diagnose(look(path, time.time()))
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for found in findings:
            print(process.as_run(f"{found.result:8} {found.check:9} {found.sentence}"))
    is_wrong = any(found.result == WRONG for found in findings)
    return ExitCode.REFUSED if is_wrong else ExitCode.DONE


def look(path: Path, now: float) -> Subject:
    """What is known about the program with these settings, without an error for what is wrong."""
    end = config = answer = None
    error = silence = ""
    try:
        end = keys.read(path)
        config = read_program(end.role.name.lower(), path)
    except ConfigError as found:
        error = str(found)
    try:
        answer = None if end is None else end.ask({"command": "status"})
    except ControlError as found:
        silence = str(found)
    return Subject(path, now, end, config, answer, error, silence)


def diagnose(
    subject: Subject,
    checks: Mapping[str, Callable[[Subject], Iterator[Result]]] = CHECKS,
    limit_s: float = LIMIT_S,
) -> list[Finding]:
    """The findings of all checks, in their order, after `limit_s` at the latest."""
    found: dict[str, list[Finding]] = {}

    def work(name: str) -> None:
        try:
            found[name] = [Finding(name, *row) for row in checks[name](subject)]
        except (TernmeshError, StoreError, TransportError, OSError) as error:
            found[name] = [Finding(name, WRONG, str(error))]
        except Exception as error:  # noqa: BLE001  (a broken check must not hide the others)
            sentence = f"this check failed, which should not happen: {error!r}"
            found[name] = [Finding(name, WARNING, sentence)]

    threads = {
        name: threading.Thread(target=work, args=(name,), daemon=True)  # exit waits for none
        for name in checks
    }
    for thread in threads.values():
        thread.start()
    give_up_at = time.monotonic() + limit_s
    for name, thread in threads.items():
        thread.join(max(0.0, give_up_at - time.monotonic()))
        if thread.is_alive():
            sentence = f"no result within {limit_s:.0f} s: a disk or a server does not answer"
            found[name] = [Finding(name, WRONG, sentence)]
    return [finding for name in checks for finding in found[name]]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the log of the parts that the checks use: they say the same in a sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
