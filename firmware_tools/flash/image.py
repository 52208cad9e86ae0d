"""A firmware image in one file: what it is, for which board, and how it is written there.

The file is a canonical CBOR array `[tag, name, version, board, method, address, data]`. The fleet's
signature lies beside it, over the SHA-256 of the whole file, as with an upgrade.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Iterator
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
# A board may report a build number as well, as Zephyr does
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,5})(?:\.\d{1,10})?\Z")
# UF2: two magic numbers, flags, address, bytes, number of the block, blocks, family; one at the end
_UF2 = struct.Struct("<8I476sI")
_UF2_MAGIC = (0x0A324655, 0x9E5D5157, 0x0AB16F30)
_NOT_MAIN_FLASH = 1
# ESP32 (esp_app_desc_t), behind two headers: magic number, 12 bytes, version, project
_ESP_MAGIC, _ESP_APP = 0xE9, struct.Struct("<I12x32s32s")
_ESP_APP_MAGIC, _ESP_APP_AT = 0xABCD5432, 0x20
ESP_HEAD = _ESP_APP_AT + _ESP_APP.size  # bytes that name an application
# MCUboot: magic number, load address, header, protected, size, flags, version (image_header)
_MCUBOOT, _MCUBOOT_MAGIC = struct.Struct("<IIHHIIBBHI"), 0x96F3B83D
_ENCRYPTED = 0x04 | 0x08
# Behind it, a trailer: magic number and bytes in all; then fields of kind, bytes, content
_TRAILER, _TRAILER_MAGIC = struct.Struct("<HH"), 0x6907
_HASHES = {0x10: hashlib.sha256, 0x11: hashlib.sha384, 0x12: hashlib.sha512}

Version = tuple[int, int, int]
Progress = Callable[[int, int], None]  # bytes so far, and of all


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
    """A version as text."""
    return ".".join(map(str, version))


def read_version(text: str) -> Version | None:
    """The version in a text like 1.2.3; None for another text.

    A fourth number, and an appendix of + or -, are ignored.
    """
    found = _VERSION.match(re.split(r"[+-]", text.removeprefix("v"))[0])
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def write_image(image: Image) -> bytes:
    """The bytes of an image's file; FirmwareError where the data is not what it should be."""
    check(image)
    fields = [TAG, image.name, text_of(image.version), image.board, image.method, image.address]
    whole: bytes = cbor2.dumps([*fields, image.data], canonical=True)
    return whole


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
    if image.method == ESP:
        _require(
            image.data[0] == _ESP_MAGIC, "the data is no image for an ESP: it begins with 0xE9"
        )
        said = esp_application(image.data)
        _require(
            said is None or read_version(said[1]) in (None, image.version),
            f"the data says that it is version {said and said[1]}",
        )
    elif image.method == UF2:
        list(uf2_blocks(image.data))
    else:
        said_version = _mcuboot_version(image.data)
        _require(
            said_version is not None, "the data has no header of MCUboot: sign it with imgtool"
        )
        _require(
            said_version == image.version,
            f"the data says that it is version {said_version and text_of(said_version)}",
        )
        mcuboot_hash(image.data)


def esp_application(data: bytes) -> tuple[str, str] | None:
    """Project and version of an application for an ESP; None where there is no description."""
    if len(data) < ESP_HEAD or data[0] != _ESP_MAGIC:
        return None
    magic, version, project = _ESP_APP.unpack_from(data, _ESP_APP_AT)
    if magic != _ESP_APP_MAGIC:
        return None
    first, second = (
        field.partition(b"\0")[0].decode(errors="replace") for field in (project, version)
    )
    return first, second


def uf2_blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Address and payload of each block for the main flash; FirmwareError for damaged blocks."""
    _require(len(data) % _UF2.size == 0, "a UF2 file consists of blocks of 512 bytes")
    for number, at in enumerate(range(0, len(data), _UF2.size)):  # each family counts its own
        first, second, flags, address, size, own, count, _, payload, end = _UF2.unpack_from(
            data, at
        )
        whole = (first, second, end) == _UF2_MAGIC and size <= len(payload)
        _require(whole and own < count, f"block {number} of the UF2 file is damaged")
        if not flags & _NOT_MAIN_FLASH:
            yield address, payload[:size]


def _mcuboot_version(data: bytes) -> Version | None:
    if len(data) < _MCUBOOT.size:
        return None
    magic, _, _, _, _, _, *version, _ = _MCUBOOT.unpack_from(data)
    return (version[0], version[1], version[2]) if magic == _MCUBOOT_MAGIC else None


def mcuboot_hash(data: bytes) -> bytes:
    """The hash by which MCUboot names an image: of header, body and protected part.

    FirmwareError where its trailer has none, or another one than the image.
    """
    _, _, header, protected, size, flags, *_ = _MCUBOOT.unpack_from(data)
    end = header + size + protected
    for kind, said in _mcuboot_fields(data[end:]):
        if kind in _HASHES:
            made = _HASHES[kind](data[:end]).digest()
            # That of an encrypted image is of what only the board can decrypt.
            matches = said == made or (flags & _ENCRYPTED and len(said) == len(made))
            _require(bool(matches), "the data is damaged: it has another hash than it says")
            return said
    raise FirmwareError("this firmware image is refused: it has no hash: sign it with imgtool")


def _mcuboot_fields(trailer: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and content of the fields of a trailer; none where it is no trailer."""
    magic, total = _TRAILER.unpack(trailer[: _TRAILER.size].ljust(_TRAILER.size, b"\0"))
    at = _TRAILER.size
    while magic == _TRAILER_MAGIC and at + _TRAILER.size <= min(total, len(trailer)):
        kind, size = _TRAILER.unpack_from(trailer, at)
        at += _TRAILER.size + size
        yield kind, trailer[at - size : at]


def refuse_older(image: Image, installed: Version | None) -> None:
    """FirmwareError for an image below what a board has."""
    if installed is not None and image.version < installed:
        raise FirmwareError(
            f"the board has version {text_of(installed)}, and {image.label} is older: nothing was "
            "written"
        )


def refuse_other(image: Image, board: str) -> None:
    """FirmwareError where the board that is connected is not the one of the image."""
    if board != image.board:
        raise FirmwareError(
            f"{image.label} is for {image.board}, and this board is {board}: nothing was written"
        )


def reason(error: BaseException) -> str:
    """What an error says, in one line and without the request that smpclient adds."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.split(r"\n| header=", str(text).strip())[0]


def _require(holds: bool, else_it: str) -> None:
    if not holds:
        raise FirmwareError(f"this firmware image is refused: {else_it}")
