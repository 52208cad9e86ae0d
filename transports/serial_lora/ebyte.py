"""EBYTE E22, E32 and E220 in transparent mode: the modem moves bytes and reports nothing.

The modem cuts the stream into radio packets of at most `packet_bytes` (E22 240, E220 200, E32 58),
each with a preamble of its own, and may join or split them at its output. So payloads travel as
COBS frames with a CRC (SPEC.md section 7.3).
"""

from transports.serial_lora.dialect import Dialect, Event, Received, Sent
from transports.serial_lora.framing import CobsUnframer, cobs_frame
from transports.serial_lora.settings import SerialLoraSettings

PACKET_MAX = 240  # the modem's default, and its largest
FRAMING = 7  # bytes: two zeros, one of COBS, four of CRC-32
# The modem hides spreading factor and bandwidth. A preamble and header last about 20 symbols, as
# long as 2 * SF bytes at CR 4/5; and the modem adds an address, a channel and a length of its own.
PREAMBLE_BYTES = 32
# The air rates in its manual are rounded: at SF 10 and 500 kHz "4.8 k" are 3,906 bit/s.
RATE_MARGIN_PERCENT = 125


class Ebyte(Dialect[bytes]):
    """An EBYTE modem. It is ready at once: it is configured beforehand, by pins."""

    payload_max = PACKET_MAX - FRAMING

    def __init__(self, settings: SerialLoraSettings) -> None:
        super().__init__(settings, CobsUnframer())

    def airtime_us(self, payload_bytes: int) -> int:
        """An upper bound in microseconds, from the air rate alone."""
        whole = payload_bytes + FRAMING
        packets = -(-whole // self._settings.packet_bytes)
        bits = 8 * (whole + packets * PREAMBLE_BYTES)
        return -(-bits * 10_000 * RATE_MARGIN_PERCENT // self._settings.air_rate_bps)

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Write the frame, then wait until it must have left: the modem's buffer is short."""
        wire, settings = cobs_frame(payload), self._settings
        line_s = 10 * len(wire) / settings.baud / settings.speed  # it may take longer than the air
        return self._launch(payload, wire, now, max(0.0, line_s - self._air_s(payload)))

    def handle_timeout(self, _now: float) -> list[Event]:
        return self._settle(Sent())

    def _set_up(self, _now: float) -> list[Event]:
        return self._be_ready()

    def _message(self, message: bytes, _now: float) -> list[Event]:
        return [Received(message)]
