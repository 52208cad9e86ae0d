"""EBYTE E22, E32 and E220 in transparent mode: the modem moves bytes and says nothing about them.

The modem cuts the stream into radio packets of at most 240 bytes and may glue or cut what it hands
out, so payloads travel as COBS frames with a CRC (SPEC.md section 7.3). A frame fits one packet.
"""

from transports.serial_lora import cobs
from transports.serial_lora.dialect import Event, Noise, Received, Sent, Write
from transports.serial_lora.settings import SerialLoraSettings

PACKET_MAX = 240  # the modem's default, and its largest
FRAMING = 7  # bytes: two zeros, one of COBS, four of CRC-32
# The modem hides spreading factor and bandwidth. A preamble and header last about 20 symbols, as
# long as 2 * SF bytes at CR 4/5; and the modem adds an address, a channel and a length of its own.
PREAMBLE_BYTES = 32
# The air rates in its manual are rounded: at SF 10 and 500 kHz "4.8 k" are 3,906 bit/s.
RATE_MARGIN_PERCENT = 125


class Ebyte:
    """See `Dialect`. It is ready at once: these modems are configured beforehand, by pins."""

    payload_max = PACKET_MAX - FRAMING
    ready = True

    def __init__(self, settings: SerialLoraSettings) -> None:
        self._settings = settings
        self._unframer = cobs.Unframer()
        self._malformed = 0  # of the unframer, as far as told
        self._on_air_until: float | None = None

    @property
    def idle(self) -> bool:
        """Whether the air should be free of our last frame: only time can tell."""
        return self._on_air_until is None

    @property
    def deadline(self) -> float | None:
        """When the frame in flight has left."""
        return self._on_air_until

    def airtime_us(self, payload_bytes: int) -> int:
        """An upper bound in microseconds, from the air rate alone."""
        bits = 8 * (payload_bytes + FRAMING + PREAMBLE_BYTES)
        return -(-bits * 10_000 * RATE_MARGIN_PERCENT // self._settings.air_rate_bps)

    def start(self, _now: float) -> list[Event]:
        """Nothing to set up."""
        return []

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Write the frame, then wait until it must have left: the modem's buffer is short."""
        airtime_s = self.airtime_us(len(payload)) / 1e6
        self._on_air_until = now + airtime_s / self._settings.speed
        return [Write(cobs.frame(payload))]

    def receive_bytes(self, data: bytes, _now: float) -> list[Event]:
        """The frames that end in `data`."""
        events: list[Event] = [Received(payload) for payload in self._unframer.feed(data)]
        new = self._unframer.malformed - self._malformed
        self._malformed += new
        return events + [Noise("a damaged frame")] * new

    def line_idle(self, _now: float) -> list[Event]:
        """Nothing: the next frame begins with a zero, which ends whatever is incomplete."""
        return []

    def handle_timeout(self, _now: float) -> list[Event]:
        """The frame has left."""
        self._on_air_until = None
        return [Sent()]
