"""MeshCore's KISS modem firmware: standard KISS, with SetHardware (6) for all that is about radio.

From docs/kiss_modem_protocol.md of its repository. One frame may be pending; TxDone follows it.
Numbers are little-endian. The frames are ours: MeshCore's own nodes ignore them.
"""

from collections import deque

from ternmesh.link.airtime import airtime_us
from transports.serial_lora.dialect import (
    Broken,
    Dialect,
    Event,
    PayloadRefused,
    Received,
    Sent,
    error_text,
)
from transports.serial_lora.framing import KissUnframer, kiss_frame
from transports.serial_lora.settings import SerialLoraSettings

DATA, SET_HARDWARE = 0x00, 0x06
SET_RADIO, SET_POWER, GET_RADIO, GET_POWER, GET_AIRTIME = 0x09, 0x0A, 0x0B, 0x0C, 0x0F
RADIO, POWER, AIRTIME, OK, ERROR, TX_DONE, RX_META = 0x8B, 0x8C, 0x8F, 0xF0, 0xF1, 0xF8, 0xF9
TX_BUSY = 7
ERRORS = {
    1: "too few bytes",
    2: "a value out of range",
    3: "it has no such feature",
    5: "it does not know the command",
    TX_BUSY: "it is still sending",
    8: "this board does not support it",
}
PAYLOAD_MAX = 255
ANSWER_S = 2.0
CSMA_S = 2.0  # it listens before it sends: half a second of key-up delay, and slots of 0.1 s
BUSY_S = 0.25
_Step = tuple[int, bytes, int, bytes]  # sub-command, data, right answer, how its data begin


class Meshcore(Dialect[tuple[int, bytes]]):
    """A MeshCore modem; its messages are KISS commands with their data."""

    payload_max = PAYLOAD_MAX

    def __init__(self, settings: SerialLoraSettings) -> None:
        super().__init__(settings, KissUnframer())
        self._steps: deque[_Step] = deque()
        self._extra_us = 0  # by which the modem's own estimate of airtime exceeds ours

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of a payload, in microseconds: ours or the modem's, the longer one."""
        return super().airtime_us(payload_bytes) + self._extra_us

    def send(self, payload: bytes, now: float) -> list[Event]:
        slack_s = CSMA_S / self._settings.speed + self._settings.answer_margin_s
        return self._launch(payload, kiss_frame(DATA, payload), now, slack_s)

    def handle_timeout(self, now: float) -> list[Event]:
        if not self.ready:
            return self._next_step(now)
        return self._restart("the modem did not answer", now)

    def _set_up(self, now: float) -> list[Event]:
        """Set the radio, then ask how long the longest frame takes."""
        self._steps = deque(_steps(self._settings))
        return self._next_step(now)

    def _next_step(self, now: float) -> list[Event]:
        """Send the command at the front, or end the set-up."""
        if not self._steps:
            return self._be_ready()
        code, data = self._steps[0][:2]
        command = kiss_frame(SET_HARDWARE, bytes([code]) + data)
        failure = f"no MeshCore modem answers command {code}"
        return self._attempt(command, now + ANSWER_S, failure)

    def _message(self, message: tuple[int, bytes], now: float) -> list[Event]:
        command, content = message
        if command == DATA and content:
            return [Received(content)]
        if command == SET_HARDWARE and content:
            return self._hardware(content[0], content[1:], now)
        return []

    def _hardware(self, code: int, data: bytes, now: float) -> list[Event]:
        if code == TX_DONE:
            sent = data == b"\x01"
            return self._settle(Sent() if sent else PayloadRefused("the radio could not send"))
        if code == ERROR and data:
            if not (self._steps and self._steps[0][3]):  # else it cannot be asked
                return self._error(data[0])
        elif not (self._steps and code == self._steps[0][2]):
            return []
        elif code == AIRTIME:
            self._compare_airtime(data)
        elif not data.startswith(wanted := self._steps[0][3]):
            kept = f"the modem keeps {_shown(data)}, although it took {_shown(wanted)}"
            return [Broken(f"{kept}: choose a value that its model allows")]
        self._steps.popleft()
        self._tries = 0
        self._heard = b""
        return self._next_step(now)

    def _error(self, code: int) -> list[Event]:
        reason = error_text(code, ERRORS)
        if not self.ready:
            return [Broken(f"the modem refuses command {self._steps[0][0]}: {reason}")]
        again_in_s = BUSY_S / self._settings.speed if code == TX_BUSY else None
        return self._settle(PayloadRefused(reason, again_in_s))

    def _compare_airtime(self, data: bytes) -> None:
        """A longer preamble than ours costs the same for each frame, so one frame is enough."""
        modem_us = int.from_bytes(data[:4], "little") * 1000
        ours_us = airtime_us(self._radio, PAYLOAD_MAX)
        if modem_us > ours_us:
            self._extra_us = min(ours_us, modem_us + 1000 - ours_us)  # It rounds to milliseconds.


def radio_bytes(settings: SerialLoraSettings) -> bytes:
    """Frequency, bandwidth, spreading factor and coding rate, as SetRadio takes them."""
    radio = settings.radio
    numbers = settings.frequency_hz.to_bytes(4, "little")
    numbers += (radio.bandwidth_khz * 1000).to_bytes(4, "little")
    return numbers + bytes([radio.spreading_factor, radio.coding_rate + 4])


def _steps(settings: SerialLoraSettings) -> list[_Step]:
    radio, power = radio_bytes(settings), bytes([settings.power_dbm])
    return [
        (SET_RADIO, radio, OK, b""),
        (SET_POWER, power, OK, b""),
        (GET_RADIO, b"", RADIO, radio),
        (GET_POWER, b"", POWER, power),
        (GET_AIRTIME, bytes([PAYLOAD_MAX]), AIRTIME, b""),
    ]


def _shown(data: bytes) -> str:
    """The content of Radio or TxPower, in words."""
    if len(data) < 10:
        return f"{data[0] if data else 'no'} dBm"
    hz, bandwidth_hz = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
    return f"{hz} Hz, bandwidth {bandwidth_hz} Hz, SF {data[8]}, CR 4/{data[9]}"
