"""The first boot of a Raspberry Pi: files on the boot partition of its SD card.

Pi OS trixie reads `user-data` and `network-config` (cloud-init), bookworm `custom.toml`. Both then
run `ternmesh/first-boot.sh` once, which installs the .deb, sets the board up, and removes itself
with all that is secret. The partition is a folder (a mounted card) or inside an image (mtools).
"""

import hashlib
import json
import re
import shlex
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firmware_tools.errors import FirmwareError

CLOUD_INIT, TOML = "cloud-init", "toml"
FOLDER = "ternmesh"  # on the boot partition
BOOT = f"/boot/firmware/{FOLDER}"
SCRIPT, PACKAGE, CARD, BEGIN = "first-boot.sh", "ternmesh.deb", "card.tar", "begin.sh"
SECTOR, FAT_TYPES = 512, (0x0B, 0x0C, 0x0E)
WPA_ROUNDS, WPA_BYTES = 4096, 32  # IEEE 802.11i
COUNTRY = re.compile(r"[A-Z]{2}")
HOSTNAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
RUN_ONCE = (
    f"systemd.run={BOOT}/{BEGIN} systemd.run_success_action=reboot "
    "systemd.unit=kernel-command-line.target"
)


@dataclass(frozen=True, slots=True)
class Wifi:
    """A wireless network; its password is never written, only the key that follows from it."""

    ssid: str
    password: str
    country: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.ssid.encode()) <= 32 or not self.ssid.isprintable():
            raise FirmwareError("the name of the wireless network must be 1 to 32 bytes of text")
        if not 8 <= len(self.password) <= 63 or not self.password.isascii():
            raise FirmwareError(
                "the password of the wireless network must be 8 to 63 ASCII letters"
            )
        if not COUNTRY.fullmatch(self.country):
            raise FirmwareError(f"country {self.country!r} must be two capitals, like DE or US")

    @property
    def key(self) -> str:
        """The 64 hexadecimal digits that the network takes in place of the password."""
        salt = self.ssid.encode()
        return hashlib.pbkdf2_hmac(
            "sha1", self.password.encode(), salt, WPA_ROUNDS, WPA_BYTES
        ).hex()


@dataclass(frozen=True, slots=True)
class Board:
    """What one card makes of a Pi.

    It has either `setup`, the options of `ternmesh setup` with a one-time code, or `card`, a folder
    that `ternmesh setup --bulk` has made for this board and no other.
    """

    name: str
    package: Path  # the .deb
    setup: Mapping[str, str]
    card: Path | None = None
    wifi: Wifi | None = None
    user: str = ""
    ssh_key: str = ""  # the public key with which the user logs in

    def __post_init__(self) -> None:
        if not HOSTNAME.fullmatch(self.name):
            raise FirmwareError(
                f"name {self.name!r} must be small letters, digits and - (up to 63)"
            )
        if self.package.suffix != ".deb" or not self.package.is_file():
            raise FirmwareError(f"{self.package} is no .deb: make one with `ternmesh package deb`")
        if bool(self.setup) == (self.card is not None):
            raise FirmwareError(
                "a card needs a one-time --code, or the folder of --card: one of both"
            )
        if self.card is not None:
            check_card(self.card, self.name)
        if bool(self.user) != bool(self.ssh_key):
            raise FirmwareError("a login needs both: --user, and --ssh-key with the public key")


class BootPartition(Protocol):
    """The files of a boot partition."""

    def names(self) -> list[str]:
        """The names in its root."""

    def read(self, name: str) -> str:
        """A text file in its root."""

    def write(self, name: str, source: Path) -> None:
        """Put a copy of a file there; a folder in `name` is made."""


class MountedPartition:
    """A boot partition that is mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()]

    def read(self, name: str) -> str:
        return (self._folder / name).read_text()

    def write(self, name: str, source: Path) -> None:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, path)


class ImagePartition:
    """The first FAT partition of an image, through mtools: no root, no mount."""

    def __init__(self, image: Path) -> None:
        if not shutil.which("mcopy"):
            raise FirmwareError("images need mtools: apt install mtools")
        self._where = f"{image}@@{fat_offset(image)}"

    def names(self) -> list[str]:
        listed = self._run("mdir", "-b", "-i", self._where, "::")
        return [line.rstrip("/").rpartition("/")[2] for line in listed.splitlines()]

    def read(self, name: str) -> str:
        return self._run("mtype", "-i", self._where, f"::{name}")

    def write(self, name: str, source: Path) -> None:
        folder, _, _ = name.rpartition("/")
        if folder and folder not in self.names():
            self._run("mmd", "-i", self._where, f"::{folder}")
        self._run("mcopy", "-o", "-i", self._where, str(source), f"::{name}")

    def _run(self, *command: str) -> str:
        ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if ran.returncode:
            why = (ran.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise FirmwareError(f"{command[0]} could not change the image: {why}")
        return ran.stdout


def open_partition(target: Path) -> BootPartition:
    """The boot partition in a folder or an image; FirmwareError where it is none."""
    partition: BootPartition = MountedPartition(target)
    if target.is_file():
        partition = ImagePartition(target)
    elif not target.is_dir():
        raise FirmwareError(f"{target} is no image, and no folder where a card is mounted")
    if "cmdline.txt" not in partition.names():
        raise FirmwareError(f"{target} is not the boot partition of Pi OS: it has no cmdline.txt")
    return partition


def fat_offset(image: Path) -> int:
    """Where the first FAT partition of an image begins, in bytes; FirmwareError."""
    with image.open("rb") as file:
        head = file.read(SECTOR)
    if len(head) == SECTOR and head[510:] == b"\x55\xaa":
        for at in range(446, 510, 16):
            kind, start = head[at + 4], struct.unpack_from("<I", head, at + 8)[0]
            if kind in FAT_TYPES and start:
                return int(start) * SECTOR
        if head[54:57] == b"FAT" or head[82:85] == b"FAT":
            return 0
    hint = "unpack it first (xz -d)" if image.suffix in (".xz", ".gz", ".zip") else "is it damaged?"
    raise FirmwareError(f"{image} has no FAT partition: {hint}")


def check_card(folder: Path, name: str) -> None:
    """FirmwareError unless a folder holds the settings of this board, and keys of no other."""
    settings = folder / "etc/ternmesh/node.toml"
    if not settings.is_file():
        raise FirmwareError(f"{folder} is not the folder of a board: it has no {settings}")
    named = re.search(r'^name = "([^"]*)"', settings.read_text(), re.MULTILINE)
    if named is None or named[1] != name:
        whose = "nobody" if named is None else named[1]
        raise FirmwareError(
            f"{folder} belongs to {whose}, not to {name}: no board gets another's keys"
        )


def write_card(target: Path, board: Board, form: str = "") -> str:
    """Put all files on the boot partition; returns the form, `cloud-init` or `toml`.

    Without `form` the partition tells: it has files of cloud-init or not. FirmwareError, OSError.
    """
    partition = open_partition(target)
    names = partition.names()
    form = form or (CLOUD_INIT if "user-data" in names or "meta-data" in names else TOML)
    texts = {f"{FOLDER}/{SCRIPT}": first_boot(board)}
    if form == CLOUD_INIT:
        texts |= {"user-data": user_data(board), "meta-data": f"instance-id: {board.name}\n"}
        if board.wifi is not None:
            texts["network-config"] = network_config(board.wifi)
    else:
        texts |= {"custom.toml": custom_toml(board), f"{FOLDER}/{BEGIN}": begin()}
        line = partition.read("cmdline.txt").strip()
        if RUN_ONCE not in line:
            texts["cmdline.txt"] = f"{line} {RUN_ONCE}\n"
    with tempfile.TemporaryDirectory() as work:
        for name, text in texts.items():
            path = Path(work) / "text"
            path.write_text(text)
            partition.write(name, path)
        if board.card is not None:
            packed = Path(work) / CARD
            with tarfile.open(packed, "w") as tar:
                tar.add(board.card, arcname=".", filter=_as_root)
            partition.write(f"{FOLDER}/{CARD}", packed)
    partition.write(f"{FOLDER}/{PACKAGE}", board.package)
    return form


def _as_root(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = 0
    item.uname = item.gname = "root"
    return item


def first_boot(board: Board) -> str:
    """The script that runs once, as root, with a network."""
    options = [f"--{key.replace('_', '-')}={value}" for key, value in sorted(board.setup.items())]
    setup = shlex.join(["ternmesh", "setup", "--yes", f"--name={board.name}", *options])
    steps = f"tar -C / -xf {BOOT}/{CARD}\n    systemd-tmpfiles --create" if board.card else setup
    start = "systemctl enable --now ternmesh-node" if board.card else ":"
    return f"""#!/bin/sh
# Runs at the first boot; what is secret here is removed in any case.
set -eu
trap 'rm -f {BOOT}/{SCRIPT} {BOOT}/{CARD}; systemctl disable ternmesh-first-boot || :' EXIT
try() {{
    apt-get install -y --no-install-recommends {BOOT}/{PACKAGE} || return
    {steps} || return
    {start}
}}
for pause in 10 30 60 120 0; do
    if try; then
        rm -f {BOOT}/{PACKAGE}
        exit 0
    fi
    sleep $pause
done
echo "ternmesh was not set up: run sudo ternmesh setup" >&2
exit 1
"""


def begin() -> str:
    """The script of bookworm's early first boot, which has no network yet: it makes a service."""
    return f"""#!/bin/sh
set -eu
cat > /etc/systemd/system/ternmesh-first-boot.service <<END
[Unit]
Description=Set ternmesh up at the first boot
Wants=network-online.target
After=network-online.target
ConditionPathExists={BOOT}/{SCRIPT}

[Service]
Type=oneshot
ExecStart=/bin/sh {BOOT}/{SCRIPT}

[Install]
WantedBy=multi-user.target
END
systemctl enable ternmesh-first-boot
sed -i 's| systemd.run=.*||' /boot/firmware/cmdline.txt
rm -f {BOOT}/{BEGIN}
"""


def user_data(board: Board) -> str:
    """cloud-init's `user-data`; JSON is YAML."""
    content: dict[str, object] = {
        "hostname": board.name,
        "manage_etc_hosts": True,
        "runcmd": [["sh", f"{BOOT}/{SCRIPT}"]],
    }
    if board.user:
        content["users"] = [
            {
                "name": board.user,
                "groups": "users,adm,dialout,sudo",
                "shell": "/bin/bash",
                "lock_passwd": True,
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "ssh_authorized_keys": [board.ssh_key],
            }
        ]
        content["enable_ssh"] = True
    return "#cloud-config\n" + json.dumps(content, indent=2) + "\n"


def network_config(wifi: Wifi) -> str:
    """cloud-init's `network-config` for one wireless network."""
    interface = {
        "dhcp4": True,
        "optional": True,
        "regulatory-domain": wifi.country,
        "access-points": {wifi.ssid: {"password": wifi.key}},
    }
    return json.dumps({"network": {"version": 2, "wifis": {"wlan0": interface}}}, indent=2) + "\n"


def custom_toml(board: Board) -> str:
    """The file that bookworm's first boot reads."""
    lines = ["config_version = 1", "[system]", f"hostname = {json.dumps(board.name)}"]
    if board.user:
        keys = json.dumps([board.ssh_key])
        lines += ["[user]", f"name = {json.dumps(board.user)}"]
        lines += ["[ssh]", "enabled = true", "password_authentication = false"]
        lines += [f"authorized_keys = {keys}"]
    if board.wifi is not None:
        lines += ["[wlan]", f"ssid = {json.dumps(board.wifi.ssid)}"]
        lines += [f'password = "{board.wifi.key}"', "password_encrypted = true", "hidden = false"]
        lines += [f'country = "{board.wifi.country}"']
    return "\n".join(lines) + "\n"


def imager_manifest(images: Sequence[Path], form: str) -> str:
    """The list of Raspberry Pi Imager 2 (`rpi-imager --repo`) with local images, not compressed.

    `init_format` tells it which files it may write on the card itself.
    """
    kinds = {CLOUD_INIT: "cloudinit-rpi", TOML: "systemd"}
    rows = []
    for image in images:
        with image.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = image.stat().st_size
        rows.append(
            {
                "name": f"ternmesh {image.stem}",
                "description": "Pi OS that sets a ternmesh board up at its first boot",
                "url": image.absolute().as_uri(),
                "extract_size": size,
                "extract_sha256": digest,
                "image_download_size": size,
                "image_download_sha256": digest,
                "init_format": kinds[form],
            }
        )
    return json.dumps({"os_list": rows}, indent=2) + "\n"
