"""`ternmesh firmware image`: the SD card of a board that sets itself up at its first boot."""

import argparse
import getpass
import sys
from pathlib import Path

from firmware_tools.card import CLOUD_INIT, TOML, Board, Wifi, imager_manifest, write_card
from firmware_tools.errors import FirmwareError
from ternmesh.config import ConfigError
from ternmesh_cli import process
from ternmesh_cli.process import ExitCode, Subcommands
from ternmesh_cli.setup import find_answers
from ternmesh_cli.setup_text import BOARD

QUESTIONS = tuple(question for question in BOARD if question.key != "name")
SECRET_MAX = 1000  # bytes of a file with a password or a public key


def add_image_arguments(rows: Subcommands) -> None:
    row = rows.add("image", "write the first-boot files of a Raspberry Pi's SD card", run)
    what = "an image of Pi OS, or the folder where a card's boot partition is mounted"
    row.add_argument("target", type=process.path, metavar="TARGET", help=what)
    row.add_argument("--name", required=True, help="of the board, and its host name")
    what = "the package to install (`ternmesh package deb` makes it)"
    row.add_argument("--deb", type=process.path, required=True, metavar="FILE", help=what)
    joining = row.add_mutually_exclusive_group(required=True)
    what = "join with this one-time code of the host (`ternmesh enrol code --minutes 600`)"
    joining.add_argument("--code", help=what)
    what = "the board's folder that `ternmesh setup --bulk` has made"
    joining.add_argument("--card", type=process.path, metavar="DIR", help=what)
    for question in QUESTIONS:
        default = f" (default: {question.default})" if question.default else ""
        row.add_argument(f"--{question.key}", help=f"with --code: {question.text}{default}")
    row.add_argument("--wifi", metavar="SSID", help="the wireless network")
    what = "a file with its password (default: it is asked for)"
    row.add_argument("--wifi-password", type=process.path, metavar="FILE", help=what)
    row.add_argument("--country", help="whose radio law holds for it, like DE")
    row.add_argument("--user", default="", help="a user who may log in")
    what = "the file with the public key of the user"
    row.add_argument("--ssh-key", type=process.path, metavar="FILE", help=what)
    what = "of Pi OS trixie or bookworm (default: the partition tells)"
    row.add_argument("--form", choices=(CLOUD_INIT, TOML), default="", help=what)
    what = "of an image: also write the list with which Raspberry Pi Imager 2 offers it"
    row.add_argument("--manifest", type=process.path, metavar="FILE", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Write the files of one board. ConfigError, FirmwareError."""
    given = {question.key: getattr(arguments, question.key) for question in QUESTIONS}
    setup = {}
    if arguments.code is not None:
        setup = {**find_answers(QUESTIONS, given), "code": arguments.code}
    elif any(value is not None for value in given.values()):
        raise ConfigError("--card has all settings of the board: leave the options of setup out")
    if arguments.manifest is not None and not arguments.target.is_file():
        raise ConfigError("--manifest is for an image: leave it out for a mounted card")
    key = _text(arguments.ssh_key) if arguments.ssh_key else ""
    if key and not key.startswith(("ssh-", "ecdsa-", "sk-")):
        raise ConfigError(f"{arguments.ssh_key} is no public key: it must begin with ssh-")
    board = Board(
        arguments.name, arguments.deb, setup, arguments.card, _wifi(arguments), arguments.user, key
    )
    form = write_card(arguments.target, board, arguments.form)
    print(f"{arguments.target} makes {board.name} at its first boot ({form})")
    if arguments.code is not None:
        print("The code is on the card until then: keep the card, and boot it while it is valid.")
    if arguments.card is not None:
        print("The board's private key is on the card: no other board may get a copy.")
    if arguments.manifest is not None:
        arguments.manifest.write_text(imager_manifest([arguments.target], form))
        print(f"rpi-imager --repo {arguments.manifest} offers it")
    return ExitCode.DONE


def _wifi(arguments: argparse.Namespace) -> Wifi | None:
    if arguments.wifi is None:
        if arguments.wifi_password or arguments.country:
            raise ConfigError("--wifi-password and --country have no effect without --wifi")
        return None
    if arguments.country is None:
        raise ConfigError("--country is missing: whose radio law holds for the wireless network?")
    if arguments.wifi_password:
        password = _text(arguments.wifi_password)
    elif sys.stdin.isatty():
        password = getpass.getpass(f"password of {arguments.wifi}: ")
    else:
        raise ConfigError("--wifi-password is missing: a file with the network's password")
    return Wifi(arguments.wifi, password, arguments.country)


def _text(path: Path) -> str:
    """The first line of a small file."""
    with path.open("rb") as file:
        data = file.read(SECRET_MAX + 1)
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > SECRET_MAX or not text.isprintable():
        raise FirmwareError(f"{path} must hold one line of text")
    return text
