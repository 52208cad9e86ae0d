"""Firmware is packed into a file, signed, checked and taken out again."""

import hashlib
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_tools.errors import FirmwareError
from firmware_tools.image import ESP, SMP, UF2, Image, read_image, read_version, write_image
from ternmesh_cli import main
from ternmesh_cli.keys import enrol_fleet

SIZE = 20_000
UF2_MAGIC = 0x0A324655, 0x9E5D5157, 0x0AB16F30


def numbers(version: str) -> tuple[int, int, int]:
    found = read_version(version)
    assert found is not None
    return found


def noise(size: int, seed: int = 1) -> bytes:
    return hashlib.shake_128(bytes([seed])).digest(size)


def esp_image(version: str = "1.2.3") -> Image:
    about = struct.pack("<II8s32s32s", 0xABCD5432, 0, b"", version.encode(), b"relay")
    body = struct.pack("<B31s", 0xE9, b"") + about + noise(SIZE)
    return Image("relay", numbers("1.2.3"), "esp32c3", ESP, 0x10000, body)


def uf2_image(board: str = "RPI-RP2", blocks: int = 140) -> Image:
    data = b"".join(
        struct.pack(
            "<8I476sI", *UF2_MAGIC[:2], 0x2000, 0x10000000 + 256 * n, 256, n, blocks, 0xE48BFF56,
            noise(256, n % 250), UF2_MAGIC[2],
        )
        for n in range(blocks)
    )  # fmt: skip
    return Image("sensor", (1, 0, 0), board, UF2, 0, data)


def mcuboot_image(version: tuple[int, int, int] = (1, 2, 3)) -> Image:
    head = struct.pack("<IIHHIIBBHI", 0x96F3B83D, 0, 0x200, 0, SIZE, 0, *version, 7)
    return Image("relay", version, "nrf52840dk", SMP, 0, head.ljust(0x200, b"\0") + noise(SIZE))


# The file


def test_an_image_returns_from_its_file() -> None:
    for image in (esp_image(), esp_image("v1.2.3-dirty"), uf2_image(), mcuboot_image()):
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
        (
            {"version": (2, 0, 0), "method": SMP, "address": 0, "data": mcuboot_image().data},
            "1.2.3",
        ),
        ({"method": SMP, "address": 0}, "no header of MCUboot"),
        ({"method": UF2, "address": 0}, "no UF2 file, or damaged"),
    ],
)
def test_what_no_board_could_take_is_refused(change: dict, sentence: str) -> None:
    with pytest.raises(FirmwareError, match=sentence):
        write_image(replace(esp_image(), **change))


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


def test_only_what_the_fleet_has_signed_is_taken_out(fleet: Path, capsys) -> None:
    file, host = pack(fleet, uf2_image()), ("--config", fleet / "host.toml")
    out = fleet / "checked.uf2"
    take = "unpack", file, "--out", out, *host
    assert ternmesh(*take) == 1
    sign = "the owner of the fleet makes it with `ternmesh firmware sign --config"
    assert sign in capsys.readouterr().err
    assert ternmesh("sign", file, "--config", fleet / "stranger.toml") == 0
    assert ternmesh(*take) == 1
    assert "not signed by this fleet" in capsys.readouterr().err
    assert ternmesh("sign", file, *host) == 0
    assert "sensor 1.0.0 is signed by host" in capsys.readouterr().out
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"sensor", b"sensoR"))
    assert ternmesh(*take) == 1
    assert not out.exists()
    file.write_bytes(whole)
    assert ternmesh(*take) == 0
    assert out.read_bytes() == uf2_image().data


@pytest.mark.parametrize(
    ("image", "command"),
    [
        (esp_image(), "esptool --chip esp32c3 --port PORT write-flash 0x10000 "),
        (uf2_image(), "cp "),
        (mcuboot_image(), "smpmgr --port PORT upgrade --slot 1 "),
    ],
)
def test_unsigned_firmware_only_where_that_is_asked_for_and_how_to_flash_it(
    fleet: Path, image: Image, command: str, capsys
) -> None:
    file = pack(fleet, image)
    assert ternmesh("unpack", file, "--out", fleet / "x", "--insecure") == 0
    said = capsys.readouterr()
    assert "is not checked" in said.err
    assert f"\n  {command}{fleet / 'x'}" in said.out


def test_wrong_options_are_sentences(fleet: Path, capsys) -> None:
    data = fleet / "data"
    data.write_bytes(uf2_image().data)
    out = "--out", fleet / "x.fw", "--board", "b", "--name", "n"
    assert ternmesh("pack", data, *out, "--version", "1.2", "--method", UF2) == 2
    assert "three numbers" in capsys.readouterr().err
    address = "--version", "1.2.3", "--method", UF2, "--address", "0x1000"
    assert ternmesh("pack", data, *out, *address) == 2
    assert ternmesh("unpack", fleet / "none.fw", *out[:2], "--insecure") == 1
    assert "none.fw" in capsys.readouterr().err
    assert not (fleet / "x.fw").exists()
