"""Emulates an EBYTE E22 modem in transparent mode.

The modem sends the bytes from its serial port in packets of at most `packet_bytes`. The receiving
modem writes them to its own serial port.
"""

from transports.serial_lora.ebyte import PACKET_MAX
from transports.serial_lora.emulator.modem import (
    Action,
    EmulatedModem,
    Output,
    Pause,
    Reception,
    Transmit,
)

BUFFER_MAX = 1000  # bytes that wait for transmission; more bytes are lost
GAP_S = 0.1  # a pause of this length on the serial port ends a packet
# The time on the air of preamble, header and modem additions, as bytes at the air rate.
OVERHEAD_BYTES = 32


class EbyteModem(EmulatedModem):
    """An EBYTE modem. It reports no errors: each code in `fail_next` makes it lose one packet."""

    def __init__(self, air_rate_bps: int = 2400, packet_bytes: int = PACKET_MAX) -> None:
        super().__init__()
        self._packet_bytes = packet_bytes
        self._air_rate_bps = air_rate_bps
        self._buffer = bytearray()
        self.is_configured = False  # whether M1 is high: the modem then takes commands
        self.registers = bytearray.fromhex("0000006200120300")[:7]  # as it comes from the factory

    @property
    def tuning(self) -> object:
        """The settings that two modems need in common; the air rate also stands for the channel."""
        return ("ebyte", self._air_rate_bps)

    def power_up(self) -> list[Action]:
        self._buffer.clear()
        return super().power_up()

    def receive_bytes(self, data: bytes) -> list[Action]:
        if self.is_configured:
            return self._command(data)
        self._buffer += data[: BUFFER_MAX - len(self._buffer)]
        if len(self._buffer) >= self._packet_bytes:
            return self._transmit()
        return [Pause(GAP_S)]

    def transmitted(self) -> list[Action]:
        self._sending = False
        return self._transmit()

    def hear(self, heard: Reception) -> list[Action]:
        return [Output(heard.payload)]

    def paused(self) -> list[Action]:
        """Send the packet, because no bytes came for `GAP_S`."""
        return self._transmit()

    def _command(self, data: bytes) -> list[Action]:
        """Read or write registers; a command comes in one piece."""
        first, count = data[1:2], data[2:3]
        if len(data) < 3 or first[0] + count[0] > len(self.registers):
            return [Output(b"\xff\xff\xff")]
        at = slice(first[0], first[0] + count[0])
        if data[0] == 0xC0 and len(data) == 3 + count[0] and not self.fail_next:
            self.registers[at] = data[3:]
        elif data[0] != 0xC1 or len(data) != 3:
            return [Output(b"\xff\xff\xff")]
        return [Output(b"\xc1" + first + count + bytes(self.registers[at]))]

    def _transmit(self) -> list[Action]:
        if self._sending or not self._buffer:
            return []
        packet = bytes(self._buffer[: self._packet_bytes])
        del self._buffer[: self._packet_bytes]
        if self.fail_next:
            self.fail_next.pop(0)
            return self._transmit()
        self._sending = True
        bits = 8 * (len(packet) + OVERHEAD_BYTES)
        return [Transmit(packet, bits * 1_000_000 // self._air_rate_bps)]
