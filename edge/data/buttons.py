"""Buttons of a Linux input device (/dev/input/eventN) that label the newest sample of a source."""

import logging
import os
import struct
from collections.abc import Iterable

from edge.config import LabelConfig
from edge.data.sources import Label, Sample, label_arrays
from edge.errors import DataError
from ternmesh.model_package import ModelPackage

EVENT = struct.Struct("llHHi")  # input_event of linux/input.h: two of time, type, code, value
EV_KEY, PRESSED, EVENTS_MAX = 1, 1, 64  # the type and value of a press; events of one poll
_ROWS = {2: "1234567890", 16: "QWERTYUIOP", 30: "ASDFGHJKL", 44: "ZXCVBNM"}
# The codes of linux/input-event-codes.h that have a name here; others are given as numbers.
CODES = {f"KEY_{name}": first + i for first, row in _ROWS.items() for i, name in enumerate(row)}
CODES |= {"KEY_ENTER": 28, "KEY_SPACE": 57} | {f"BTN_{i}": 0x100 + i for i in range(10)}

_log = logging.getLogger(__name__)


class Buttons:
    """Labels the newest sample of a source where a button was pressed since the last call."""

    def __init__(self, config: LabelConfig, package: ModelPackage) -> None:
        self._config = config
        labels = config.buttons.items()
        self._targets = {_code(name): label_arrays(package, label) for name, label in labels}
        self._newest: tuple[str, float] | None = None  # no button labelled it yet
        self._device: int | None = None
        self._failure = ""

    def labels(self, items: Iterable[Sample | Label], now: float) -> list[Label]:
        """The label, if there is one, for the newest sample up to those in `items`."""
        pressed = [self._targets[code] for code in self._codes() if code in self._targets]
        for sample in (item for item in items if isinstance(item, Sample)):
            self._newest = (sample.key, now)
        if not pressed or not self._newest or now - self._newest[1] > self._config.window_s:
            return []
        key, self._newest = self._newest[0], None
        return [Label(key, pressed[-1])]

    def _codes(self) -> list[int]:
        """The codes of what was pressed since the last call; none while the device is missing."""
        data = b""
        try:
            if self._device is None:
                self._device = os.open(str(self._config.device), os.O_RDONLY | os.O_NONBLOCK)
            data = os.read(self._device, EVENTS_MAX * EVENT.size)
            self._failure = ""
        except BlockingIOError:
            pass  # nothing was pressed
        except OSError as error:
            if self._device is not None:
                os.close(self._device)
            if str(error) != self._failure:
                _log.warning("no button works (%s): check label.device", error)
            self._device, self._failure = None, str(error)
        events = EVENT.iter_unpack(data[: len(data) - len(data) % EVENT.size])
        return [code for _, _, kind, code, value in events if (kind, value) == (EV_KEY, PRESSED)]


def _code(name: str) -> int:
    if name in CODES or name.isdecimal():
        return CODES.get(name) or int(name)
    raise DataError(f"buttons has {name!r}: write its code as a number, or {', '.join(CODES)}")
