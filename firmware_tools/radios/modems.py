"""What a modem of each dialect is asked on the bench: who it is, and its settings.

Settings are texts under the names that the modem's manual uses. They are read with the parsers of
`transports.serial_lora`.
"""

import base64
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios.ebyte_registers import (
    REGISTERS,
    RegisterReader,
    channel_of,
    named,
    packed,
    read_command,
    write_command,
)
from firmware_tools.radios.line import Line
from ternmesh import protobuf
from ternmesh.protobuf import Value
from transports.serial_lora import meshcore, meshtastic
from transports.serial_lora.dialect import error_text
from transports.serial_lora.framing import KissUnframer, kiss_frame
from transports.serial_lora.reyax import ERRORS, FILLER, ReyaxParser, TextLine, modem_settings
from transports.serial_lora.rnode import DETECT_ANSWER, DETECT_ASK, RnodeCommand, radio_commands
from transports.serial_lora.settings import SerialLoraSettings

Settings = dict[str, str]
SHORT_S = 0.6  # for an answer to a probe
FLASH_S = 3.0  # for an answer that follows a write to flash


@dataclass(frozen=True, slots=True)
class Channel:
    """The channel of a Meshtastic fleet: its name, its key in base64, and the region's code."""

    name: str = ""
    key: str = ""
    region: int = 0


class Modem(ABC):
    """A modem on an open line."""

    dialect: ClassVar[str]
    bauds: ClassVar[tuple[int, ...]] = (115_200,)  # where it is looked for
    keeps: ClassVar[bool] = True  # whether it keeps its settings without power
    settles_s: ClassVar[float] = 0.0  # after a write, until it can be read again

    def __init__(self, line: Line) -> None:
        self._line = line

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
    def wanted(settings: SerialLoraSettings, channel: Channel) -> Settings:
        """What the settings must be for an end of a fleet."""


class Reyax(Modem):
    dialect = "reyax"
    bauds = (115_200, 9600, 57_600, 38_400, 19_200)
    names = ("NETWORKID", "ADDRESS", "BAND", "PARAMETER", "CRFOP")

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._parser = ReyaxParser()

    def identify(self) -> str:
        self._line.write(b"\r\n")  # ends what another program may have begun
        self._line.messages(self._parser, 0.1)
        try:
            self._ask("AT", SHORT_S)
        except NoAnswer:
            self._line.write(FILLER)
            self._line.messages(self._parser, 0.1)
            self._ask("AT", SHORT_S)
        version = self._ask("AT+VER?", SHORT_S)
        return f"REYAX {version.value}" if version.name == "VER" else "REYAX"

    def read(self) -> Settings:
        return {name: self._value(name) for name in self.names}

    def write(self, changes: Mapping[str, str]) -> None:
        for name, value in changes.items():
            answer = self._ask(f"AT+{name}={value}", FLASH_S)
            if answer.error is not None:
                reason = error_text(answer.error, ERRORS)
                raise FirmwareError(
                    f"{self._line.path}: the modem refuses AT+{name}={value}: {reason}"
                )

    @staticmethod
    def wanted(settings: SerialLoraSettings, channel: Channel) -> Settings:
        del channel
        return dict(modem_settings(settings))

    def _value(self, name: str) -> str:
        answer = self._ask(f"AT+{name}?", SHORT_S)
        if answer.name != name:
            raise NoAnswer(f"{self._line.path}: the modem does not tell its {name}")
        return answer.value

    def _ask(self, command: str, timeout_s: float) -> TextLine:
        def answer(message: object) -> TextLine | None:
            is_answer = isinstance(message, TextLine) and message.name != "READY"
            return message if is_answer and isinstance(message, TextLine) else None

        written = command.encode() + b"\r\n"
        return self._line.ask(written, self._parser, answer, command, timeout_s)


class Ebyte(Modem):
    dialect = "ebyte"
    bauds = (9600,)  # of the configuration mode, whatever the modem has otherwise

    def identify(self) -> str:
        self.read()
        return "EBYTE E22 in configuration mode"

    def read(self) -> Settings:
        try:
            answer = self._line.ask(
                read_command(), RegisterReader(), lambda found: found, "C1 00 07", SHORT_S
            )
        except NoAnswer as error:
            raise NoAnswer(
                f"{error}; an EBYTE answers only in configuration mode: connect M1 to high and M0 "
                "to ground (E32: both high), and switch it on again"
            ) from error
        if len(answer) != REGISTERS:
            raise FirmwareError(f"{self._line.path}: the modem refuses to show its registers")
        return named(answer)

    def write(self, changes: Mapping[str, str]) -> None:
        registers = packed(self.read() | dict(changes))
        answer = self._line.ask(
            write_command(registers), RegisterReader(), lambda found: found, "C0 00 07", FLASH_S
        )
        if answer != registers:
            raise FirmwareError(f"{self._line.path}: the modem refuses registers {registers.hex()}")

    @staticmethod
    def wanted(settings: SerialLoraSettings, channel: Channel) -> Settings:
        del channel
        return {
            "address": "65535",  # takes and sends to all, as our frames name their receivers
            "network_id": str(settings.network_id),
            "baud_rate": str(settings.baud),
            "air_rate_bps": str(settings.air_rate_bps),
            "packet_bytes": "240",
            "power": _ebyte_power(settings.power_dbm),
            "channel": str(channel_of(settings.frequency_hz)),
            "transparent": "1",
            "appends_rssi": "0",
        }


def _ebyte_power(power_dbm: int) -> str:
    """The strongest step of an E22 of 22 dBm that is not above `power_dbm`."""
    steps = (22, 17, 13, 10)
    return str(next((step for step in steps if step <= power_dbm), steps[-1]))


class Kiss(Modem):
    """What RNodes and MeshCore modems have in common."""

    keeps = False  # ternmesh sets them whenever it opens the port

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._unframer = KissUnframer()

    def _ask(self, command: int, data: bytes, is_answer: Mapping[int, int], what: str) -> bytes:
        """The data of an answer; `is_answer` has the first bytes that its command must have."""

        def answer(message: tuple[int, bytes]) -> bytes | None:
            kind, content = message
            if kind not in is_answer:
                return None
            first = is_answer[kind]
            return content if first < 0 or content[:1] == bytes([first]) else None

        frame = kiss_frame(command, data)
        return self._line.ask(frame, self._unframer, answer, what, SHORT_S)


class Rnode(Kiss):
    dialect = "rnode"

    def identify(self) -> str:
        found = self._ask(RnodeCommand.DETECT, DETECT_ASK, {RnodeCommand.DETECT: -1}, "DETECT")
        if found != DETECT_ANSWER:
            raise NoAnswer(f"{self._line.path}: this is no RNode")
        return "RNode"

    def read(self) -> Settings:
        """Nothing: an RNode forgets its radio settings with its power."""
        return {}

    def write(self, changes: Mapping[str, str]) -> None:
        """Set the radio once, which shows that the modem can do it."""
        for name, value in changes.items():
            command, data = RnodeCommand[name], bytes.fromhex(value)
            kinds: dict[int, int] = {command: -1, RnodeCommand.ERROR: -1}
            if self._ask(command, data, kinds, name) != data:
                raise FirmwareError(f"{self._line.path}: the RNode refuses {name} {value}")

    @staticmethod
    def wanted(settings: SerialLoraSettings, channel: Channel) -> Settings:
        del channel
        commands = radio_commands(settings)
        return {RnodeCommand(code).name: data.hex() for code, data in commands.items()}


class Meshcore(Kiss):
    dialect = "meshcore"
    keeps = False

    def identify(self) -> str:
        name = self._get(meshcore.GET_NAME, "GetDeviceName")
        return f"MeshCore {name.decode('utf-8', 'replace')}".strip()

    def read(self) -> Settings:
        radio = self._get(meshcore.GET_RADIO, "GetRadio")
        return {"radio": radio.hex(), "power": self._get(meshcore.GET_POWER, "GetTxPower").hex()}

    def write(self, changes: Mapping[str, str]) -> None:
        codes = {"radio": meshcore.SET_RADIO, "power": meshcore.SET_POWER}
        for name, value in changes.items():
            data = bytes([codes[name]]) + bytes.fromhex(value)
            answer = self._line.ask(
                kiss_frame(meshcore.SET_HARDWARE, data),
                self._unframer,
                partial(_hardware, codes=(meshcore.OK, meshcore.ERROR)),
                f"the setting of {name}",
            )
            if answer[0] != meshcore.OK:
                reason = error_text(answer[1], meshcore.ERRORS)
                raise FirmwareError(
                    f"{self._line.path}: the modem refuses {name} {value}: {reason}"
                )

    @staticmethod
    def wanted(settings: SerialLoraSettings, channel: Channel) -> Settings:
        del channel
        radio, power = meshcore.radio_bytes(settings), bytes([settings.power_dbm])
        return {"radio": radio.hex(), "power": power.hex()}

    def _get(self, code: int, what: str) -> bytes:
        found = self._line.ask(
            kiss_frame(meshcore.SET_HARDWARE, bytes([code])),
            self._unframer,
            partial(_hardware, codes=(code | meshcore.ANSWER,)),
            what,
            SHORT_S,
        )
        return found[1:]


def _hardware(message: tuple[int, bytes], codes: tuple[int, ...]) -> bytes | None:
    kind, content = message
    return content if kind == meshcore.SET_HARDWARE and content[:1] in map(_byte, codes) else None


def _byte(code: int) -> bytes:
    return bytes([code])


class Meshtastic(Modem):
    """A Meshtastic node: read by its handshake, changed by admin messages to itself."""

    dialect = "meshtastic"
    settles_s = 1.0  # it restarts
    # Field numbers of LoRaConfig
    fields: ClassVar[Mapping[str, int]] = {
        "use_preset": 1,
        "bandwidth": 3,
        "spread_factor": 4,
        "coding_rate": 5,
        "region": 7,
        "hop_limit": 8,
        "tx_power": 10,
    }

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._unframer = meshtastic.MeshtasticUnframer()
        self._rng = random.Random()
        self._node = 0
        self._lora = self._channel = b""

    def identify(self) -> str:
        self._line.write(meshtastic.WAKE)
        self.read(SHORT_S)
        return f"Meshtastic node {self._node:08x}"

    def read(self, timeout_s: float = meshtastic.HANDSHAKE_S) -> Settings:
        nonce = self._rng.randrange(1, 1 << 32)

        def answer(message: dict[int, Value]) -> bool | None:
            if (info := protobuf.data(message, meshtastic.FROM_MY_INFO)) is not None:
                self._node = protobuf.number(protobuf.fields(info), meshtastic.MY_NODE)
            if (config := protobuf.data(message, meshtastic.FROM_CONFIG)) is not None:
                found = protobuf.data(protobuf.fields(config), meshtastic.CONFIG_LORA)
                self._lora = self._lora if found is None else found
            if (channel := protobuf.data(message, meshtastic.FROM_CHANNEL)) is not None:
                is_first = not protobuf.number(protobuf.fields(channel), meshtastic.CHANNEL_INDEX)
                self._channel = channel if is_first else self._channel
            return protobuf.number(message, meshtastic.FROM_COMPLETE) == nonce or None

        request = protobuf.number_field(meshtastic.TO_WANT_CONFIG, nonce)
        what = "the request for its configuration"
        self._line.ask(meshtastic.frame(request), self._unframer, answer, what, timeout_s)
        lora = protobuf.fields(self._lora)
        channel = protobuf.data(protobuf.fields(self._channel), meshtastic.CHANNEL_SETTINGS)
        own = protobuf.fields(channel or b"")
        name = protobuf.data(own, meshtastic.CHANNEL_NAME) or b""
        key = protobuf.data(own, meshtastic.CHANNEL_KEY) or b""
        return {
            **{name: str(protobuf.number(lora, field)) for name, field in self.fields.items()},
            "channel": name.decode("utf-8", "replace"),
            "key": base64.b64encode(key).decode(),
        }

    def write(self, changes: Mapping[str, str]) -> None:
        """Write all in one transaction, at whose end the node saves and restarts."""
        all_settings = self.read() | dict(changes)
        lora = self._lora  # of two values of a field the later one counts
        for name, field in self.fields.items():
            lora += protobuf.number_field(field, int(all_settings[name]))
        own = protobuf.bytes_field(
            meshtastic.CHANNEL_KEY, base64.b64decode(all_settings["key"], validate=True)
        ) + protobuf.bytes_field(meshtastic.CHANNEL_NAME, all_settings["channel"].encode())
        channel = protobuf.number_field(meshtastic.CHANNEL_INDEX, 0)
        channel += protobuf.bytes_field(meshtastic.CHANNEL_SETTINGS, own)
        channel += protobuf.number_field(meshtastic.CHANNEL_ROLE, meshtastic.PRIMARY)
        config = protobuf.bytes_field(meshtastic.CONFIG_LORA, lora)
        for field, content in (
            (meshtastic.ADMIN_BEGIN, None),
            (meshtastic.ADMIN_SET_CONFIG, config),
            (meshtastic.ADMIN_SET_CHANNEL, channel),
            (meshtastic.ADMIN_COMMIT, None),
        ):
            if content is None:
                self._admin(protobuf.number_field(field, 1))
            else:
                self._admin(protobuf.bytes_field(field, content))

    @staticmethod
    def wanted(settings: SerialLoraSettings, channel: Channel) -> Settings:
        radio = settings.radio
        return {
            "use_preset": "0",
            "bandwidth": str(radio.bandwidth_khz),
            "spread_factor": str(radio.spreading_factor),
            "coding_rate": str(radio.coding_rate + 4),
            "region": str(channel.region),
            "hop_limit": str(settings.hop_limit),
            "tx_power": str(settings.power_dbm),
            "channel": channel.name,
            "key": channel.key,
        }

    def _admin(self, message: bytes) -> None:
        """Send one message to the node itself, and wait until it has taken it."""
        packet_id = self._rng.randrange(1, 1 << 32)
        data = protobuf.number_field(meshtastic.DATA_PORT, meshtastic.ADMIN_APP)
        data += protobuf.bytes_field(meshtastic.DATA_PAYLOAD, message)
        packet = protobuf.fixed32_field(meshtastic.PACKET_TO, self._node)
        packet += protobuf.bytes_field(meshtastic.PACKET_DATA, data)
        packet += protobuf.fixed32_field(meshtastic.PACKET_ID, packet_id)

        def answer(received: dict[int, Value]) -> int | None:
            status = protobuf.data(received, meshtastic.FROM_QUEUE)
            found = protobuf.fields(status or b"")
            if protobuf.number(found, meshtastic.QUEUE_PACKET) != packet_id:
                return None
            return protobuf.number(found, meshtastic.QUEUE_RESULT)

        request = meshtastic.frame(protobuf.bytes_field(meshtastic.TO_PACKET, packet))
        what = "an admin message"
        if result := self._line.ask(request, self._unframer, answer, what, FLASH_S):
            reason = error_text(result, meshtastic.ERRORS)
            raise FirmwareError(f"{self._line.path}: the node refuses an admin message: {reason}")


MODEMS: tuple[type[Modem], ...] = (Rnode, Meshcore, Meshtastic, Reyax, Ebyte)
BY_DIALECT = {kind.dialect: kind for kind in MODEMS}
