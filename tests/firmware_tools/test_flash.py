"""Firmware is packed, signed, and written to boards, which are simulated."""

import hashlib
import json
import os
import resource
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgtool.image import Image as McubootImage
from imgtool.keys.x25519 import X25519
from imgtool.version import decode_version
from smp import packet

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.flash import esp, smp, uf2
from firmware_tools.flash.image import (
    ESP,
    SMP,
    UF2,
    Image,
    mcuboot_hash,
    read_image,
    read_version,
    write_image,
)
from ternmesh_cli import firmware_flash, main
from ternmesh_cli.keys import enrol_fleet
from tests.firmware_tools.emulated_boards import EspChip, McubootBoard, Uf2Drive

SIZE = 20_000
UF2_MAGIC = 0x0A324655, 0x9E5D5157, 0x0AB16F30


def numbers(version: str) -> tuple[int, int, int]:
    found = read_version(version)
    assert found is not None
    return found


def noise(size: int, seed: int = 1) -> bytes:
    return hashlib.shake_128(bytes([seed])).digest(size)


def esp_image(version: str = "1.2.3", project: str = "relay", chip: int = 5) -> Image:
    about = struct.pack(
        "<II8s32s32s16s16s32s32s80s", 0xABCD5432, 0, b"", version.encode(), project.encode(),
        b"", b"", b"", b"", b"",
    )  # fmt: skip
    segment = about + noise(SIZE - len(about))
    head = struct.pack("<BBBBI", 0xE9, 1, 2, 0x20, 0x40380000)
    head += struct.pack("<B3sHBHH4sB", 0xEE, b"", chip, 0, 0, 99, b"", 0)
    body = head + struct.pack("<II", 0x3C000020, len(segment)) + segment
    total = 0xEF
    for byte in segment:
        total ^= byte
    body += bytes(15 - len(body) % 16) + bytes([total])
    return Image("relay", numbers(version), "esp32c3", ESP, 0x10000, body)


def uf2_image(board: str = "RPI-RP2", blocks: int = 140) -> Image:
    data = b"".join(
        struct.pack(
            "<8I476sI", *UF2_MAGIC[:2], 0x2000, 0x10000000 + 256 * n, 256, n, blocks, 0xE48BFF56,
            noise(256, n % 250), UF2_MAGIC[2],
        )
        for n in range(blocks)
    )  # fmt: skip
    return Image("sensor", (1, 0, 0), board, UF2, 0, data)


def mcuboot_image(tmp_path: Path, version: str = "1.2.3", **options: Any) -> Image:
    return imgtool(tmp_path, version, **options)[0]


def imgtool(tmp_path: Path, version: str = "1.2.3", **options: Any) -> tuple[Image, bytes]:
    """An image, and its hash as imgtool has it."""
    source, target = tmp_path / "app.bin", tmp_path / "signed.bin"
    source.write_bytes(noise(SIZE, sum(version.encode()) % 256))
    made = McubootImage(
        version=decode_version(version), header_size=0x200, pad_header=True, slot_size=1 << 18,
        align=4, endian="little",
    )  # fmt: skip
    made.load(str(source))
    made.create(**{"key": None, "public_key_format": "hash", "enckey": None} | options)
    made.save(str(target))
    image = Image("relay", numbers(version), "nrf52840dk", SMP, 0, target.read_bytes())
    return image, made.image_hash


@contextmanager
def chip(**faults: Any) -> Iterator[EspChip]:
    board = EspChip(**faults)
    board.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("esptool.reset_chip", board.restart)
        yield board
    board.close()


@pytest.fixture
def mcuboot(tmp_path: Path) -> Iterator[McubootBoard]:
    old = mcuboot_image(tmp_path, "1.2.2")
    board = McubootBoard(old.data, mcuboot_hash(old.data))
    board.start()
    yield board
    board.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smp, "LOOK_S", 0.1)
    monkeypatch.setattr(smp, "ANSWER_S", 1.0)
    monkeypatch.setattr(smp, "CONNECT_S", 1.0)
    monkeypatch.setattr(smp, "ERASE_S", 1.0)


def ignore(_done: int, _total: int) -> None:
    pass


# The file


def test_an_image_returns_from_its_file(tmp_path: Path) -> None:
    for image in (esp_image(), uf2_image(), mcuboot_image(tmp_path)):
        assert read_image(write_image(image)) == image


@given(st.binary(max_size=200))
def test_any_bytes_are_an_image_or_our_error(data: bytes) -> None:
    with pytest.raises(FirmwareError):
        read_image(data)


@given(st.integers(0, 1 << 20), st.integers(1, 255))
def test_a_damaged_file_is_an_image_or_our_error(place: int, change: int) -> None:
    data = bytearray(write_image(uf2_image(blocks=3)))
    data[place % len(data)] ^= change
    with suppress(FirmwareError):
        read_image(bytes(data))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "a b"}, "name"),
        ({"board": ""}, "board"),
        ({"method": "jtag"}, "method must be one of"),
        ({"data": b""}, "an image has 1 to"),
        ({"data": b"\x00" * 300}, "begins with 0xE9"),
        ({"address": 0x10001}, "multiple"),
        ({"version": (1, 2, 4)}, "says that it is version 1.2.3"),
        ({"method": SMP, "address": 0}, "no header of MCUboot"),
        ({"method": UF2, "address": 0}, "blocks of 512"),
    ],
)
def test_what_no_board_could_take_is_refused(change: dict, sentence: str) -> None:
    with pytest.raises(FirmwareError, match=sentence):
        write_image(replace(esp_image(), **change))


def test_an_image_of_another_version_than_it_says_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FirmwareError, match=r"version 1\.2\.3"):
        write_image(replace(mcuboot_image(tmp_path), version=(2, 0, 0)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user_sha": "512"},
        {"custom_tlvs": {0xA0: noise(40)}},
        {"enckey": X25519.generate(), "custom_tlvs": {0xA0: b"own"}},
        {"enckey": X25519.generate(), "user_sha": "512", "encrypt_keylen": 256},
    ],
)
def test_the_hash_of_an_mcuboot_image_is_what_imgtool_says(options: dict, tmp_path: Path) -> None:
    image, digest = imgtool(tmp_path, **options)
    assert mcuboot_hash(read_image(write_image(image)).data) == digest


def test_a_damaged_mcuboot_image_is_refused_before_a_board_gets_it(tmp_path: Path) -> None:
    image, digest = imgtool(tmp_path)
    spoiled = image.data[:5000] + bytes([image.data[5000] ^ 1]) + image.data[5001:]
    with pytest.raises(FirmwareError, match="another hash than it says"):
        write_image(replace(image, data=spoiled))
    cut = image.data[: image.data.index(digest) - 8]  # without its trailer
    for data in (cut, cut + b"\x07\x69", cut + b"\x07\x69\xff\xff" + bytes(9), cut + digest):
        with pytest.raises(FirmwareError, match="has no hash"):
            write_image(replace(image, data=data))


# ESP


def test_an_esp_takes_an_image_and_it_is_read_back() -> None:
    seen: list[tuple[int, int]] = []
    image = esp_image()
    with chip() as board:
        said = esp.flash(image, board.port, lambda *two: seen.append(two))
        assert bytes(board.flash[0x10000 : 0x10000 + len(image.data)]) == image.data
        assert board.restarts == 1
    assert "read back" in said
    assert "the board restarts" in said
    assert seen[-1] == (len(image.data), len(image.data))


@pytest.mark.parametrize(
    ("faults", "image", "sentence"),
    [
        ({"chip": 9}, esp_image(), "is for esp32c3, and this board is esp32s3"),
        ({}, esp_image(chip=9), r"built for another chip than esp32c3 \(number 9, not 5\)"),
        ({"encrypts": True}, esp_image(), "encrypts its flash memory"),
        ({}, replace(esp_image(), address=0x3FF000), "refuses it or is gone .*will not fit"),
    ],
)
def test_a_chip_that_cannot_have_an_image_is_left_as_it_is_and_restarts(
    faults: dict, image: Image, sentence: str
) -> None:
    with chip(**faults) as board:
        with pytest.raises(FirmwareError, match=f"{sentence}.*nothing was written"):
            esp.flash(image, board.port, ignore)
        assert set(board.flash) == {0xFF}
        assert board.restarts == 1


def test_a_chip_that_cannot_be_restarted_is_named_and_has_the_image() -> None:
    with chip(stays=True) as board:
        assert "is right; the board did not restart" in esp.flash(esp_image(), board.port, ignore)


def test_an_older_application_is_refused_and_another_one_is_not() -> None:
    with chip() as board:
        esp.flash(esp_image("1.3.0"), board.port, ignore)
        with pytest.raises(FirmwareError, match=r"version 1\.3\.0, and relay 1\.2\.3 is older"):
            esp.flash(esp_image("1.2.3"), board.port, ignore)
        assert board.restarts == 2
        esp.flash(esp_image("1.0.0", "sensor"), board.port, ignore)


def test_a_chip_that_goes_away_while_it_is_written_is_named_with_what_to_do() -> None:
    with chip(fails_after=0) as board:
        with pytest.raises(FirmwareError, match=r"broke off.*not whole"):
            esp.flash(esp_image(), board.port, ignore)
        assert board.restarts == 0


def test_a_chip_that_reads_back_other_bytes_is_named() -> None:
    with chip(spoils=True) as board, pytest.raises(FirmwareError, match="MD5"):
        esp.flash(esp_image(), board.port, ignore)


def test_without_a_chip_nothing_is_written() -> None:
    with pytest.raises(NoAnswer, match="nothing was written"):
        esp.flash(esp_image(), "/dev/ttyNONE", ignore)


# MCUboot


def test_a_board_takes_an_image_starts_and_confirms_it(mcuboot, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    image = mcuboot_image(tmp_path)
    said = smp.flash(image, mcuboot.port, lambda *two: seen.append(two))
    assert "confirmed" in said
    assert mcuboot.slots[0][1] == image.data
    assert mcuboot.confirmed
    assert seen[-1] == (len(image.data), len(image.data))
    rows = smp.slots(mcuboot.port)
    assert [(row.number, row.version, row.active) for row in rows] == [
        (0, (1, 2, 3), True),
        (1, (1, 2, 2), False),
    ]
    smp.flash(image, mcuboot.port, ignore)
    assert mcuboot.received == len(image.data), "the same image is not sent again"


def test_a_board_goes_back_to_its_other_image(mcuboot, tmp_path: Path) -> None:
    smp.flash(mcuboot_image(tmp_path), mcuboot.port, ignore)
    assert "runs 1.2.2" in smp.revert(mcuboot.port)
    assert smp.slots(mcuboot.port)[0].version == (1, 2, 2)
    assert mcuboot.confirmed
    mcuboot.confirmed, mcuboot.late = False, 1  # 1.2.2 on trial, and not restarted at once
    assert "runs 1.2.3" in smp.revert(mcuboot.port)
    assert smp.slots(mcuboot.port)[0].version == (1, 2, 3)
    assert mcuboot.confirmed


def test_another_image_that_fails_is_left_by_the_next_start(mcuboot, tmp_path: Path) -> None:
    smp.flash(mcuboot_image(tmp_path), mcuboot.port, ignore)
    mcuboot.hangs_after_start = True
    with pytest.raises(NoAnswer, match="switch it off and on"):
        smp.revert(mcuboot.port, restart_s=0.3)
    mcuboot.power_cycle()
    assert smp.slots(mcuboot.port)[0].version == (1, 2, 3)


@pytest.mark.parametrize("lost", [(2, 1, 0), (2, 1, 1)])
def test_a_lost_answer_is_no_dead_end(mcuboot, tmp_path: Path, lost: tuple) -> None:
    image = mcuboot_image(tmp_path)
    mcuboot.loses = {lost}
    with suppress(FirmwareError):  # the sentence says to give the command again
        smp.flash(image, mcuboot.port, ignore)
    assert not mcuboot.loses
    smp.flash(image, mcuboot.port, ignore)
    assert mcuboot.slots[0][1] == image.data
    assert mcuboot.confirmed
    assert mcuboot.received == len(image.data)


def test_a_board_that_restarts_before_it_answers_is_waited_for(mcuboot, tmp_path: Path) -> None:
    mcuboot.loses = {(2, 0, 5)}
    assert "confirmed" in smp.flash(mcuboot_image(tmp_path), mcuboot.port, ignore)


@pytest.mark.parametrize("phases", [{"late": 2}, {"recovers": 2}, {"late": 1, "recovers": 1}])
def test_what_answers_before_the_new_image_starts_is_not_taken_for_it(
    mcuboot, tmp_path: Path, phases: dict
) -> None:
    image = mcuboot_image(tmp_path)
    progress = lambda done, total: vars(mcuboot).update(phases if done == total else {})  # noqa: E731
    smp.flash(image, mcuboot.port, progress)
    assert mcuboot.slots[0][1] == image.data
    assert mcuboot.confirmed


def test_a_board_that_does_not_say_what_runs_is_left_as_it_is(mcuboot, tmp_path: Path) -> None:
    mcuboot.recovers = 1
    with pytest.raises(FirmwareError, match="does not say which firmware runs"):
        smp.flash(mcuboot_image(tmp_path), mcuboot.port, ignore)
    assert mcuboot.received == 0


def test_what_a_board_refuses_has_a_name(mcuboot, tmp_path: Path) -> None:
    mcuboot.refuses = 9
    with pytest.raises(FirmwareError, match=r"refuses the upload \(NO_FREE_SLOT\)"):
        smp.flash(mcuboot_image(tmp_path), mcuboot.port, ignore)


def test_an_upload_that_breaks_off_goes_on_from_there(mcuboot, tmp_path: Path) -> None:
    image = mcuboot_image(tmp_path)
    mcuboot.unplugged_at = 8000
    with pytest.raises(FirmwareError, match="as it was"):
        smp.flash(image, mcuboot.port, ignore)
    smp.flash(image, mcuboot.port, ignore)
    assert mcuboot.slots[0][1] == image.data
    assert mcuboot.received == len(image.data)


def test_an_image_for_another_board_or_an_older_one_is_refused(mcuboot, tmp_path: Path) -> None:
    image = mcuboot_image(tmp_path)
    with pytest.raises(FirmwareError, match="is for stm32, and this board is nrf52840dk"):
        smp.flash(replace(image, board="stm32"), mcuboot.port, ignore)
    running = mcuboot_image(tmp_path, "1.2.2+7")  # of a build, which Zephyr says as 1.2.2.7
    mcuboot.slots[0] = mcuboot_hash(running.data), running.data
    with pytest.raises(FirmwareError, match=r"1\.2\.2, and relay 1\.2\.1 is older"):
        smp.flash(mcuboot_image(tmp_path, "1.2.1"), mcuboot.port, ignore)
    assert mcuboot.received == 0


def test_an_image_that_the_bootloader_refuses_is_named(mcuboot, tmp_path: Path) -> None:
    mcuboot.accepts = False
    with pytest.raises(FirmwareError, match=r"did not start relay 1\.2\.3 and runs 1\.2\.2 again"):
        smp.flash(mcuboot_image(tmp_path), mcuboot.port, ignore)


def test_an_image_that_does_not_answer_is_left_by_the_next_start(mcuboot, tmp_path: Path) -> None:
    mcuboot.hangs_after_start = True
    with pytest.raises(NoAnswer, match=r"waiting for request\).*switch it off and on"):
        smp.flash(mcuboot_image(tmp_path), mcuboot.port, ignore, restart_s=0.3)
    mcuboot.power_cycle()
    assert smp.slots(mcuboot.port)[0].version == (1, 2, 2)


def test_a_board_without_another_image_cannot_go_back(mcuboot) -> None:
    with pytest.raises(FirmwareError, match="no other image"):
        smp.revert(mcuboot.port)


@pytest.mark.parametrize(
    "garbage", [b"\x06\x09AAAA\n", b"\x06\x09!\n", b"boot: hello\n" * 9, *packet.encode(b"short")]
)
def test_a_board_that_sends_garbage_is_a_sentence_or_understood(mcuboot, garbage: bytes) -> None:
    mcuboot.garbage = garbage
    with suppress(NoAnswer):
        assert smp.slots(mcuboot.port)[0].version == (1, 2, 2)


@pytest.mark.parametrize("body", [b"\x01", b"\xff", b"\xa1\x01\x02", b"\xa1", b"\xa0"])
def test_an_answer_that_is_none_is_a_sentence(mcuboot, body: bytes) -> None:
    mcuboot.body = body
    with pytest.raises(NoAnswer, match="no board answers SMP"):
        smp.slots(mcuboot.port)


def test_a_port_without_a_board_is_a_sentence() -> None:
    with pytest.raises(NoAnswer, match="no board answers SMP"):
        smp.slots("/dev/ttyNONE")


# UF2


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[SimpleNamespace]:
    folder = tmp_path / "drive"
    folder.mkdir()
    boards: list[Uf2Drive] = []

    def start(**options: Any) -> Uf2Drive:
        board = Uf2Drive(folder, "RPI-RP2", len(uf2_image().data), **options)
        boards.append(board)
        board.start()
        return board

    yield SimpleNamespace(folder=folder, start=start)
    for board in boards:
        board.close()


def test_a_drive_takes_an_image_and_goes_away(drive) -> None:
    board = drive.start()
    seen: list[tuple[int, int]] = []
    image = uf2_image()
    assert "restarted" in uf2.flash(image, drive.folder, lambda *two: seen.append(two))
    assert board.held == image.data
    assert [done for done, _ in seen] == [32768, 65536, len(image.data)]


def test_a_drive_that_shows_its_flash_memory_is_read_back(drive) -> None:
    drive.start(takes=False)
    (drive.folder / "CURRENT.UF2").write_bytes(uf2_image().data)
    assert "read back and is right" in uf2.flash(uf2_image(), drive.folder, ignore)


def test_a_drive_that_does_not_take_the_image_is_named(drive) -> None:
    drive.start(takes=False)
    with pytest.raises(FirmwareError, match="has not taken the image"):
        uf2.flash(uf2_image(), drive.folder, ignore, taken_s=0.2)


def test_a_drive_that_goes_away_under_its_mount_has_taken_the_image(
    drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uf2, "BLOCK_DEVICES", tmp_path)
    number = drive.folder.stat().st_dev
    device = tmp_path / f"{os.major(number)}:{os.minor(number)}"
    device.touch()
    drive.start(device=device)
    assert "restarted" in uf2.flash(uf2_image(), drive.folder, ignore, taken_s=5)


def test_another_board_and_another_folder_are_refused(drive, tmp_path: Path) -> None:
    drive.start()
    with pytest.raises(FirmwareError, match="is for RPI-RP2350, and this board is RPI-RP2"):
        uf2.flash(uf2_image("RPI-RP2350"), drive.folder, ignore)
    with pytest.raises(FirmwareError, match=r"no INFO_UF2\.TXT: hold the board's BOOT button"):
        uf2.flash(uf2_image(), tmp_path, ignore)


def test_a_copy_that_breaks_off_is_named(drive) -> None:
    drive.start()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(FirmwareError, match=r"ended after 32768 of 71680 bytes"):
            uf2.flash(uf2_image(), drive.folder, ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


# The commands


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    for host in ("host", "stranger"):
        (tmp_path / f"{host}.toml").write_text(f'state_dir = "{host}"\nmodel = "keyword"\n')
        enrol_fleet("ternmesh", tmp_path / host, {})
    return tmp_path


def ternmesh(*arguments: object) -> int:
    return main.main(["firmware", *map(str, arguments)])


def pack(folder: Path, image: Image) -> Path:
    data, out = folder / "data", folder / "image.fw"
    data.write_bytes(image.data)
    version = ".".join(map(str, image.version))
    named = "--name", image.name, "--version", version, "--board", image.board
    assert ternmesh("pack", data, *named, "--method", image.method, "--out", out) == 0
    assert read_image(out.read_bytes()) == image
    return out


def test_only_what_the_fleet_has_signed_is_written(fleet: Path, drive, capsys) -> None:
    board = drive.start()
    file, host = pack(fleet, uf2_image()), ("--config", fleet / "host.toml")
    assert ternmesh("flash", file, drive.folder, *host) == 1
    assert (
        "the owner of the fleet makes it with `ternmesh firmware sign`" in capsys.readouterr().err
    )
    assert ternmesh("sign", file, "--config", fleet / "stranger.toml") == 0
    assert ternmesh("flash", file, drive.folder, *host) == 1
    assert "not signed by this fleet" in capsys.readouterr().err
    assert ternmesh("sign", file, *host) == 0
    assert "sensor 1.0.0 is signed by host" in capsys.readouterr().out
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"sensor", b"sensoR"))
    assert ternmesh("flash", file, drive.folder, *host) == 1
    assert not board.held
    file.write_bytes(whole)
    assert ternmesh("flash", file, drive.folder, *host) == 0
    assert board.held == uf2_image().data


def test_unsigned_firmware_is_written_only_where_that_is_asked_for(
    fleet: Path, mcuboot, tmp_path: Path, capsys
) -> None:
    file = pack(fleet, mcuboot_image(tmp_path))
    assert ternmesh("flash", file, mcuboot.port, "--insecure") == 0
    assert "is not checked" in capsys.readouterr().err
    assert ternmesh("slots", mcuboot.port, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["version"] for row in rows] == ["1.2.3", "1.2.2"]
    assert ternmesh("revert", mcuboot.port) == 0
    assert ternmesh("slots", mcuboot.port) == 0
    assert "slot 0  1.2.2" in capsys.readouterr().out


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's handler of SIGINT: what runs in the background may have none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_a_write_says_what_became_of_the_board(
    fleet: Path, mcuboot, drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def interrupted(_done: int, _total: int) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(firmware_flash, "_hidden", interrupted)
    drive.start()
    with chip() as board:
        for image, target, sentence in (
            (esp_image(), board.port, "broke off (interrupted): what is on the board is not whole"),
            (uf2_image(), drive.folder, "0 of 71680 bytes (interrupted): the old"),
            (mcuboot_image(tmp_path), mcuboot.port, "interrupted: the running firmware is as it"),
        ):
            assert ternmesh("flash", pack(fleet, image), target, "--insecure") == 130
            assert sentence in capsys.readouterr().err


def test_an_esp_image_is_for_a_port_and_a_uf2_image_for_a_folder(
    fleet: Path, drive, capsys
) -> None:
    with chip() as board:
        file = pack(fleet, esp_image())
        assert ternmesh("flash", file, drive.folder, "--insecure") == 1
        assert "TARGET must be a serial port" in capsys.readouterr().err
        assert ternmesh("flash", file, board.port, "--insecure") == 0
    file = pack(fleet, uf2_image())
    assert ternmesh("flash", file, "/dev/ttyNONE", "--insecure") == 1
    assert "the folder of the board's drive" in capsys.readouterr().err


def test_wrong_options_are_sentences(fleet: Path, capsys) -> None:
    data = fleet / "data"
    data.write_bytes(uf2_image().data)
    out = "--out", fleet / "x.fw", "--board", "b", "--name", "n"
    assert ternmesh("pack", data, *out, "--version", "1.2", "--method", UF2) == 2
    assert "three numbers" in capsys.readouterr().err
    address = "--version", "1.2.3", "--method", UF2, "--address", "0x1000"
    assert ternmesh("pack", data, *out, *address) == 2
    assert ternmesh("flash", fleet / "none.fw", "/dev/ttyNONE", "--insecure") == 1
    assert "none.fw" in capsys.readouterr().err
    assert not (fleet / "x.fw").exists()
