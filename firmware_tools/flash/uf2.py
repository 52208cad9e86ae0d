"""Copies UF2 images onto the drive that a board in its bootloader shows."""

import os
import time
from pathlib import Path

from firmware_tools.errors import FirmwareError
from firmware_tools.flash.image import Image, Progress, reason, refuse_other, uf2_blocks

INFO, CURRENT = "INFO_UF2.TXT", "CURRENT.UF2"
INFO_MAX, CURRENT_MAX = 4096, 1 << 26  # bytes
STEP = 64 * 512  # bytes between two looks at the progress
TAKEN_S, LOOK_S = 10.0, 0.1
BLOCK_DEVICES = Path("/sys/dev/block")  # of Linux, those that are connected


def board_of(drive: Path) -> str:
    """The Board-ID of the drive of a bootloader; FirmwareError."""
    try:
        with (drive / INFO).open("rb") as file:
            text = file.read(INFO_MAX).decode(errors="replace")
    except OSError as error:
        raise FirmwareError(
            f"{drive} has no {INFO}: hold the board's BOOT button while you plug it in, and give "
            "the folder where its drive is mounted"
        ) from error
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Board-ID":
            return value.strip()
    raise FirmwareError(f"{drive / INFO} names no Board-ID: is this the drive of a bootloader?")


def flash(image: Image, drive: Path, progress: Progress, *, taken_s: float = TAKEN_S) -> str:
    """Copy an image; the sentence that says how far that is proof. FirmwareError.

    A bootloader restarts once it has all blocks, so its drive goes away.
    """
    refuse_other(image, board_of(drive))
    target = drive / f"{image.name}.uf2"
    device = _device_of(drive)
    sent = 0
    try:
        with target.open("wb") as file:
            for at in range(0, len(image.data), STEP):
                sent = at
                file.write(image.data[at : at + STEP])
                file.flush()
                os.fsync(file.fileno())
                progress(min(at + STEP, len(image.data)), len(image.data))
    except (OSError, KeyboardInterrupt) as error:
        # The last blocks may be enough for the board to restart before the copy is closed.
        has_gone = sent + STEP >= len(image.data) and not _is_there(drive / INFO, device)
        if not has_gone or isinstance(error, KeyboardInterrupt):
            raise FirmwareError(
                f"the copy to {drive} ended after {sent} of {len(image.data)} bytes "
                f"({reason(error)}): the old firmware is not whole any more; enter the bootloader "
                "again with the BOOT button, and give this command again"
            ) from error
    end = time.monotonic() + taken_s
    while _is_there(target, device) and time.monotonic() < end:
        if _holds(drive, image):
            return "it was read back and is right; the board has not restarted yet"
        time.sleep(LOOK_S)
    if _is_there(target, device):
        raise FirmwareError(
            f"the board has not taken the image within {taken_s:g} s: see whether it is for this "
            "board, enter the bootloader again, and give this command again"
        )
    return "the board took it and restarted; such a board cannot be read back"


def _device_of(drive: Path) -> Path | None:
    """What Linux shows as long as the device of a drive is connected; None elsewhere."""
    number = drive.stat().st_dev
    device = BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}"
    return device if device.exists() else None


def _is_there(path: Path, device: Path | None) -> bool:
    """Whether a file is there; a pulled drive may answer with any error, or from a cache."""
    try:
        path.stat()
    except OSError:
        return False
    return device is None or device.exists()


def _holds(drive: Path, image: Image) -> bool:
    """Whether the drive shows flash memory that has all of the image."""
    try:
        with (drive / CURRENT).open("rb") as file:
            held = dict(uf2_blocks(file.read(CURRENT_MAX)))
    except (OSError, FirmwareError):  # not all bootloaders have it
        return False
    return all(held.get(address) == payload for address, payload in uf2_blocks(image.data))
