"""An EBYTE modem on the bench, in configuration mode: its settings are read and written.

Settings are texts under the names in `ebyte_registers`.
"""

import time
from collections.abc import Mapping

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios import ebyte_registers as registers
from transports.serial_lora.port import BOTH_ON, Lines, SerialPort
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import SerialLoraSettings

Settings = dict[str, str]
BAUD = 9600  # of the configuration mode, whatever the modem has otherwise
WRITE_TIMEOUT_S = 2.0
ROUND_S = 0.05  # the longest that one read waits
ANSWER_S, FLASH_S = 2.0, 3.0  # for an answer; the latter for one that follows a write to flash


class EbyteProvisioner:
    """Its port is open for us alone (other programs that lock ports keep off); PortError."""

    def __init__(self, path: str, lines: Lines = BOTH_ON) -> None:
        self._path = path
        self._reader = registers.RegisterReader()
        self._waker = Waker()
        try:
            self._port = SerialPort(path, BAUD, WRITE_TIMEOUT_S, self._waker, lines)
        except BaseException:
            self._waker.close()
            raise

    def __enter__(self) -> "EbyteProvisioner":
        return self

    def __exit__(self, *_: object) -> None:
        self._port.close()
        self._waker.close()

    def read(self) -> Settings:
        """Its settings; NoAnswer where there is no such modem."""
        answer = self._ask(registers.READ_ALL, "C1 00 07", ANSWER_S)
        if not answer:
            raise self._refusal("to show its registers")
        return registers.named(answer)

    def write(self, changes: Mapping[str, str]) -> None:
        """Change settings; FirmwareError where the modem refuses them."""
        wanted = registers.packed(self.read() | dict(changes))
        if self._ask(registers.WRITE_ALL + wanted, "C0 00 07", FLASH_S) != wanted:
            raise self._refusal(f"registers {wanted.hex()}")

    def _ask(self, command: bytes, what: str, timeout_s: float) -> bytes:
        """The registers after a command; empty where the modem refuses it."""
        while data := self._port.read(0.0):
            self._reader.feed(data)  # what came before the command is no answer
        self._port.write(command)
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            for answer in self._reader.feed(self._port.read(min(ROUND_S, left))):
                return answer
        raise NoAnswer(
            f"{self._path}: no EBYTE modem answers {what} at {BAUD} baud: check its power and "
            "wires; it answers only in configuration mode: connect M1 to high and M0 to ground, "
            "and switch it on again"
        )

    def _refusal(self, what: str) -> FirmwareError:
        return FirmwareError(f"{self._path}: the modem refuses {what}")


def wanted_settings(settings: SerialLoraSettings, model: str) -> Settings:
    """What the settings must be for an end of a fleet; FirmwareError."""
    ebyte = registers.MODELS[model]
    if settings.baud not in registers.BAUDS:
        raise FirmwareError(f"baud_rate {settings.baud} is none of an EBYTE modem")
    return {
        "address": "65535",  # takes and sends to all, as our frames name their receivers
        "network_id": str(registers.NETWORK_ID),
        "baud_rate": str(settings.baud),
        "parity": "0",
        "air_rate_bps": str(settings.air_rate_bps),
        "packet_bytes": str(settings.packet_bytes),
        "power_code": str(registers.power_code(ebyte, settings.power_dbm)),
        "channel": str(registers.channel_of(ebyte, settings.frequency_hz)),
        "appends_rssi": "0",
        "transparent": "1",
        "repeater": "0",
    }
