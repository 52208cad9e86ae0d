"""An emulated EBYTE E22 in transparent mode: bytes in, packets of at most 240 bytes, bytes out."""

from transports.serial_lora.ebyte import PACKET_MAX
from transports.serial_lora.emulator.modem import Action, Output, Pause, Reception, Transmit

BUFFER_MAX = 1000  # more bytes that wait are lost
GAP_S = 0.1  # a pause of the host that ends a packet
OVERHEAD_BYTES = 32  # of preamble, header and what the modem adds, as time at the air rate


class EbyteModem:
    """See `EmulatedModem`."""

    def __init__(self, air_rate_bps: int = 2400) -> None:
        self.fail_next: list[int] = []  # It reports no errors: whatever stands here loses a packet.
        self._air_rate_bps = air_rate_bps
        self._buffer = bytearray()
        self._sending = False

    @property
    def tuning(self) -> object:
        """The air rate stands for the channel as well."""
        return ("ebyte", self._air_rate_bps)

    def power_up(self) -> list[Action]:
        """It says nothing."""
        self._buffer.clear()
        self._sending = False
        return []

    def receive_bytes(self, data: bytes) -> list[Action]:
        """Everything is data."""
        self._buffer += data[: BUFFER_MAX - len(self._buffer)]
        if len(self._buffer) >= PACKET_MAX:
            return self._transmit()
        return [Pause(GAP_S)]

    def transmitted(self) -> list[Action]:
        """What came meanwhile follows."""
        self._sending = False
        return self._transmit()

    def hear(self, heard: Reception) -> list[Action]:
        """Bytes without any frame."""
        return [Output(heard.payload)]

    def paused(self) -> list[Action]:
        """The host has made a pause: the packet ends."""
        return self._transmit()

    def _transmit(self) -> list[Action]:
        if self._sending or not self._buffer:
            return []
        packet = bytes(self._buffer[:PACKET_MAX])
        del self._buffer[:PACKET_MAX]
        if self.fail_next:
            self.fail_next.pop(0)
            return self._transmit()
        self._sending = True
        bits = 8 * (len(packet) + OVERHEAD_BYTES)
        return [Transmit(packet, bits * 1_000_000 // self._air_rate_bps)]
