"""The registers of EBYTE E22 modems in configuration mode, after the manual of the E22-900T22S.

Commands: C1 first count reads, C0 first count data writes to flash; the answer is C1 first count
data. A wrong command is answered with FF FF FF.
"""

from firmware_tools.errors import FirmwareError

REGISTERS = 7  # ADDH ADDL NETID REG0 REG1 REG2 REG3
FAILED = b"\xff\xff\xff"
_READ, _WRITE = 0xC1, 0xC0
_BAUDS = (1200, 2400, 4800, 9600, 19_200, 38_400, 57_600, 115_200)
_AIR_RATES = (300, 1200, 2400, 4800, 9600, 19_200, 38_400, 62_500)
_PACKETS = (240, 128, 64, 32)
_POWERS = (22, 17, 13, 10)  # dBm, of modems of 22 dBm
# The channel of each model's series begins here; a channel is 1 MHz wide.
_BASES_HZ = (850_125_000, 410_125_000, 220_125_000)
_CHANNEL_HZ, _CHANNELS = 1_000_000, 81


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
        head = bytes([_READ, 0, REGISTERS])
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
        "baud_rate": str(_BAUDS[reg0 >> 5]),
        "parity": str(reg0 >> 3 & 3),
        "air_rate_bps": str(_AIR_RATES[reg0 & 7]),
        "packet_bytes": str(_PACKETS[reg1 >> 6]),
        "power": str(_POWERS[reg1 & 3]),
        "noise": str(reg1 >> 5 & 1),
        "channel": str(channel),
        "appends_rssi": str(reg3 >> 7),
        "transparent": str(1 - (reg3 >> 6 & 1)),
        "listens_first": str(reg3 >> 4 & 1),
        "others": f"{reg1 & 0x1C:02x}{reg3 & 0x2F:02x}",
    }


def packed(settings: dict[str, str]) -> bytes:
    """The seven registers of all settings; FirmwareError for a value that there is none for."""
    others = bytes.fromhex(settings["others"])
    reg0 = _place(_BAUDS, settings, "baud_rate") << 5 | int(settings["parity"]) << 3
    reg0 |= _place(_AIR_RATES, settings, "air_rate_bps")
    reg1 = others[0] | _place(_PACKETS, settings, "packet_bytes") << 6
    reg1 |= int(settings["noise"]) << 5 | _place(_POWERS, settings, "power")
    reg3 = others[1] | int(settings["appends_rssi"]) << 7 | int(settings["listens_first"]) << 4
    reg3 |= (1 - int(settings["transparent"])) << 6
    address = int(settings["address"]).to_bytes(2, "big")
    network, channel = int(settings["network_id"]), int(settings["channel"])
    return address + bytes([network, reg0, reg1, channel, reg3])


def _place(values: tuple[int, ...], settings: dict[str, str], name: str) -> int:
    value = int(settings[name])
    if value not in values:
        allowed = ", ".join(map(str, values))
        raise FirmwareError(f"an EBYTE modem has no {name} of {value}: it must be one of {allowed}")
    return values.index(value)


def channel_of(frequency: int) -> int:
    """The channel of a frequency in Hz: all series count from their lowest one in steps of 1 MHz.

    FirmwareError where there is none.
    """
    for base in _BASES_HZ:
        channel, rest = divmod(frequency - base, _CHANNEL_HZ)
        if 0 <= channel < _CHANNELS and not rest:
            return channel
    raise FirmwareError(
        f"an EBYTE modem cannot send at {frequency} Hz: its channels lie at .125 of each MHz, like "
        "868125000 or 915125000"
    )
