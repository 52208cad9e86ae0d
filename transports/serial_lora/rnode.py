"""RNode firmware: KISS with commands for the radio, and CMD_READY as flow control.

The firmware adds one byte to each frame and cuts frames of more than 254 bytes in two. Our payloads
are shorter, so that one loss costs one frame.
"""

from dataclasses import replace
from enum import IntEnum

from ternmesh.link.airtime import LoraSetting
from transports.serial_lora.dialect import (
    Broken,
    Dialect,
    Event,
    Noise,
    PayloadRefused,
    Received,
    Sent,
    Write,
    error_text,
)
from transports.serial_lora.framing import KissUnframer, kiss_frame
from transports.serial_lora.settings import SerialLoraSettings

DETECT_ASK, DETECT_ANSWER, ON = b"\x73", b"\x46", b"\x01"
STEP_HZ = 62  # of an SX127x: 32 MHz / 2**19, rounded up
RSSI_OFFSET_DBM, SNR_STEP_DB = 157, 0.25
HEADER = 1  # byte on the air
PAYLOAD_MAX = 254
QUEUE_FULL = 4
ERRORS = {1: "the radio does not start", 2: "sending failed", QUEUE_FULL: "its queue is full"}
ERRORS |= {3: "its settings are locked", 5: "it lacks memory", 6: "its radio does not answer"}
ANSWER_S = 2.0
# The firmware's preamble lasts at least 18 symbols and about 24 ms (from its sources; unmeasured).
_PREAMBLE_SYMBOLS_MIN, _PREAMBLE_US = 18, 24_000


class RnodeCommand(IntEnum):
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


class Rnode(Dialect[tuple[int, bytes]]):
    """An RNode; its messages are KISS commands with their data."""

    payload_max = PAYLOAD_MAX
    overhead = HEADER

    def __init__(self, settings: SerialLoraSettings) -> None:
        super().__init__(settings, KissUnframer())
        self._radio = with_long_preamble(settings.radio)
        self._unconfirmed: dict[int, bytes] = {}  # settings that the modem has not repeated yet
        self._left_at = 0.0  # when the frame in flight has left
        self._rssi_dbm: float | None = None  # of the frame that follows
        self._snr_db: float | None = None

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Send; the modem has a queue, but the next frame waits until this one has left."""
        self._tries = 0
        self._left_at = now + self._air_s(payload)
        return self._launch(payload, kiss_frame(RnodeCommand.DATA, payload), now)

    def handle_timeout(self, now: float) -> list[Event]:
        """Ask again: for an RNode, or whether it is ready for the next frame."""
        if not self.ready:
            return self._detect(now)
        self._tries += 1
        if self._tries > 1 + self._settings.answer_margin_s / ANSWER_S:
            return self._restart("the modem did not report that it is ready", now)
        # Only some versions of the firmware report it without being asked.
        self.deadline = now + ANSWER_S
        return [Write(kiss_frame(RnodeCommand.READY, b"\x00"))]

    def _set_up(self, now: float) -> list[Event]:
        self._unconfirmed = {}
        return self._detect(now)

    def _detect(self, now: float) -> list[Event]:
        failure = "no RNode answers"
        if self._unconfirmed:
            failure += f": it did not confirm command {min(self._unconfirmed)}"
        return self._attempt(kiss_frame(RnodeCommand.DETECT, DETECT_ASK), now + ANSWER_S, failure)

    def _message(self, message: tuple[int, bytes], now: float) -> list[Event]:
        command, content = message
        match command:
            case RnodeCommand.DATA if content:
                received = Received(content, self._rssi_dbm, self._snr_db)
                self._rssi_dbm = None
                self._snr_db = None
                return [received]
            case RnodeCommand.DETECT if content == DETECT_ANSWER and not self.ready:
                self._unconfirmed = radio_commands(self._settings)
                self.deadline = now + ANSWER_S
                return [Write(b"".join(kiss_frame(*item) for item in self._unconfirmed.items()))]
            case RnodeCommand.READY if content == ON and now >= self._left_at:
                return self._settle(Sent())
            case RnodeCommand.RSSI if content:
                self._rssi_dbm = float(content[0] - RSSI_OFFSET_DBM)
            case RnodeCommand.SNR if content:
                self._snr_db = int.from_bytes(content[:1], signed=True) * SNR_STEP_DB
            case RnodeCommand.ERROR if content:
                return self._error(content[0])
            case RnodeCommand.RESET if self.ready:
                return self._restart("the modem has restarted", now)
            case _ if command in self._unconfirmed:
                return self._confirm(command, content)
        return []

    def _confirm(self, command: int, content: bytes) -> list[Event]:
        wanted = self._unconfirmed.pop(command)
        if wrong := _difference(command, content, wanted):
            return [Broken(wrong)]
        return [] if self._unconfirmed else self._be_ready()

    def _error(self, code: int) -> list[Event]:
        reason = error_text(code, ERRORS)
        if not self.ready:
            return [Broken(f"the RNode reports {reason}")]
        if self.idle:
            return [Noise()]
        again_in_s = 1.0 / self._settings.speed if code == QUEUE_FULL else None
        return self._settle(PayloadRefused(reason, again_in_s))


def _difference(command: int, content: bytes, wanted: bytes) -> str:
    """What an RNode has set otherwise than it should, and what to do; nothing where it is right."""
    found, asked = int.from_bytes(content, "big"), int.from_bytes(wanted, "big")
    match command:
        case RnodeCommand.FREQUENCY if abs(found - asked) <= STEP_HZ:
            return ""  # with its radio on, it reads the chip, which is tuned in steps
        case RnodeCommand.FREQUENCY:
            return f"the RNode is tuned to {found} Hz, not {asked}: is that in its range?"
        case RnodeCommand.POWER if found != asked:
            return f"the RNode sends with {found} dBm, not {asked}: set power_dbm = {found}"
        case RnodeCommand.STATE if found != asked:
            return "the RNode keeps its radio off: it is locked, so install its firmware anew"
    if content == wanted:
        return ""
    return f"the RNode sets {RnodeCommand(command).name.lower()} to {found}, not {asked}"


def with_long_preamble(radio: LoraSetting) -> LoraSetting:
    """`radio` with the preamble that this firmware chooses by itself, or a longer one."""
    least = max(_PREAMBLE_SYMBOLS_MIN, -(-_PREAMBLE_US // radio.symbol_us))
    return replace(radio, preamble_symbols=max(radio.preamble_symbols, least))


def radio_commands(settings: SerialLoraSettings) -> dict[int, bytes]:
    """The radio settings in the order of writing; the modem repeats each with its value."""
    radio = settings.radio
    return {
        RnodeCommand.FREQUENCY: settings.frequency_hz.to_bytes(4, "big"),
        RnodeCommand.BANDWIDTH: int(radio.bandwidth_khz * 1000).to_bytes(4, "big"),
        RnodeCommand.POWER: bytes([settings.power_dbm]),
        RnodeCommand.SPREADING_FACTOR: bytes([radio.spreading_factor]),
        RnodeCommand.CODING_RATE: bytes([radio.coding_rate + 4]),
        RnodeCommand.STATE: ON,
    }
