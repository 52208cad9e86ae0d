"""`ternmesh firmware`: radio modems are found, set up alike, compared."""

import argparse
import glob
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from firmware_tools.errors import FirmwareError
from firmware_tools.radios.fleet_file import RadioFleet, read_radio_fleet
from firmware_tools.radios.provision import FAILURES, Found, Outcome, probe, provision
from ternmesh.config import ConfigError
from ternmesh_cli import process
from ternmesh_cli.process import ExitCode

PORTS = ("/dev/serial/by-id/*", "/dev/ttyUSB*", "/dev/ttyACM*", "/dev/serial0")
AT_ONCE = 8  # modems
T = TypeVar("T")
U = TypeVar("U")
ENDINGS = {
    "changed": "is set up",
    "unchanged": "has it all already",
    "differs": "differs",
    "failed": "failed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = process.Subcommands(parser)
    row = rows.add("probe", "find radio modems, and show their settings", _probe)
    row.add_argument("ports", nargs="*", metavar="PORT", help="devices, like /dev/ttyUSB0")
    what = "ask every serial port, whatever is connected to it"
    row.add_argument("--all", action="store_true", help=what)
    process.add_json(row, "print a JSON list")
    for name, summary in (
        ("provision", "give all modems of a fleet their settings"),
        ("verify", "compare the modems with the file of their fleet"),
    ):
        row = rows.add(name, summary, _provision)
        row.set_defaults(is_dry=name == "verify")
        row.add_argument("file", type=process.path, metavar="FILE", help="the radios of the fleet")
        what = "where the modem of the host or of a board is plugged in; may be repeated"
        row.add_argument("--port", action="append", metavar="NAME=PORT", required=True, help=what)
        process.add_json(row, "print a JSON list")


def _fleet(arguments: argparse.Namespace) -> tuple[RadioFleet, dict[str, str]]:
    """The fleet in the file, and the ports by name; ConfigError."""
    fleet = read_radio_fleet(arguments.file.read_text())
    pairs = [text.partition("=") for text in arguments.port]
    ports = {name: port for name, _, port in pairs}
    if not all(ports.values()) or len(set(ports.values())) < len(pairs):
        raise ConfigError("--port must be NAME=PORT, like host=/dev/ttyUSB0, each port once")
    for name in ports:
        fleet.wanted(name)
    return fleet, ports


def _probe(arguments: argparse.Namespace) -> int:
    if bool(arguments.ports) == arguments.all:
        raise ConfigError("name the PORT of a modem; or --all, which asks every serial port")
    ports = arguments.ports or _serial_ports()
    if not ports:
        raise FirmwareError("there is no serial port: plug a modem in")
    answers = list(_at_once(_probed, ports))
    if arguments.json:
        print(json.dumps([_shown(answer) for answer in answers]))
    else:
        print("\n".join(line for answer in answers for line in _found_lines(answer)))
    is_found = any(isinstance(answer, Found) for answer in answers)
    return ExitCode.DONE if is_found else ExitCode.REFUSED


def _serial_ports() -> list[str]:
    """The serial devices of this machine, each once."""
    paths = [path for pattern in PORTS for path in sorted(glob.glob(pattern))]
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def _probed(port: str) -> Found | Outcome:
    try:
        return probe(port)
    except FAILURES as error:
        return Outcome(port, "", "failed", reason=str(error))


def _shown(answer: Found | Outcome) -> dict[str, Any]:
    if isinstance(answer, Outcome):
        return {"port": answer.port, "reason": answer.reason}
    return asdict(answer)


def _found_lines(answer: Found | Outcome) -> Iterator[str]:
    if isinstance(answer, Outcome):
        yield answer.reason
        return
    yield f"{answer.port}: {answer.identity} ({answer.dialect}, {answer.baud} baud)"
    for key, value in answer.settings.items():
        yield f"  {key:14} {value}"


def _provision(arguments: argparse.Namespace) -> int:
    fleet, ports = _fleet(arguments)

    def one(item: tuple[str, str]) -> Outcome:
        name, port = item
        return provision(port, name, fleet, is_dry=arguments.is_dry)

    outcomes: list[Outcome] = []
    try:
        for outcome in _at_once(one, list(ports.items())):
            outcomes.append(outcome)
            if not arguments.json:
                print("\n".join(_lines(outcome)), flush=True)
    finally:  # also after Ctrl-C
        if arguments.json:
            print(json.dumps([asdict(outcome) for outcome in outcomes]))
        wrong = [outcome for outcome in outcomes if not outcome.is_right]
        if not arguments.json:
            print(f"{len(outcomes) - len(wrong)} of {len(ports)} modems are right")
    return ExitCode.REFUSED if wrong else ExitCode.DONE


def _lines(outcome: Outcome) -> Iterator[str]:
    reason = f": {outcome.reason}" if outcome.reason else ""
    yield f"{outcome.name or 'modem'} ({outcome.port}) {ENDINGS[outcome.result]}{reason}"
    for name, (before, after) in outcome.changes.items():
        yield f"  {name:14} {before} -> {after}"


def _at_once(function: Callable[[T], U], items: Sequence[T]) -> Iterator[U]:
    """The results in order, of several modems at a time.

    After Ctrl-C none begins, and those that have begun are finished.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(function, items)
