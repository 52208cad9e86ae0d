"""The first boot of a Raspberry Pi, up to the commands that its script calls."""

import json
import os
import re
import shutil
import struct
import subprocess
import tarfile
import tomllib

import pytest

from firmware_tools.card import (
    BOOT,
    CLOUD_INIT,
    RUN_ONCE,
    TOML,
    Board,
    Wifi,
    begin,
    fat_offset,
    first_boot,
    imager_manifest,
    open_partition,
    write_card,
)
from firmware_tools.errors import FirmwareError
from ternmesh_cli import main

WIFI = Wifi("IEEE", "password", "DE")
MTOOLS = pytest.mark.skipif(not shutil.which("mcopy"), reason="mtools is not installed")


@pytest.fixture
def deb(tmp_path):
    path = tmp_path / "x.deb"
    path.write_bytes(b"!<arch>\n")
    return path


@pytest.fixture
def boot(tmp_path):
    folder = tmp_path / "bootfs"
    folder.mkdir()
    (folder / "cmdline.txt").write_text("console=tty1 root=PARTUUID=1 rootwait quiet\n")
    return folder


def board(deb, **changes) -> Board:
    setup = {"code": "AB-CD", "link": "mqtt://192.0.2.1:1883", "data": "/srv/it's here"}
    rest = {"setup": setup, "wifi": WIFI, "user": "ann", "ssh_key": "ssh-ed25519 AAAA a"}
    return Board(**{"name": "board-7", "package": deb, **rest, **changes})


def bulk_folder(tmp_path, name="board-7"):
    folder = tmp_path / name
    (folder / "etc/ternmesh").mkdir(parents=True)
    (folder / "etc/ternmesh/node.toml").write_text(f'# x\nname = "{name}"\n')
    (folder / "var").mkdir()
    (folder / "var/identity").write_text("TM1-PRIVATE:X")
    return folder


def test_a_network_key_is_that_of_the_standard() -> None:
    """IEEE 802.11i-2004, H.4.3."""
    expected = "f42c6fc52df0ebef9ebb4b90b38a5f902e83fe1b135a70e23aed762e9710a12e"
    assert WIFI.key == expected


def test_cloud_init_gets_name_network_login_and_script(boot, deb) -> None:
    (boot / "user-data").write_text("#cloud-config\n")
    assert write_card(boot, board(deb)) == CLOUD_INIT
    head, _, rest = (boot / "user-data").read_text().partition("\n")
    found = json.loads(rest)
    assert head == "#cloud-config"
    assert (found["hostname"], found["runcmd"]) == ("board-7", [["sh", f"{BOOT}/first-boot.sh"]])
    assert found["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 AAAA a"]
    network = json.loads((boot / "network-config").read_text())["network"]
    assert network["wifis"]["wlan0"]["access-points"] == {"IEEE": {"password": WIFI.key}}
    assert (boot / "ternmesh/ternmesh.deb").read_bytes() == deb.read_bytes()
    assert (boot / "cmdline.txt").read_text().count("systemd.run=") == 0
    assert "password" not in "".join(
        path.read_text().replace('"password": "', "").replace("lock_passwd", "")
        for path in boot.rglob("*")
        if path.is_file() and path.suffix != ".deb"
    ), "the password itself is nowhere"


def test_bookworm_gets_a_toml_and_runs_once(boot, deb) -> None:
    for _ in range(2):
        assert write_card(boot, board(deb)) == TOML
    found = tomllib.loads((boot / "custom.toml").read_text())
    assert found["system"]["hostname"] == "board-7"
    assert found["wlan"] == {
        "ssid": "IEEE",
        "password": WIFI.key,
        "password_encrypted": True,
        "hidden": False,
        "country": "DE",
    }
    line = (boot / "cmdline.txt").read_text()
    assert line == f"console=tty1 root=PARTUUID=1 rootwait quiet {RUN_ONCE}\n"
    assert "systemctl enable ternmesh-first-boot" in (boot / "ternmesh/begin.sh").read_text()


def run_script(text: str, tmp_path, fails: int = 0) -> tuple[int, list[str]]:
    """Run a script with its paths moved here; the commands of the system that it called."""
    commands, log = tmp_path / "bin", tmp_path / "log"
    commands.mkdir(exist_ok=True)
    for name in ("apt-get", "ternmesh", "systemctl", "systemd-tmpfiles", "sleep"):
        path = commands / name
        fail = f'[ "$(grep -c "^{name} install" {log})" -gt {fails} ] || exit 1\n'
        path.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {log}\n' + (fail if name == "apt-get" else "")
        )
        path.chmod(0o755)
    moved = text.replace("/boot/firmware", str(tmp_path / "bootfs")).replace(
        "tar -C /", f"tar -C {tmp_path / 'root'}"
    )
    moved = moved.replace("/etc/systemd/system", str(tmp_path))
    (tmp_path / "root").mkdir(exist_ok=True)
    path = f"{commands}:{os.environ['PATH']}"
    ran = subprocess.run(["sh", "-c", moved], env={"PATH": path}, capture_output=True)
    return ran.returncode, log.read_text().splitlines()


def test_the_script_installs_sets_up_and_leaves_no_secret(boot, deb, tmp_path) -> None:
    write_card(boot, board(deb), CLOUD_INIT)
    code, called = run_script((boot / "ternmesh/first-boot.sh").read_text(), tmp_path)
    assert code == 0
    assert called[0].startswith("apt-get install -y")
    assert called[1] == (
        "ternmesh setup --yes --name=board-7 --code=AB-CD --data=/srv/it's here "
        "--link=mqtt://192.0.2.1:1883"
    )
    assert not (boot / "ternmesh/first-boot.sh").exists()
    assert not (boot / "ternmesh/ternmesh.deb").exists()


def test_the_script_tries_again_and_gives_up_with_a_sentence(boot, deb, tmp_path) -> None:
    write_card(boot, board(deb), CLOUD_INIT)
    script = (boot / "ternmesh/first-boot.sh").read_text()
    code, called = run_script(script, tmp_path, fails=2)
    assert code == 0
    assert [line for line in called if line.startswith("sleep")] == ["sleep 10", "sleep 30"]
    (tmp_path / "log").unlink()
    write_card(boot, board(deb), CLOUD_INIT)
    code, called = run_script(script, tmp_path, fails=99)
    assert code == 1
    assert not any(line.startswith("ternmesh setup") for line in called)
    assert not (boot / "ternmesh/first-boot.sh").exists(), "the code is gone in any case"


def test_a_folder_of_bulk_reaches_the_board_alone(boot, deb, tmp_path) -> None:
    folder = bulk_folder(tmp_path)
    write_card(boot, board(deb, setup={}, card=folder), CLOUD_INIT)
    with tarfile.open(boot / "ternmesh/card.tar") as tar:
        assert {item.uname for item in tar.getmembers()} == {"root"}
    code, called = run_script((boot / "ternmesh/first-boot.sh").read_text(), tmp_path)
    assert code == 0
    assert (tmp_path / "root/var/identity").read_text() == "TM1-PRIVATE:X"
    assert "systemctl enable --now ternmesh-node" in called
    assert not (boot / "ternmesh/card.tar").exists(), "the key is not left on the FAT partition"


def test_bookworms_early_script_makes_a_service(boot, tmp_path) -> None:
    (boot / "ternmesh").mkdir()
    (boot / "cmdline.txt").write_text(f"quiet {RUN_ONCE}\n")
    (tmp_path / "log").write_text("")
    code, called = run_script(begin(), tmp_path)
    assert code == 0
    assert called == ["systemctl enable ternmesh-first-boot"]
    assert (boot / "cmdline.txt").read_text() == "quiet\n"
    assert "ExecStart=/bin/sh" in (tmp_path / "ternmesh-first-boot.service").read_text()


@MTOOLS
def test_an_image_is_changed_without_root(deb, tmp_path) -> None:
    image = fat_image(tmp_path)
    assert fat_offset(image) == 1 << 20
    where = f"{image}@@{1 << 20}"
    (tmp_path / "cmdline.txt").write_text("quiet\n")
    for name in ("cmdline.txt", "user-data"):
        (tmp_path / name).write_text("quiet\n")
        subprocess.run(["mcopy", "-i", where, tmp_path / name, f"::{name}"], check=True)
    for _ in range(2):
        assert write_card(image, board(deb)) == CLOUD_INIT
    partition = open_partition(image)
    assert {"ternmesh", "user-data", "network-config"} <= set(partition.names())
    assert "board-7" in partition.read("user-data")
    assert partition.read("ternmesh/first-boot.sh") == first_boot(board(deb))


def fat_image(tmp_path):
    """An image with a FAT partition of 16 MB behind 1 MB."""
    image = tmp_path / "pios.img"
    with image.open("wb") as file:
        file.truncate(17 << 20)
        file.seek(446)
        file.write(struct.pack("<B3sB3sII", 0, bytes(3), 0x0C, bytes(3), 2048, 16 << 11))
        file.seek(510)
        file.write(b"\x55\xaa")
    subprocess.run(["mformat", "-i", f"{image}@@{1 << 20}", "-T", str(16 << 11), "::"], check=True)
    return image


@MTOOLS
def test_an_image_that_is_full_is_a_sentence(deb, tmp_path) -> None:
    image = fat_image(tmp_path)
    (tmp_path / "cmdline.txt").write_text("quiet\n")
    subprocess.run(
        ["mcopy", "-i", f"{image}@@{1 << 20}", tmp_path / "cmdline.txt", "::cmdline.txt"],
        check=True,
    )
    deb.write_bytes(bytes(20 << 20))
    with pytest.raises(FirmwareError, match="could not change the image"):
        write_card(image, board(deb))


def test_what_is_no_boot_partition_is_refused(deb, tmp_path, boot) -> None:
    for name, content, sentence in (
        ("x.img", bytes(1024), "has no FAT partition: is it damaged"),
        ("x.img.xz", b"\xfd7zXZ" + bytes(600), "unpack it first"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FirmwareError, match=f"{sentence}|need mtools"):
            write_card(tmp_path / name, board(deb))
    (boot / "cmdline.txt").unlink()
    for target, sentence in ((boot, "no cmdline.txt"), (tmp_path / "nothing", "is no image")):
        with pytest.raises(FirmwareError, match=sentence):
            write_card(target, board(deb))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "Board 7"}, "small letters, digits"),
        ({"setup": {}}, "one of both"),
        ({"user": ""}, "a login needs both"),
    ],
)
def test_a_board_that_cannot_be_made(deb, changes, sentence) -> None:
    with pytest.raises(FirmwareError, match=sentence):
        board(deb, **changes)


def test_no_board_gets_the_keys_of_another(deb, tmp_path) -> None:
    with pytest.raises(FirmwareError, match="belongs to board-8, not to board-7"):
        board(deb, setup={}, card=bulk_folder(tmp_path, "board-8"))
    with pytest.raises(FirmwareError, match="not the folder of a board"):
        board(deb, setup={}, card=tmp_path)
    with pytest.raises(FirmwareError, match=r"no \.deb"):
        board(tmp_path / "nothing.deb")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (("", "password", "DE"), "1 to 32 bytes"),
        (("x", "short", "DE"), "8 to 63"),
        (("x", "password", "Germany"), "two capitals"),
    ],
)
def test_networks_that_cannot_be(values, sentence) -> None:
    with pytest.raises(FirmwareError, match=sentence):
        Wifi(*values)


def test_a_manifest_names_what_imager_may_write(tmp_path) -> None:
    image = tmp_path / "pios.img"
    image.write_bytes(b"image")
    [row] = json.loads(imager_manifest([image], CLOUD_INIT))["os_list"]
    assert (row["init_format"], row["extract_size"]) == ("cloudinit-rpi", 5)
    assert row["url"].startswith("file:///")


def test_the_command(boot, deb, tmp_path, capsys) -> None:
    (tmp_path / "password").write_text("password\n")
    common = ["firmware", "image", str(boot), "--name", "board-7", "--deb", str(deb)]
    joining = ["--code", "AB-CD", "--link", "mqtt://192.0.2.1:1883", "--data", "/srv/x"]
    wifi = ["--wifi", "IEEE", "--country", "DE", "--wifi-password", str(tmp_path / "password")]
    assert main.main([*common, *joining, *wifi, "--form", "cloud-init"]) == 0
    assert "board-7 at its first boot (cloud-init)" in capsys.readouterr().out
    assert re.search("--fleet=ternmesh", (boot / "ternmesh/first-boot.sh").read_text())
    for arguments, sentence in (
        ([*common, "--code", "X"], "--link is missing"),
        ([*common, *joining, "--wifi", "IEEE"], "--country is missing"),
        ([*common, *joining, "--country", "DE"], "no effect without --wifi"),
        ([*common, *joining, "--manifest", "x"], "--manifest is for an image"),
        ([*common, "--card", str(bulk_folder(tmp_path)), "--fleet", "x"], "leave the options"),
    ):
        assert main.main(arguments) == 2, arguments
        assert sentence in capsys.readouterr().err
