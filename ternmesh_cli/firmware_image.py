"""`ternmesh firmware pack|sign|unpack`: firmware of microcontrollers, signed by the fleet.

The vendors' tools write it: esptool, smpmgr, or a copy to the drive of a UF2 bootloader.
"""

import argparse
import hashlib
import shlex
import sys
from dataclasses import replace
from pathlib import Path

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
from ternmesh.config import ConfigError
from ternmesh.security.signatures import FIRMWARE
from ternmesh_cli import process, release
from ternmesh_cli.process import ExitCode, Subcommands
from ternmesh_store.files import read_file, replace_file

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
