"""Emulates an EBYTE E22 modem in transparent mode.

The modem sends the bytes from its serial port in packets of at most PACKET_MAX bytes. The
receiving modem writes them to its own serial port.
"""

from transports.serial_lora.ebyte import PACKET_MAX
from transports.serial_lora.emulator import modem

BUFFER_MAX = 1000  # bytes that wait for transmission; more bytes are lost
GAP_S = 0.1  # a pause of this length on the serial port ends a packet
# The time on the air of preamble, header and modem additions, as bytes at the air rate.
OVERHEAD_BYTES = 32


class EbyteModem(modem.EmulatedModem):
    """An EBYTE modem. It reports no errors: each code in `fail_next` makes it lose one packet."""

    def __init__(self, air_rate_bps: int = 2400) -> None:
        super().__init__()
        self._air_rate_bps = air_rate_bps
        self._buffer = bytearray()

    @property
    def tuning(self) -> object:
        """The settings that two modems need in common; the air rate also stands for the channel."""
        return ("ebyte", self._air_rate_bps)

    def power_up(self) -> list[modem.Action]:
        self._buffer.clear()
        return super().power_up()

    def receive_bytes(self, data: bytes) -> list[modem.Action]:
        self._buffer += data[: BUFFER_MAX - len(self._buffer)]
        if len(self._buffer) >= PACKET_MAX:
            return self._transmit()
        return [modem.Pause(GAP_S)]

    def transmitted(self) -> list[modem.Action]:
        self._sending = False
        return self._transmit()

    def hear(self, heard: modem.Reception) -> list[modem.Action]:
        return [modem.Output(heard.payload)]

    def paused(self) -> list[modem.Action]:
        """Send the packet, because no bytes came for `GAP_S`."""
        return self._transmit()

    def _transmit(self) -> list[modem.Action]:
        if self._sending or not self._buffer:
            return []
        packet = bytes(self._buffer[:PACKET_MAX])
        del self._buffer[:PACKET_MAX]
        if self.fail_next:
            self.fail_next.pop(0)
            return self._transmit()
        self._sending = True
        bits = 8 * (len(packet) + OVERHEAD_BYTES)
        return [modem.Transmit(packet, bits * 1_000_000 // self._air_rate_bps)]
