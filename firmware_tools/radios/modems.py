"""What a modem without a tool of its own is asked on the bench: who it is, and its settings.

Settings are texts under the names that the modem's manual uses. They are read with the parsers of
`transports.serial_lora`, which sets an RNode itself whenever it opens one.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios import ebyte_registers as registers
from transports.serial_lora import reyax
from transports.serial_lora.dialect import error_text
from transports.serial_lora.port import BOTH_ON, Lines, SerialPort
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import SerialLoraSettings

M = TypeVar("M")
T = TypeVar("T")

WRITE_TIMEOUT_S = 2.0
ROUND_S = 0.05  # the longest that one read waits


class Line:
    """A port that is open for us alone (other programs that lock ports keep off); PortError."""

    def __init__(self, path: str, baud: int, lines: Lines = BOTH_ON) -> None:
        self.path, self.baud = path, baud
        self._waker = Waker()
        try:
            self._port = SerialPort(path, baud, WRITE_TIMEOUT_S, self._waker, lines)
        except BaseException:
            self._waker.close()
            raise

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._port.close()
        self._waker.close()

    def set_baud(self, baud: int) -> None:
        """Go on at another rate."""
        self.baud = baud
        self._port.set_baud(baud)

    def write(self, data: bytes) -> None:
        """Write all of `data`; PortError."""
        self._port.write(data)

    def ask(
        self,
        command: bytes,
        feed: Callable[[bytes], list[M]],
        answer: Callable[[M], T | None],
        what: str,
        timeout_s: float,
    ) -> T:
        """Write a command; the first answer that is not None. NoAnswer names `what` was asked.

        `feed` finds the messages in what comes; what came before the command is no answer.
        """
        while data := self._port.read(0.0):
            feed(data)
        self._port.write(command)
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            for message in feed(self._port.read(min(ROUND_S, left))):
                if (result := answer(message)) is not None:
                    return result
        raise NoAnswer(f"{self.path}: the modem does not answer {what} at {self.baud} baud")


Settings = dict[str, str]
SHORT_S = 0.6  # for an answer to a probe
FLASH_S = 3.0  # for an answer that follows a write to flash


class Modem(ABC):
    """A modem on an open line."""

    dialect: ClassVar[str]
    reader: ClassVar[type[Any]]  # finds its messages in a stream
    bauds: ClassVar[tuple[int, ...]]  # where it is looked for

    def __init__(self, line: Line, answer_s: float = SHORT_S) -> None:
        self._line = line
        self._answer_s = answer_s  # how long an answer may take that follows no write to flash
        self._messages = self.reader()

    @abstractmethod
    def identify(self) -> str:
        """What the modem says that it is; NoAnswer where it is of another dialect."""

    @abstractmethod
    def read(self) -> Settings:
        """Its settings; NoAnswer."""

    @abstractmethod
    def write(self, changes: Mapping[str, str]) -> None:
        """Change settings; FirmwareError names the one that the modem refuses."""

    @staticmethod
    @abstractmethod
    def wanted(settings: SerialLoraSettings, model: str) -> Settings:
        """What the settings must be for an end of a fleet; FirmwareError. `model` is an EBYTE's."""

    def _ask(
        self, command: bytes, answer: Callable[[Any], T | None], what: str, timeout_s: float
    ) -> T:
        """See `Line.ask`; no `timeout_s` is below that of all answers."""
        timeout_s = max(timeout_s, self._answer_s)
        return self._line.ask(command, self._messages.feed, answer, what, timeout_s)

    def _refusal(self, what: str) -> FirmwareError:
        return FirmwareError(f"{self._line.path}: the modem refuses {what}")


class ReyaxProvisioner(Modem):
    dialect = "reyax"
    reader = reyax.ReyaxParser
    bauds = (115_200, 9600, 57_600, 38_400, 19_200)
    # IPR, the rate of its port, is the last to be changed.
    names = ("NETWORKID", "ADDRESS", "BAND", "PARAMETER", "CRFOP", "IPR")

    def identify(self) -> str:
        self._line.write(b"\r\n")  # ends what another program may have begun
        time.sleep(0.1)
        self._command("AT", "OK")
        version, unit = self._command("AT+VER?", "VER"), self._command("AT+UID?", "UID")
        return f"REYAX {version.value} {unit.value}".strip()

    def read(self) -> Settings:
        settings = {}
        for name in self.names:
            answer = self._command(f"AT+{name}?", name)
            if answer.error is not None:
                raise NoAnswer(f"{self._line.path}: the modem does not tell its {name}")
            settings[name] = answer.value
        return settings

    def write(self, changes: Mapping[str, str]) -> None:
        for name, value in changes.items():
            command = f"AT+{name}={value}"
            # Firmware before 1.2.0 does not know the M, with which the frequency is kept in flash.
            tried = [f"{command},M", command] if name == "BAND" else [command]
            for text in tried:
                answer = self._command(text, "OK", name, timeout_s=FLASH_S)
                if answer.error is None:
                    break
            else:
                reason = error_text(answer.error or 0, reyax.ERRORS)
                raise self._refusal(f"{command}: {reason}")
            if name == "IPR":
                self._line.set_baud(int(value))

    @staticmethod
    def wanted(settings: SerialLoraSettings, model: str) -> Settings:
        del model
        return dict(reyax.modem_settings(settings)) | {"IPR": str(settings.baud)}

    def _command(self, command: str, *names: str, timeout_s: float = 0.0) -> reyax.TextLine:
        """The answer with one of these names, or an error about the command."""

        def answer(message: object) -> reyax.TextLine | None:
            if not isinstance(message, reyax.TextLine) or message.error in reyax.WHILE_RECEIVING:
                return None  # a frame on the air, sound or damaged
            is_answer = message.name in names or message.error is not None
            return message if is_answer else None

        return self._ask(command.encode() + b"\r\n", answer, command, timeout_s)


class EbyteProvisioner(Modem):
    dialect = "ebyte"
    reader = registers.RegisterReader
    bauds = (9600,)  # of the configuration mode, whatever the modem has otherwise

    def identify(self) -> str:
        self.read()
        return "EBYTE E22 in configuration mode"

    def read(self) -> Settings:
        try:
            answer = self._command(registers.READ_ALL, "C1 00 07")
        except NoAnswer as error:
            raise NoAnswer(
                f"{error}; an EBYTE answers only in configuration mode: connect M1 to high and M0 "
                "to ground, and switch it on again"
            ) from error
        if not answer:
            raise self._refusal("to show its registers")
        return registers.named(answer)

    def write(self, changes: Mapping[str, str]) -> None:
        wanted = registers.packed(self.read() | dict(changes))
        if self._command(registers.WRITE_ALL + wanted, "C0 00 07", FLASH_S) != wanted:
            raise self._refusal(f"registers {wanted.hex()}")

    @staticmethod
    def wanted(settings: SerialLoraSettings, model: str) -> Settings:
        ebyte = registers.MODELS[model]
        if settings.baud not in registers.BAUDS:
            raise FirmwareError(f"baud_rate {settings.baud} is none of an EBYTE modem")
        return {
            "address": "65535",  # takes and sends to all, as our frames name their receivers
            "network_id": str(settings.network_id),
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

    def _command(self, command: bytes, what: str, timeout_s: float = 0.0) -> bytes:
        """The registers after a command; empty where the modem refuses it."""
        return self._ask(command, bytes, what, timeout_s)


BY_DIALECT: dict[str, type[Modem]] = {"reyax": ReyaxProvisioner, "ebyte": EbyteProvisioner}
