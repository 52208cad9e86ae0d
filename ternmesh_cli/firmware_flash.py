"""`ternmesh firmware pack|sign|flash|slots|revert`: firmware of microcontrollers."""

import argparse
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

from firmware_tools.errors import FirmwareError
from firmware_tools.flash.image import (
    ESP,
    IMAGE_MAX,
    METHODS,
    UF2,
    Image,
    Progress,
    read_image,
    read_version,
    text_of,
    write_image,
)
from ternmesh.config import ConfigError
from ternmesh.security.signatures import FIRMWARE
from ternmesh_cli import process, release
from ternmesh_cli.process import ExitCode, Subcommands
from ternmesh_store.files import read_file, replace_file

UNSIGNED = "the signature of this firmware is not checked"
FILE_MAX = IMAGE_MAX + 1024  # bytes


def add_flash_arguments(rows: Subcommands) -> None:
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

    row = rows.add("flash", "write firmware to the board that is connected", _flash)
    _add_file(row)
    what = "the microcontroller: a serial port, udp:ADDRESS, or the folder of a UF2 drive"
    row.add_argument("target", metavar="TARGET", help=what)
    trust = row.add_mutually_exclusive_group(required=True)
    what = "host.toml or that of any end of the fleet, which must have signed the file"
    trust.add_argument("--config", type=process.path, metavar="FILE", help=what)
    trust.add_argument("--insecure", action="store_true", help="also a file that nobody signed")

    row = rows.add("slots", "show the images that a board with MCUboot has", _slots)
    _add_target(row)
    process.add_json(row, "print a JSON list")
    row = rows.add("revert", "start the other image of a board with MCUboot again", _revert)
    _add_target(row)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=process.path, metavar="FILE", help="made by `pack`")


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a serial port, or udp:ADDRESS")


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


def _flash(arguments: argparse.Namespace) -> int:
    data = read_file(arguments.file, FILE_MAX)  # once: what is checked is what is written
    if arguments.insecure:
        print(UNSIGNED, file=sys.stderr)
    else:
        digest = hashlib.sha256(data).digest()
        release.check_file(arguments.file, digest, arguments.config, FIRMWARE)
    image = read_image(data)
    progress = _shown if sys.stderr.isatty() else _hidden
    try:
        said = _written(image, arguments.target, progress)
    except FirmwareError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        process.complain(error)
        return ExitCode.INTERRUPTED
    print(f"{_said(image)}: {said}")
    return ExitCode.DONE


def _written(image: Image, target: str, progress: Progress) -> str:
    is_drive = Path(target).is_dir()
    if is_drive != (image.method == UF2):
        needed = "a serial port" if is_drive else "the folder of the board's drive"
        raise FirmwareError(f"{image.label} is written by {image.method}: TARGET must be {needed}")
    if is_drive:
        from firmware_tools.flash import uf2

        return uf2.flash(image, Path(target), progress)
    if image.method == ESP:
        from firmware_tools.flash import esp

        return esp.flash(image, target, progress)
    from firmware_tools.flash import smp

    return smp.flash(image, target, progress)


def _hidden(done: int, total: int) -> None:
    pass


def _shown(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{100 * done // total:3} %", end=end, file=sys.stderr, flush=True)


def _slots(arguments: argparse.Namespace) -> int:
    from firmware_tools.flash.smp import slots

    rows = [
        {
            "slot": slot.number,
            "version": text_of(slot.version) if slot.version else None,
            "hash": slot.digest.hex(),
            "active": slot.active,
            "confirmed": slot.confirmed,
            "pending": slot.pending,
        }
        for slot in slots(arguments.target)
    ]
    if arguments.json:
        print(json.dumps(rows))
        return ExitCode.DONE
    for row in rows:
        flags = [name for name in ("active", "confirmed", "pending") if row[name]]
        print(f"slot {row['slot']}  {row['version']}  {str(row['hash'])[:16]}  {' '.join(flags)}")
    return ExitCode.DONE


def _revert(arguments: argparse.Namespace) -> int:
    from firmware_tools.flash.smp import revert

    print(revert(arguments.target))
    return ExitCode.DONE
