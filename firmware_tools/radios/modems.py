"""What a modem of each dialect is asked on the bench: who it is, and its settings.

Settings are texts under the names that the modem's manual uses. They are read with the parsers of
`transports.serial_lora`.
"""

import base64
import contextlib
import random
import re
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios import ebyte_registers as registers
from firmware_tools.radios.line import Line
from ternmesh import protobuf
from ternmesh.protobuf import Value
from transports.serial_lora import meshcore, meshtastic, reyax, rnode
from transports.serial_lora.dialect import error_text
from transports.serial_lora.framing import KissUnframer, kiss_frame
from transports.serial_lora.port import PortError
from transports.serial_lora.settings import SerialLoraSettings

T = TypeVar("T")
Settings = dict[str, str]
SHORT_S = 0.6  # for an answer to a probe
FLASH_S = 3.0  # for an answer that follows a write to flash
NUMBER = r"\d{1,10}"


@dataclass(frozen=True, slots=True)
class Extras:
    """What a fleet file says for one dialect alone."""

    model: str = ""  # of an EBYTE modem
    channel: str = ""  # of Meshtastic: its name, its key in base64, and the region's code
    key: str = ""
    region: int = 0


class Modem(ABC):
    """A modem on an open line. `forms` has a pattern for the value of each setting."""

    dialect: ClassVar[str]
    reader: ClassVar[type[Any]]  # finds its messages in a stream
    bauds: ClassVar[tuple[int, ...]] = (115_200,)  # where it is looked for
    forms: ClassVar[Mapping[str, str]] = {}
    keeps: ClassVar[bool] = True  # whether it keeps its settings without power
    restart_s: ClassVar[float] = 0.0  # how long it may be away after a write

    def __init__(self, line: Line) -> None:
        self._line = line
        self._messages = self.reader()

    def reopen(self) -> None:
        """Open the port anew where the modem may have restarted; what fails is tried again."""
        if self.restart_s:
            with contextlib.suppress(PortError):  # it is not back yet
                self._line.reopen(self._line.baud)

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
    def wanted(settings: SerialLoraSettings, extras: Extras) -> Settings:
        """What the settings must be for an end of a fleet; FirmwareError."""

    @classmethod
    def check(cls, settings: Mapping[str, str]) -> None:
        """FirmwareError unless these are all settings of such a modem, in their form."""
        for name, form in cls.forms.items():
            if not re.fullmatch(form, settings.get(name, "")):
                raise FirmwareError(f"{name} is {settings.get(name)!r}, which no such modem has")
        if unknown := settings.keys() - cls.forms.keys():
            raise FirmwareError(f"{min(unknown)} is no setting of such a modem")

    def _ask(
        self,
        command: bytes,
        answer: Callable[[Any], T | None],
        what: str,
        timeout_s: float = SHORT_S,
        longest_s: float = 0.0,
    ) -> T:
        """See `Line.ask`."""
        return self._line.ask(command, self._messages.feed, answer, what, timeout_s, longest_s)

    def _refusal(self, what: str) -> FirmwareError:
        return FirmwareError(f"{self._line.path}: the modem refuses {what}")


class ReyaxProvisioner(Modem):
    dialect = "reyax"
    reader = reyax.ReyaxParser
    bauds = (115_200, 9600, 57_600, 38_400, 19_200)
    forms: ClassVar[Mapping[str, str]] = {
        "NETWORKID": NUMBER,
        "ADDRESS": NUMBER,
        "BAND": NUMBER,
        "PARAMETER": r"\d{1,2},\d,\d,\d{1,2}",
        "CRFOP": NUMBER,
        "IPR": NUMBER,  # the rate of its port: the last to be changed
    }

    def identify(self) -> str:
        self._line.write(b"\r\n")  # ends what another program may have begun
        time.sleep(0.1)
        self._command("AT", "OK")
        version, unit = self._command("AT+VER?", "VER"), self._command("AT+UID?", "UID")
        return f"REYAX {version.value} {unit.value}".strip()

    def read(self) -> Settings:
        settings = {}
        for name in self.forms:
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
                self._line.reopen(int(value))

    @staticmethod
    def wanted(settings: SerialLoraSettings, extras: Extras) -> Settings:
        del extras
        return dict(reyax.modem_settings(settings)) | {"IPR": str(settings.baud)}

    def _command(self, command: str, *names: str, timeout_s: float = SHORT_S) -> reyax.TextLine:
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
    forms: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(registers.named(bytes(registers.REGISTERS)), NUMBER),
        "others": "[0-9a-f]{4}",
    }

    def identify(self) -> str:
        self.read()
        return "EBYTE E22 in configuration mode"

    def read(self) -> Settings:
        try:
            answer = self._command(registers.READ_ALL, "C1 00 07", SHORT_S)
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
    def wanted(settings: SerialLoraSettings, extras: Extras) -> Settings:
        model = registers.MODELS[extras.model]
        if settings.baud not in registers.BAUDS:
            raise FirmwareError(f"baud_rate {settings.baud} is none of an EBYTE modem")
        return {
            "address": "65535",  # takes and sends to all, as our frames name their receivers
            "network_id": str(settings.network_id),
            "baud_rate": str(settings.baud),
            "parity": "0",
            "air_rate_bps": str(settings.air_rate_bps),
            "packet_bytes": "240",
            "power_code": str(registers.power_code(model, settings.power_dbm)),
            "channel": str(registers.channel_of(model, settings.frequency_hz)),
            "appends_rssi": "0",
            "transparent": "1",
            "repeater": "0",
        }

    def _command(self, command: bytes, what: str, timeout_s: float) -> bytes:
        """The registers after a command; empty where the modem refuses it."""
        return self._ask(command, bytes, what, timeout_s)


class RnodeProvisioner(Modem):
    dialect = "rnode"
    reader = KissUnframer
    keeps = False  # ternmesh sets it whenever it opens the port

    def identify(self) -> str:
        if self._command(rnode.RnodeCommand.DETECT, rnode.DETECT_ASK) != rnode.DETECT_ANSWER:
            raise NoAnswer(f"{self._line.path}: this is no RNode")
        return "RNode"

    def read(self) -> Settings:
        """Nothing: an RNode forgets its radio settings with its power."""
        return {}

    def write(self, changes: Mapping[str, str]) -> None:
        """Set the radio once, which shows that the modem can do it."""
        for name, value in changes.items():
            data = bytes.fromhex(value)
            if self._command(rnode.RnodeCommand[name], data) != data:
                raise self._refusal(f"{name} {value}")

    @staticmethod
    def wanted(settings: SerialLoraSettings, extras: Extras) -> Settings:
        del extras
        commands = rnode.radio_commands(settings)
        return {rnode.RnodeCommand(code).name: data.hex() for code, data in commands.items()}

    def _command(self, command: rnode.RnodeCommand, data: bytes) -> bytes:
        """What the modem repeats, or reports as an error."""

        def answer(message: tuple[int, bytes]) -> bytes | None:
            return message[1] if message[0] in (command, rnode.RnodeCommand.ERROR) else None

        return self._ask(kiss_frame(command, data), answer, command.name)


class MeshcoreProvisioner(Modem):
    dialect = "meshcore"
    reader = KissUnframer
    keeps = False  # ternmesh sets it whenever it opens the port
    forms: ClassVar[Mapping[str, str]] = {"radio": "[0-9a-f]{20}", "power": "[0-9a-f]{2}"}

    def identify(self) -> str:
        name = self._get(meshcore.GET_NAME, "GetDeviceName")
        return f"MeshCore {name.decode('utf-8', 'replace')}".strip()

    def read(self) -> Settings:
        radio = self._get(meshcore.GET_RADIO, "GetRadio")
        return {"radio": radio.hex(), "power": self._get(meshcore.GET_POWER, "GetTxPower").hex()}

    def write(self, changes: Mapping[str, str]) -> None:
        codes = {"radio": meshcore.SET_RADIO, "power": meshcore.SET_POWER}
        for name, value in changes.items():
            command = bytes([codes[name]]) + bytes.fromhex(value)
            what = f"the setting of {name}"
            code, data = self._hardware(command, (meshcore.OK, meshcore.ERROR), what, FLASH_S)
            if code != meshcore.OK:
                reason = error_text(int.from_bytes(data[:1]), meshcore.ERRORS)
                raise self._refusal(f"{name} {value}: {reason}")

    @staticmethod
    def wanted(settings: SerialLoraSettings, extras: Extras) -> Settings:
        del extras
        radio, power = meshcore.radio_bytes(settings), bytes([settings.power_dbm])
        return {"radio": radio.hex(), "power": power.hex()}

    def _get(self, code: int, what: str) -> bytes:
        return self._hardware(bytes([code]), (code | meshcore.ANSWER,), what, SHORT_S)[1]

    def _hardware(
        self, command: bytes, codes: tuple[int, ...], what: str, timeout_s: float
    ) -> tuple[int, bytes]:
        """The answer to a SetHardware command that has one of these codes, with its data."""

        def answer(message: tuple[int, bytes]) -> tuple[int, bytes] | None:
            kind, content = message
            is_answer = kind == meshcore.SET_HARDWARE and content and content[0] in codes
            return (content[0], content[1:]) if is_answer else None

        return self._ask(kiss_frame(meshcore.SET_HARDWARE, command), answer, what, timeout_s)


def as_float(mhz: float) -> int:
    """The bits of a float32."""
    return int.from_bytes(struct.pack("<f", mhz), "little")


class MeshtasticProvisioner(Modem):
    """A Meshtastic node: read by its handshake, changed by admin messages to itself.

    Floats are their bits, so that what is read is what is written. An override that would break
    the law or move the channel is a setting like any other.
    """

    dialect = "meshtastic"
    reader = meshtastic.MeshtasticUnframer
    restart_s = 30.0
    # Field numbers of LoRaConfig; fixed32 are the floats.
    numbers: ClassVar[Mapping[str, int]] = {
        "use_preset": 1,
        "bandwidth": 3,
        "spread_factor": 4,
        "coding_rate": 5,
        "region": 7,
        "hop_limit": 8,
        "tx_enabled": 9,
        "tx_power": 10,
        "channel_num": 11,
        "override_duty_cycle": 12,
    }
    floats: ClassVar[Mapping[str, int]] = {"frequency_offset": 6, "override_frequency": 14}
    forms: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys((*numbers, *floats), NUMBER),
        "channel": r"[^\0]{0,11}",
        "key": r"[A-Za-z0-9+/=]{0,44}",
    }

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._rng = random.Random()
        self._node = 0
        self._lora = self._channel = b""

    def identify(self) -> str:
        self._line.write(meshtastic.WAKE)
        time.sleep(meshtastic.WAKE_S)
        self.read()
        return f"Meshtastic node {self._node:08x}"

    def read(self) -> Settings:
        def answer(message: dict[int, Value]) -> bool | None:
            if (info := protobuf.data(message, meshtastic.FROM_MY_INFO)) is not None:
                self._node = protobuf.number(protobuf.fields(info), meshtastic.MY_NODE)
            if (config := protobuf.data(message, meshtastic.FROM_CONFIG)) is not None:
                lora = protobuf.data(protobuf.fields(config), meshtastic.CONFIG_LORA)
                self._lora = self._lora if lora is None else lora
            if (channel := protobuf.data(message, meshtastic.FROM_CHANNEL)) is not None:
                content = protobuf.fields(channel)
                if not protobuf.number(content, meshtastic.CHANNEL_INDEX):
                    self._channel = protobuf.data(content, meshtastic.CHANNEL_SETTINGS) or b""
            done = protobuf.number(message, meshtastic.FROM_COMPLETE)
            return done == meshtastic.CONFIG_ONLY or None

        request = protobuf.number_field(meshtastic.TO_WANT_CONFIG, meshtastic.CONFIG_ONLY)
        what = "the request for its configuration"
        longest_s = meshtastic.HANDSHAKE_S
        self._ask(meshtastic.frame(request), answer, what, longest_s=longest_s)
        lora, own = protobuf.fields(self._lora), protobuf.fields(self._channel)
        every = {**self.numbers, **self.floats}
        name = protobuf.data(own, meshtastic.CHANNEL_NAME) or b""
        key = protobuf.data(own, meshtastic.CHANNEL_KEY) or b""
        return {
            **{name: str(protobuf.number(lora, field)) for name, field in every.items()},
            "channel": name.decode("utf-8", "replace"),
            "key": base64.b64encode(key).decode(),
        }

    def write(self, changes: Mapping[str, str]) -> None:
        """Write all in one transaction, at whose end the node saves and restarts."""
        wanted = self.read() | dict(changes)
        lora = self._lora  # of two values of a field the later one counts
        for name, field in self.numbers.items():
            lora += protobuf.number_field(field, int(wanted[name]))
        for name, field in self.floats.items():
            lora += protobuf.fixed32_field(field, int(wanted[name]))
        key = base64.b64decode(wanted["key"], validate=True)
        own = self._channel + protobuf.bytes_field(meshtastic.CHANNEL_KEY, key)
        own += protobuf.bytes_field(meshtastic.CHANNEL_NAME, wanted["channel"].encode())
        channel = protobuf.number_field(meshtastic.CHANNEL_INDEX, 0)
        channel += protobuf.bytes_field(meshtastic.CHANNEL_SETTINGS, own)
        channel += protobuf.number_field(meshtastic.CHANNEL_ROLE, meshtastic.PRIMARY)
        config = protobuf.bytes_field(meshtastic.CONFIG_LORA, lora)
        self._admin(protobuf.number_field(meshtastic.ADMIN_BEGIN, 1))
        self._admin(protobuf.bytes_field(meshtastic.ADMIN_SET_CONFIG, config))
        self._admin(protobuf.bytes_field(meshtastic.ADMIN_SET_CHANNEL, channel))
        self._admin(protobuf.number_field(meshtastic.ADMIN_COMMIT, 1))

    @staticmethod
    def wanted(settings: SerialLoraSettings, extras: Extras) -> Settings:
        radio = settings.radio
        if settings.power_dbm == 0:
            raise FirmwareError("power_dbm = 0 means the most that there is to a Meshtastic node")
        return {
            "use_preset": "0",
            "bandwidth": str(radio.bandwidth_khz),
            "spread_factor": str(radio.spreading_factor),
            "coding_rate": str(radio.coding_rate + 4),
            "region": str(extras.region),
            "hop_limit": str(settings.hop_limit),
            "tx_enabled": "1",
            "tx_power": str(settings.power_dbm),
            "channel_num": "0",
            "override_duty_cycle": "0",
            "frequency_offset": "0",
            "override_frequency": str(as_float(settings.frequency_hz / 1e6)),
            "channel": extras.channel,
            "key": extras.key,
        }

    def _admin(self, message: bytes) -> None:
        """Send one message to the node itself, and wait until it has taken it."""
        packet_id = self._rng.randrange(1, 1 << 32)
        packet = meshtastic.packet(
            to=self._node, packet_id=packet_id, port=meshtastic.ADMIN_APP, payload=message
        )

        def answer(received: dict[int, Value]) -> int | None:
            status = protobuf.fields(protobuf.data(received, meshtastic.FROM_QUEUE) or b"")
            if protobuf.number(status, meshtastic.QUEUE_PACKET) != packet_id:
                return None
            return protobuf.number(status, meshtastic.QUEUE_RESULT)

        request = meshtastic.frame(protobuf.bytes_field(meshtastic.TO_PACKET, packet))
        what = "an admin message"
        if result := self._ask(request, answer, what, FLASH_S):
            raise self._refusal(f"{what}: {error_text(result, meshtastic.ERRORS)}")


BY_DIALECT: dict[str, type[Modem]] = {
    "rnode": RnodeProvisioner,
    "meshcore": MeshcoreProvisioner,
    "meshtastic": MeshtasticProvisioner,
    "reyax": ReyaxProvisioner,
    "ebyte": EbyteProvisioner,
}
