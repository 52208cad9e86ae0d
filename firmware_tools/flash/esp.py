"""Writes images to ESP chips over their serial port, with esptool (imported here only)."""

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.flash.image import (
    ESP_HEAD,
    Image,
    Progress,
    esp_application,
    read_version,
    refuse_older,
    refuse_other,
)
from transports.base import MissingExtra

try:
    import esptool
    from esptool.logger import TemplateLogger, log
    from esptool.util import FatalError
except ImportError as error:
    raise MissingExtra(
        "ESP chips need the package esptool: pip install 'ternmesh[flash]'"
    ) from error

BAUD, BAUD_FAST = 115_200, 460_800
AGAIN = "what is on the board is not whole any more: connect it again, and give this command again"


class _OnlyProgress(TemplateLogger):  # type: ignore[misc]
    """Reports the progress of an image, and leaves out what esptool prints."""

    progress: Progress | None = None
    size = 0

    def print(self, *args: object, **kwargs: object) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def warning(self, message: str) -> None:
        pass

    def error(self, message: str) -> None:
        pass

    def stage(self, finish: bool = False) -> None:
        pass

    def progress_bar(self, cur_iter: int, total_iters: int, *_: object, **__: object) -> None:
        if self.progress is not None and total_iters:  # esptool counts compressed bytes
            self.progress(cur_iter * self.size // total_iters, self.size)

    def set_verbosity(self, verbosity: str) -> None:
        pass


_log = _OnlyProgress()
log.set_logger(_log)  # it can be set once only


def flash(image: Image, port: str, progress: Progress) -> str:
    """Write an image; esptool reads its MD5 back. The sentence about it. FirmwareError.

    Boards with another chip and applications that are newer there are left as they are.
    """
    began = False
    _log.progress, _log.size = progress, len(image.data)
    try:
        with esptool.detect_chip(port, BAUD) as chip:
            refuse_other(image, name_of(chip.CHIP_NAME))
            stub = esptool.run_stub(chip)
            stub.change_baud(BAUD_FAST)
            esptool.attach_flash(stub)
            installed = esp_application(stub.read_flash(image.address, ESP_HEAD))
            own = esp_application(image.data)
            if installed is not None and own is not None and installed[0] == own[0]:
                refuse_older(image, read_version(installed[1]))
            began = True
            esptool.write_flash(stub, [(image.address, image.data)], compress=True)
            esptool.reset_chip(stub, "hard-reset")
    except (FatalError, OSError) as error:
        why = str(error).partition("\n")[0]
        if began:
            raise FirmwareError(f"writing to {port} broke off ({why}): {AGAIN}") from error
        raise NoAnswer(
            f"no ESP chip answers on {port} ({why}): hold BOOT, press and release RESET, and "
            "give this command again; nothing was written"
        ) from error
    return "it was read back and is right; the board restarts"


def name_of(chip: str) -> str:
    """The board of an image for a chip, ESP32-C3 say."""
    return chip.lower().replace("-", "")
