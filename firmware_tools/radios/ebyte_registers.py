"""The registers of EBYTE E22 modems in configuration mode, after the manual of the E22-900T22S.

Commands: C1 first count reads, C0 first count data writes to flash; the answer is C1 first count
data. A wrong command is answered with FF FF FF. The modem does not tell which model it is, and the
same code means another power or frequency on another: the file of the fleet names the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from firmware_tools.errors import FirmwareError

REGISTERS = 7  # ADDH ADDL NETID REG0 REG1 REG2 REG3
FAILED = b"\xff\xff\xff"
_READ, _WRITE = 0xC1, 0xC0
BAUDS = (1200, 2400, 4800, 9600, 19_200, 38_400, 57_600, 115_200)
_AIR_RATES = (300, 1200, 2400, 4800, 9600, 19_200, 38_400, 62_500)
_PACKETS = (240, 128, 64, 32)
_CHANNEL_HZ = 1_000_000
BANDWIDTH_KHZ = 500  # the most that it uses, at its highest air rates; it does not tell


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


def read_command() -> bytes:
    """The command that asks for all registers."""
    return bytes([_READ, 0, REGISTERS])


def write_command(registers: bytes) -> bytes:
    """The command that writes all registers to flash."""
    return bytes([_WRITE, 0, REGISTERS]) + registers


class RegisterReader:
    """Finds answers with registers in a stream; b"" is a refusal."""

    malformed = 0

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The answers that `data` completes."""
        self._buffer += data
        head = read_command()
        while self._buffer:
            if self._buffer.startswith(FAILED):
                del self._buffer[: len(FAILED)]
                return [b""]
            if self._buffer.startswith(head) and len(self._buffer) >= len(head) + REGISTERS:
                found = bytes(self._buffer[len(head) : len(head) + REGISTERS])
                del self._buffer[: len(head) + REGISTERS]
                return [found]
            if head.startswith(self._buffer[:3]) or FAILED.startswith(self._buffer[:3]):
                break  # the rest is to come
            del self._buffer[:1]
        return []

    def flush(self) -> list[bytes]:
        """Nothing: an answer comes whole or not at all."""
        return []


def named(registers: bytes) -> dict[str, str]:
    """The settings in seven registers."""
    reg0, reg1, channel, reg3 = registers[3:]
    return {
        "address": str(int.from_bytes(registers[:2], "big")),
        "network_id": str(registers[2]),
        "baud_rate": str(BAUDS[reg0 >> 5]),
        "parity": str(reg0 >> 3 & 3),
        "air_rate_bps": str(_AIR_RATES[reg0 & 7]),
        "packet_bytes": str(_PACKETS[reg1 >> 6]),
        "power_code": str(reg1 & 3),
        "noise": str(reg1 >> 5 & 1),
        "channel": str(channel),
        "appends_rssi": str(reg3 >> 7),
        "transparent": str(1 - (reg3 >> 6 & 1)),
        "repeater": str(reg3 >> 5 & 1),
        "listens_first": str(reg3 >> 4 & 1),
        "others": f"{reg1 & 0x1C:02x}{reg3 & 0x0F:02x}",
    }


def packed(settings: Mapping[str, str]) -> bytes:
    """The seven registers of all settings; FirmwareError for a value that there is none for."""
    others = bytes.fromhex(settings["others"])
    reg0 = _place(BAUDS, settings, "baud_rate") << 5 | _bits(settings, "parity", 2) << 3
    reg0 |= _place(_AIR_RATES, settings, "air_rate_bps")
    reg1 = others[0] | _place(_PACKETS, settings, "packet_bytes") << 6
    reg1 |= _bits(settings, "noise", 1) << 5 | _bits(settings, "power_code", 2)
    reg3 = others[1] | _bits(settings, "appends_rssi", 1) << 7
    reg3 |= (1 - _bits(settings, "transparent", 1)) << 6 | _bits(settings, "repeater", 1) << 5
    reg3 |= _bits(settings, "listens_first", 1) << 4
    address = _bits(settings, "address", 16).to_bytes(2, "big")
    rest = _bits(settings, "network_id", 8), reg0, reg1, _bits(settings, "channel", 8), reg3
    return address + bytes(rest)


def power_code(model: EbyteModel, power_dbm: int) -> int:
    """The code of the strongest power that is not above `power_dbm`; FirmwareError if none is."""
    for code, power in enumerate(model.powers_dbm):
        if power <= power_dbm:
            return code
    lowest = model.powers_dbm[-1]
    raise FirmwareError(f"this EBYTE model sends with {lowest} dBm at least: set power_dbm to that")


def channel_of(model: EbyteModel, frequency: int) -> int:
    """The channel of a frequency in Hz; FirmwareError where the model has none there."""
    channel, rest = divmod(frequency - model.base_hz, _CHANNEL_HZ)
    if 0 <= channel < model.channels and not rest:
        return channel
    last = model.base_hz + (model.channels - 1) * _CHANNEL_HZ
    raise FirmwareError(
        f"this EBYTE model cannot send at {frequency} Hz: it has {model.base_hz} to {last} Hz in "
        "steps of 1 MHz, so .125 of each MHz"
    )


def _place(values: tuple[int, ...], settings: Mapping[str, str], name: str) -> int:
    if settings[name] not in map(str, values):
        allowed = ", ".join(map(str, values))
        raise FirmwareError(f"{name} is {settings[name]}: an EBYTE modem has one of {allowed}")
    return values.index(int(settings[name]))


def _bits(settings: Mapping[str, str], name: str, width: int) -> int:
    text = settings[name]
    if not text.isdecimal() or int(text) >= 1 << width:
        raise FirmwareError(f"{name} is {text}: it must be a number below {1 << width}")
    return int(text)
