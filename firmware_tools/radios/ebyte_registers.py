"""The registers of EBYTE E22 modems in configuration mode, after the manual of the E22-900T22S.

Commands: C1 first count reads, C0 first count data writes to flash; the answer is C1 first count
data. A wrong command is answered with FF FF FF. The modem does not tell which model it is, and the
same code means another power or frequency on another: the file of the fleet names the model.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from firmware_tools.errors import FirmwareError

REGISTERS = 7  # ADDH ADDL NETID REG0 REG1 CHANNEL REG3
READ_ALL = bytes([0xC1, 0, REGISTERS])
WRITE_ALL = bytes([0xC0, 0, REGISTERS])  # all registers follow
FAILED = b"\xff\xff\xff"
BAUDS = (1200, 2400, 4800, 9600, 19_200, 38_400, 57_600, 115_200)
NETWORK_ID = 18  # of all fleets
BANDWIDTH_KHZ = 500  # the most that it uses, at its highest air rates; it does not tell
_AIR_RATES = (300, 1200, 2400, 4800, 9600, 19_200, 38_400, 62_500)
_PACKETS = (240, 128, 64, 32)
_CHANNEL_HZ = 1_000_000
_ANSWER = re.compile(re.escape(FAILED) + b"|" + re.escape(READ_ALL) + b"(.{0,7})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Bits:
    """Where a setting is in the registers, which count as one big-endian number."""

    lowest: int
    width: int
    values: tuple[int, ...] = ()  # of its codes; none: the code is the value


_SETTINGS = {
    "address": _Bits(40, 16),
    "network_id": _Bits(32, 8),
    "baud_rate": _Bits(29, 3, BAUDS),
    "parity": _Bits(27, 2),
    "air_rate_bps": _Bits(24, 3, _AIR_RATES),
    "packet_bytes": _Bits(22, 2, _PACKETS),
    "power_code": _Bits(16, 2),
    "noise": _Bits(21, 1),
    "channel": _Bits(8, 8),
    "appends_rssi": _Bits(7, 1),
    "transparent": _Bits(6, 1, (1, 0)),
    "repeater": _Bits(5, 1),
    "listens_first": _Bits(4, 1),
}
_OTHER_REG1, _OTHER_REG3 = 0x1C, 0x0F  # bits that have no name here


@dataclass(frozen=True, slots=True)
class EbyteModel:
    """A series: its first channel, how many there are, and the powers of the codes 0 to 3."""

    base_hz: int
    channels: int
    powers_dbm: tuple[int, ...]


_LOW, _HIGH = (22, 17, 13, 10), (30, 27, 24, 21)
MODELS = {
    "E22-230T22": EbyteModel(220_125_000, 65, _LOW),
    "E22-230T30": EbyteModel(220_125_000, 65, _HIGH),
    "E22-400T22": EbyteModel(410_125_000, 84, _LOW),
    "E22-400T30": EbyteModel(410_125_000, 84, _HIGH),
    "E22-900T22": EbyteModel(850_125_000, 81, _LOW),
    "E22-900T30": EbyteModel(850_125_000, 81, _HIGH),
}


class RegisterReader:
    """Finds answers with registers in a stream; b"" is a refusal."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The answers that `data` completes."""
        self._buffer += data
        answers: list[bytes] = []
        while answer := _ANSWER.search(self._buffer):
            registers: bytes | None = answer[1]
            if registers is not None and len(registers) < REGISTERS:
                break  # more is to come
            answers.append(bytes(registers or b""))
            del self._buffer[: answer.end()]
        return answers


def named(registers: bytes) -> dict[str, str]:
    """The settings in seven registers."""
    number = int.from_bytes(registers, "big")
    settings = {}
    for name, bits in _SETTINGS.items():
        code = number >> bits.lowest & (1 << bits.width) - 1
        settings[name] = str(bits.values[code] if bits.values else code)
    return settings | {"others": f"{number >> 16 & _OTHER_REG1:02x}{number & _OTHER_REG3:02x}"}


def packed(settings: Mapping[str, str]) -> bytes:
    """The seven registers of all settings; FirmwareError for a value that there is none for."""
    reg1, reg3 = bytes.fromhex(settings["others"])
    number = reg1 << 16 | reg3
    for name, bits in _SETTINGS.items():
        number |= _code(name, settings[name], bits) << bits.lowest
    return number.to_bytes(REGISTERS, "big")


def power_code(model: EbyteModel, power_dbm: int) -> int:
    """The code of the strongest power that is not above `power_dbm`; FirmwareError if none is."""
    for code, power in enumerate(model.powers_dbm):
        if power <= power_dbm:
            return code
    lowest = model.powers_dbm[-1]
    raise FirmwareError(f"this EBYTE model sends with {lowest} dBm at least: set power_dbm to that")


def channel_of(model: EbyteModel, frequency: int) -> int:
    """The channel of a frequency in Hz; FirmwareError where the model has none there."""
    channel, offset_hz = divmod(frequency - model.base_hz, _CHANNEL_HZ)
    if 0 <= channel < model.channels and not offset_hz:
        return channel
    last = model.base_hz + (model.channels - 1) * _CHANNEL_HZ
    raise FirmwareError(
        f"this EBYTE model cannot send at {frequency} Hz: it has {model.base_hz} to {last} Hz in "
        "steps of 1 MHz, so .125 of each MHz"
    )


def _code(name: str, value: str, bits: _Bits) -> int:
    if bits.values:
        texts = [str(one) for one in bits.values]
        if value not in texts:
            allowed = ", ".join(texts)
            raise FirmwareError(f"{name} is {value}: an EBYTE modem has one of {allowed}")
        return texts.index(value)
    if not value.isdecimal() or int(value) >= 1 << bits.width:
        raise FirmwareError(f"{name} is {value}: it must be a number below {1 << bits.width}")
    return int(value)
