"""RNode firmware: KISS with commands for the radio, and CMD_READY as flow control.

The firmware adds one byte to each frame and cuts frames of more than 254 bytes in two; ours are
shorter, so that one loss costs one frame.
"""

from enum import IntEnum

from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.serial_lora import kiss
from transports.serial_lora.dialect import Broken, Event, Noise, Received, Refused, Sent, Write
from transports.serial_lora.settings import SerialLoraSettings

DETECT_ASK, DETECT_ANSWER, ON = b"\x73", b"\x46", b"\x01"
RSSI_OFFSET_DBM, SNR_STEP_DB = 157, 0.25
HEADER = 1  # byte on the air
PAYLOAD_MAX = 254
ERRORS = {1: "the radio does not start", 2: "sending failed", 4: "its queue is full"}
ANSWER_S = 2.0
TRIES_MAX = 4
# The firmware's preamble lasts at least 18 symbols and about 24 ms (from its sources; unmeasured).
_PREAMBLE_SYMBOLS_MIN, _PREAMBLE_US = 18, 24_000


class Command(IntEnum):
    """The first byte of a KISS frame."""

    DATA = 0x00
    FREQUENCY = 0x01
    BANDWIDTH = 0x02
    POWER = 0x03
    SPREADING_FACTOR = 0x04
    CODING_RATE = 0x05
    STATE = 0x06
    DETECT = 0x08
    READY = 0x0F
    RSSI = 0x23
    SNR = 0x24
    RESET = 0x55
    ERROR = 0x90


class Rnode:
    """See `Dialect`."""

    payload_max = PAYLOAD_MAX

    def __init__(self, settings: SerialLoraSettings) -> None:
        self.deadline: float | None = None
        self.ready = False
        self._settings = settings
        self._radio = with_long_preamble(settings.radio)
        self._wanted = _radio_commands(settings)
        self._open: dict[int, bytes] = {}  # settings that the modem has not confirmed
        self._unframer = kiss.Unframer()
        self._malformed = 0
        self._tries = 0
        self._in_flight = False
        self._left_at = 0.0  # when the frame in flight has left
        self._rssi_dbm: float | None = None
        self._snr_db: float | None = None

    @property
    def idle(self) -> bool:
        """Whether the last frame has left and the modem has room."""
        return self.ready and not self._in_flight

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of a payload with the firmware's header, in microseconds."""
        return airtime_us(self._radio, payload_bytes + HEADER)

    def start(self, now: float) -> list[Event]:
        """Ask whether an RNode is there."""
        self.ready = False
        self._tries = 0
        self._open = {}
        return self._detect(now)

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Send; the modem has a queue, but the next frame waits until this one has left."""
        assert self.idle
        self._in_flight = True
        self._left_at = now + self.airtime_us(len(payload)) / 1e6 / self._settings.speed
        self._tries = 0
        self.deadline = self._left_at
        return [Write(kiss.frame(Command.DATA, payload))]

    def receive_bytes(self, data: bytes, now: float) -> list[Event]:
        """Take what the modem says."""
        events: list[Event] = []
        for command, content in self._unframer.feed(data):
            events += self._command(command, content, now)
        new = self._unframer.malformed - self._malformed
        self._malformed += new
        return events + [Noise("bytes that are no KISS")] * new

    def line_idle(self, _now: float) -> list[Event]:
        """Nothing: the next FEND ends whatever is incomplete."""
        return []

    def handle_timeout(self, now: float) -> list[Event]:
        """Ask again."""
        if not self.ready:
            return self._detect(now)
        self._tries += 1
        if self._tries > 1 + self._settings.answer_margin_s / ANSWER_S:
            self._in_flight = False
            return [Refused("the modem did not say that it is ready"), *self.start(now)]
        # Only some versions say by themselves that they are ready for the next frame.
        self.deadline = now + ANSWER_S
        return [Write(kiss.frame(Command.READY, b"\x00"))]

    def _detect(self, now: float) -> list[Event]:
        self._tries += 1
        if self._tries > TRIES_MAX:
            missing = f": it did not confirm command {min(self._open)}" if self._open else ""
            return [Broken(f"no RNode answers{missing}")]
        self.deadline = now + ANSWER_S
        return [Write(kiss.frame(Command.DETECT, DETECT_ASK))]

    def _command(self, command: int, content: bytes, now: float) -> list[Event]:
        match command:
            case Command.DATA if content:
                return [Received(content, *self._quality())]
            case Command.DETECT if content == DETECT_ANSWER and not self.ready:
                self._open = dict(self._wanted)
                self.deadline = now + ANSWER_S
                return [Write(b"".join(kiss.frame(*item) for item in self._wanted.items()))]
            case Command.READY if content == ON and self._in_flight and now >= self._left_at:
                self._in_flight = False
                self.deadline = None
                return [Sent()]
            case Command.RSSI if content:
                self._rssi_dbm = float(content[0] - RSSI_OFFSET_DBM)
            case Command.SNR if content:
                self._snr_db = int.from_bytes(content[:1], signed=True) * SNR_STEP_DB
            case Command.ERROR if content:
                return self._error(content[0])
            case Command.RESET if self.ready:
                lost: list[Event] = [Refused("the modem has restarted")] if self._in_flight else []
                self._in_flight = False
                return lost + self.start(now)
            case _ if command in self._open:
                return self._confirmed(command, content)
        return []

    def _quality(self) -> tuple[float | None, float | None]:
        quality = self._rssi_dbm, self._snr_db
        self._rssi_dbm = self._snr_db = None
        return quality

    def _confirmed(self, command: int, content: bytes) -> list[Event]:
        if content != self._open[command]:
            wanted, got = self._open[command].hex(), content.hex()
            return [Broken(f"the RNode sets command {command} to {got}, not {wanted}")]
        del self._open[command]
        if not self._open:
            self.ready = True
            self.deadline = None
        return []

    def _error(self, code: int) -> list[Event]:
        reason = f"error {code}, {ERRORS.get(code, 'of a kind not known here')}"
        if not self.ready:
            return [Broken(f"the RNode reports {reason}")]
        if not self._in_flight:
            return [Noise(reason)]
        self._in_flight = False
        self.deadline = None
        return [Refused(reason, 1.0 / self._settings.speed if code == 4 else None)]


def with_long_preamble(radio: LoraSetting) -> LoraSetting:
    """`radio` with the preamble that this firmware chooses by itself, or a longer one."""
    symbols = max(
        radio.preamble_symbols, _PREAMBLE_SYMBOLS_MIN, -(-_PREAMBLE_US // radio.symbol_us)
    )
    return LoraSetting(radio.spreading_factor, radio.bandwidth_khz, radio.coding_rate, symbols)


def _radio_commands(settings: SerialLoraSettings) -> dict[int, bytes]:
    """What the modem must confirm, in this order; it repeats each with the value that it has."""
    radio = settings.radio
    return {
        Command.FREQUENCY: settings.frequency_hz.to_bytes(4, "big"),
        Command.BANDWIDTH: (radio.bandwidth_khz * 1000).to_bytes(4, "big"),
        Command.POWER: bytes([settings.power_dbm]),
        Command.SPREADING_FACTOR: bytes([radio.spreading_factor]),
        Command.CODING_RATE: bytes([radio.coding_rate + 4]),
        Command.STATE: ON,
    }
