"""`ternmesh firmware`: radio modems are found, set up alike, compared; images are signed.

The vendors' tools write the images of microcontrollers: esptool, smpmgr, or a copy to the drive of
a UF2 bootloader.
"""

import argparse
import glob
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from firmware_tools.errors import FirmwareError
from firmware_tools.image import (
    ESP,
    IMAGE_MAX,
    METHODS,
    UF2,
    Image,
    read_image,
    read_version,
    text_of,
    write_image,
)
from firmware_tools.radios.fleet_file import RadioFleet, read_radio_fleet
from firmware_tools.radios.provision import FAILURES, Found, Outcome, probe, provision
from ternmesh.config import ConfigError
from ternmesh.security.signatures import FIRMWARE
from ternmesh_cli import process, release
from ternmesh_cli.process import ExitCode, Subcommands
from ternmesh_store.files import read_file, replace_file

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

    row = rows.add("provision", "give all modems of a fleet their settings", _provision)
    _add_fleet(row)
    row.set_defaults(is_dry=False)
    process.add_json(row, "print a JSON list")

    row = rows.add("verify", "compare the modems with the file of their fleet", _provision)
    _add_fleet(row)
    row.set_defaults(is_dry=True)
    process.add_json(row, "print a JSON list")

    add_image_arguments(rows)


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=process.path, metavar="FILE", help="the radios of the fleet")
    what = "a modem's port, in place of [ports]; may be repeated"
    parser.add_argument("--port", action="append", metavar="NAME=PORT", default=[], help=what)


def _fleet(arguments: argparse.Namespace) -> tuple[RadioFleet, dict[str, str]]:
    """The fleet in the file, and the ports by name; ConfigError."""
    fleet = read_radio_fleet(arguments.file.read_text())
    ports = dict(fleet.ports)
    if arguments.port:
        pairs = [text.partition("=") for text in arguments.port]
        ports = {name: port for name, _, port in pairs}
        if not all(ports.values()) or len(set(ports.values())) < len(pairs):
            raise ConfigError("--port must be NAME=PORT, like host=/dev/ttyUSB0, each port once")
    if not ports:
        raise ConfigError("no modem is named: add [ports] to the file, or --port NAME=PORT")
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
    finally:  # also after Ctrl-C: what was done to which modem must be known
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

    After Ctrl-C none begins, and those that have begun still come.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(function, item) for item in items]
        interrupt: KeyboardInterrupt | None = None
        for future in waiting:
            while interrupt is None:
                try:
                    future.result()
                    break
                except KeyboardInterrupt as error:
                    interrupt = error
                    for other in waiting:
                        other.cancel()
            if not future.cancelled():
                yield future.result()
        if interrupt is not None:
            raise interrupt


UNSIGNED = "the signature of this firmware is not checked"
FILE_MAX = IMAGE_MAX + 1024  # bytes


def add_image_arguments(rows: Subcommands) -> None:
    row = rows.add("pack", "write firmware as one file, with what it is and for which board", _pack)
    what = "an image for an ESP, a UF2 file, or an image that imgtool has signed for MCUboot"
    row.add_argument("data", type=process.path, metavar="DATA", help=what)
    row.add_argument("--name", required=True, help="of the firmware")
    row.add_argument("--version", required=True, help="three numbers, like 1.2.3")
    what = "a chip like esp32c3, the Board-ID of a UF2 drive, or Zephyr's name of a board"
    row.add_argument("--board", required=True, help=what)
    row.add_argument("--method", choices=METHODS, required=True, help="how it is written")
    what = "where an ESP has it in its flash memory (default: 0x10000)"
    row.add_argument("--address", type=_address, metavar="N", help=what)
    row.add_argument("--out", type=process.path, required=True, metavar="FILE", help="a new file")

    row = rows.add("sign", "sign such a file with the key of the host or of another signer", _sign)
    _add_file(row)
    release.add_signer(row)

    row = rows.add("unpack", "check a signed file, and take out the firmware to flash", _unpack)
    _add_file(row)
    row.add_argument("--out", type=process.path, required=True, metavar="DATA", help="a new file")
    trust = row.add_mutually_exclusive_group(required=True)
    what = "host.toml or that of any end of the fleet, which must have signed the file"
    trust.add_argument("--config", type=process.path, metavar="FILE", help=what)
    trust.add_argument("--insecure", action="store_true", help="also a file that nobody signed")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=process.path, metavar="FILE", help="made by `pack`")


def _address(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number like 0x10000") from None


def _pack(arguments: argparse.Namespace) -> int:
    version = read_version(arguments.version)
    if version is None or text_of(version) != arguments.version:
        raise ConfigError(f"--version {arguments.version}: give three numbers, like 1.2.3")
    if arguments.address is not None and arguments.method != ESP:
        raise ConfigError("--address is only for an ESP: the other images hold theirs")
    data = read_file(arguments.data, IMAGE_MAX)
    image = Image(arguments.name, version, arguments.board, arguments.method, 0, data)
    if image.method == ESP:
        address = 0x10000 if arguments.address is None else arguments.address
        image = replace(image, address=address)
    replace_file(arguments.out, write_image(image))
    print(f"{arguments.out}: {_said(image)}, not signed")
    return ExitCode.DONE


def _said(image: Image) -> str:
    return f"{image.label} for {image.board}, {len(image.data):,} bytes"


def _sign(arguments: argparse.Namespace) -> int:
    data = read_file(arguments.file, FILE_MAX)
    digest = hashlib.sha256(data).digest()
    release.sign_file(arguments, arguments.file, read_image(data).label, FIRMWARE, digest)
    return ExitCode.DONE


def _unpack(arguments: argparse.Namespace) -> int:
    data = read_file(arguments.file, FILE_MAX)  # once: what is checked is what is taken out
    if arguments.insecure:
        print(UNSIGNED, file=sys.stderr)
    else:
        digest = hashlib.sha256(data).digest()
        release.check_file(arguments.file, digest, arguments.config, FIRMWARE)
    image = read_image(data)
    replace_file(arguments.out, image.data)
    print(f"{arguments.out}: {_said(image)}; flash it with")
    print(f"  {_command(image, arguments.out)}")
    return ExitCode.DONE


def _command(image: Image, file: Path) -> str:
    """How the tool of the vendor writes an image."""
    name = shlex.quote(str(file))
    if image.method == ESP:
        return f"esptool --chip {image.board} --port PORT write-flash {image.address:#x} {name}"
    if image.method == UF2:
        return f"cp {name} DRIVE"
    return f"smpmgr --port PORT upgrade --slot 1 {name}"
