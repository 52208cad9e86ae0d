"""Writes images to ESP chips over their serial port, with esptool (imported here only)."""

import termios
from typing import Any

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.flash.image import (
    ESP_HEAD,
    Image,
    Progress,
    esp_application,
    read_version,
    reason,
    refuse_older,
    refuse_other,
)
from transports.base import MissingExtra

try:
    import esptool
    from esptool.logger import TemplateLogger, log
    from esptool.util import FatalError, strip_chip_name
except ImportError as error:
    raise MissingExtra(
        "ESP chips need the package esptool: pip install 'ternmesh[flash]'"
    ) from error

BAUD, BAUD_FAST = 115_200, 460_800
AGAIN = "what is on the board is not whole any more: connect it again, and give this command again"
_FAULTS = (FatalError, OSError, termios.error)


class _OnlyProgress(TemplateLogger):  # type: ignore[misc]
    """Reports the progress of an image, and leaves out what esptool prints."""

    progress: Progress | None = None  # while an image is written
    size = 0
    is_writing = False  # from the erasing on

    def print(self, *args: object, **kwargs: object) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def warning(self, message: str) -> None:
        pass

    def error(self, message: str) -> None:
        pass

    def stage(self, **_: object) -> None:
        # esptool calls it once its own checks are over, but also before it loads the flasher
        self.is_writing = self.progress is not None

    def progress_bar(self, cur_iter: int, total_iters: int, *_: object, **__: object) -> None:
        if self.progress is not None and total_iters:  # esptool counts compressed bytes
            self.progress(cur_iter * self.size // total_iters, self.size)

    def set_verbosity(self, verbosity: str) -> None:
        pass


_log = _OnlyProgress()
log.set_logger(_log)  # it can be set once only


def flash(image: Image, port: str, progress: Progress) -> str:
    """Write an image; esptool reads its MD5 back. The sentence about it. FirmwareError.

    Other and encrypted chips, and newer applications, are left as they are, and started again.
    """
    _log.progress, _log.size, _log.is_writing = None, len(image.data), False
    try:
        chip = esptool.detect_chip(port, BAUD)
    except _FAULTS as error:
        raise NoAnswer(
            f"no ESP chip answers on {port} ({reason(error)}): hold BOOT, press and release RESET, "
            "and give this command again; nothing was written"
        ) from error
    with chip:
        try:
            _refuse_chip(image, chip)
            chip = esptool.run_stub(chip)
            chip.change_baud(BAUD_FAST)
            esptool.attach_flash(chip)
            installed = esp_application(chip.read_flash(image.address, ESP_HEAD))
            own = esp_application(image.data)
            if installed is not None and own is not None and installed[0] == own[0]:
                refuse_older(image, read_version(installed[1]))
            _log.progress = progress
            esptool.write_flash(chip, [(image.address, image.data)])
            _log.is_writing = False
        except (*_FAULTS, KeyboardInterrupt) as error:
            if _log.is_writing:
                why = f"writing to {port} broke off ({reason(error)}): {AGAIN}"
                raise FirmwareError(why) from error
            if isinstance(error, KeyboardInterrupt):
                raise
            raise FirmwareError(
                f"the chip on {port} refuses it or is gone ({reason(error)}): nothing was written"
            ) from error
        finally:
            restarts = not _log.is_writing and _restart(chip)
    return "it was read back and is right; " + (
        "the board restarts" if restarts else "the board did not restart: press its RESET"
    )


def _refuse_chip(image: Image, chip: Any) -> None:
    """FirmwareError where the image could not run on a chip."""
    refuse_other(image, strip_chip_name(chip.CHIP_NAME))
    built_for = int.from_bytes(image.data[12:14], "little")  # esp_image_header_t
    if chip.IMAGE_CHIP_ID not in (None, built_for):  # an ESP8266 has none
        raise FirmwareError(
            f"the data of {image.label} is built for another chip than {image.board} (number "
            f"{built_for}, not {chip.IMAGE_CHIP_ID}): nothing was written"
        )
    if chip.get_flash_encryption_enabled():
        raise FirmwareError(
            "this chip encrypts its flash memory and would not start the image: nothing was "
            "written; update it over the air, or with the tools of its maker"
        )


def _restart(chip: Any) -> bool:
    """Whether the chip was restarted."""
    try:
        esptool.reset_chip(chip, "hard-reset")
    except _FAULTS:
        return False
    return True
