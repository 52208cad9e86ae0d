"""A firmware image in one file: what it is, for which board, and how it is written there.

The file is a canonical CBOR array `[tag, name, version, board, method, address, data]`. The fleet's
signature lies beside it, over the SHA-256 of the whole file, as with an upgrade.
"""

import re
import struct
from dataclasses import dataclass
from typing import Final

import cbor2

from firmware_tools.errors import FirmwareError
from ternmesh.errors import WireError
from ternmesh.wire.control import NAME, read_cbor

TAG: Final = "ternmesh firmware 1"
IMAGE_MAX: Final = 1 << 25  # bytes
ESP, UF2, SMP = "esp", "uf2", "smp"
METHODS: Final = (ESP, UF2, SMP)
BOARD: Final = re.compile(r"[A-Za-z0-9_./@+-]{1,64}\Z")
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,5})\Z")
# UF2: blocks of 512 bytes with two magic numbers at their begin and one at their end
_UF2_BLOCK, _UF2_MAGIC = struct.Struct("<2I500xI"), (0x0A324655, 0x9E5D5157, 0x0AB16F30)
# ESP32 (esp_app_desc_t), behind two headers: magic number, 12 bytes, version
_ESP_MAGIC, _ESP_APP = 0xE9, struct.Struct("<I12x32s")
_ESP_APP_MAGIC, _ESP_APP_AT = 0xABCD5432, 0x20
# MCUboot (image_header): magic number, 16 bytes, version
_MCUBOOT, _MCUBOOT_MAGIC = struct.Struct("<I16xBBH"), 0x96F3B83D

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Image:
    """Firmware for one kind of board."""

    name: str
    version: Version
    board: str  # esptool's name of a chip, Board-ID of a UF2 drive, or Zephyr's board
    method: str
    address: int  # of an ESP image; else 0
    data: bytes

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {text_of(self.version)}"


def text_of(version: Version) -> str:
    return ".".join(map(str, version))


def read_version(text: str) -> Version | None:
    """The version in a text like 1.2.3; None for another text."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def write_image(image: Image) -> bytes:
    """The bytes of an image's file; FirmwareError where the data is not what it should be."""
    check(image)
    fields = [TAG, image.name, text_of(image.version), image.board, image.method, image.address]
    return cbor2.dumps([*fields, image.data], canonical=True)


def read_image(data: bytes) -> Image:
    """The image in a file; FirmwareError."""
    try:
        fields = read_cbor(data) if len(data) <= IMAGE_MAX + 1024 else ()
    except WireError as error:
        raise FirmwareError(f"this is not a firmware image: {error}") from error
    match fields:
        case (tag, str(name), str(text), str(board), str(method), int(address), bytes(content)):
            version = read_version(text)
            if tag == TAG and version is not None and text_of(version) == text:
                image = Image(name, version, board, method, address, content)
                check(image)
                return image
    raise FirmwareError("this is not a firmware image: make one with `ternmesh firmware pack`")


def check(image: Image) -> None:
    """FirmwareError for an image that no board could take."""
    _require(NAME.match(image.name) is not None, "the name has 1 to 32 of A-Z a-z 0-9 _ . -")
    _require(BOARD.match(image.board) is not None, "the board has 1 to 64 letters without spaces")
    _require(image.method in METHODS, f"the method must be one of {', '.join(METHODS)}")
    _require(0 < len(image.data) <= IMAGE_MAX, f"an image has 1 to {IMAGE_MAX} bytes")
    _require(image.method == ESP or image.address == 0, f"{image.method} has no address")
    _require(image.address % 0x1000 == 0, "the address must be a multiple of 0x1000")
    _require(0 <= image.address < 1 << 28, "the address must be below 0x10000000")
    said: str | None = None
    if image.method == ESP:
        _require(
            image.data[0] == _ESP_MAGIC, "the data is no image for an ESP: it begins with 0xE9"
        )
        said = _esp_version(image.data)
    elif image.method == UF2:
        _require(_is_uf2(image.data), "the data is no UF2 file, or damaged")
    else:
        said = _mcuboot_version(image.data)
        _require(said is not None, "the data has no header of MCUboot: sign it with imgtool")
    is_other = said is not None and read_version(said) not in (None, image.version)
    _require(not is_other, f"the data says that it is version {said}")


def _esp_version(data: bytes) -> str | None:
    """What an application for an ESP says of itself; None where it says nothing."""
    if len(data) < _ESP_APP_AT + _ESP_APP.size:
        return None
    magic, version = _ESP_APP.unpack_from(data, _ESP_APP_AT)
    text: str = version.partition(b"\0")[0].decode(errors="replace")
    return re.split(r"[+-]", text.removeprefix("v"))[0] if magic == _ESP_APP_MAGIC else None


def _is_uf2(data: bytes) -> bool:
    is_whole = len(data) % _UF2_BLOCK.size == 0
    return is_whole and all(magic == _UF2_MAGIC for magic in _UF2_BLOCK.iter_unpack(data))


def _mcuboot_version(data: bytes) -> str | None:
    if len(data) < _MCUBOOT.size:
        return None
    magic, *version = _MCUBOOT.unpack_from(data)
    return ".".join(map(str, version)) if magic == _MCUBOOT_MAGIC else None


def _require(holds: bool, else_it: str) -> None:
    if not holds:
        raise FirmwareError(f"this firmware image is refused: {else_it}")
