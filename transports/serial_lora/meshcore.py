"""MeshCore's KISS modem firmware: standard KISS, with SetHardware (6) for all that is about radio.

From docs/kiss_modem_protocol.md of its repository. One frame may be pending; TxDone follows it.
Numbers are little-endian. The frames are ours: MeshCore's own nodes ignore them.
"""

from collections import deque

from ternmesh.link.airtime import airtime_us
from transports.serial_lora import kiss
from transports.serial_lora.dialect import Broken, Event, Noise, Received, Refused, Sent, Write
from transports.serial_lora.settings import SerialLoraSettings

DATA, SET_HARDWARE = 0x00, 0x06
SET_RADIO, SET_POWER, GET_AIRTIME = 0x09, 0x0A, 0x0F
AIRTIME, OK, ERROR, TX_DONE, RX_META = 0x8F, 0xF0, 0xF1, 0xF8, 0xF9
TX_BUSY = 7
ERRORS = {
    1: "too few bytes",
    2: "a value out of range",
    3: "it has no such feature",
    5: "it does not know the command",
    7: "it is still sending",
    8: "this board does not support it",
}
PAYLOAD_MAX = 255
ANSWER_S = 2.0
TRIES_MAX = 4
CSMA_S = 2.0  # it listens before it sends: half a second of key-up delay, and slots of 0.1 s
BUSY_S = 0.25


class Meshcore:
    """See `Dialect`."""

    payload_max = PAYLOAD_MAX

    def __init__(self, settings: SerialLoraSettings) -> None:
        self.deadline: float | None = None
        self.ready = False
        self._settings = settings
        self._steps: deque[tuple[int, bytes, int]] = deque()  # sub-command, data, right answer
        self._extra_us = 0  # by which the modem's own estimate of airtime exceeds ours
        self._unframer = kiss.Unframer()
        self._malformed = 0
        self._tries = 0
        self._in_flight = False

    @property
    def idle(self) -> bool:
        """Whether nothing is pending in the modem."""
        return self.ready and not self._in_flight

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of a payload, in microseconds: ours or the modem's, the longer one."""
        return airtime_us(self._settings.radio, payload_bytes) + self._extra_us

    def start(self, now: float) -> list[Event]:
        """Set the radio, then ask how long the longest frame takes."""
        self.ready = False
        self._tries = 0
        self._steps = deque(_steps(self._settings))
        return self._ask(now)

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Send; TxDone tells when it has left."""
        assert self.idle
        self._in_flight = True
        air_s = (self.airtime_us(len(payload)) / 1e6 + CSMA_S) / self._settings.speed
        self.deadline = now + air_s + self._settings.answer_margin_s
        return [Write(kiss.frame(DATA, payload))]

    def receive_bytes(self, data: bytes, now: float) -> list[Event]:
        """Take what the modem says."""
        events: list[Event] = []
        for command, content in self._unframer.feed(data):
            if command == DATA and content:
                events.append(Received(content))
            elif command == SET_HARDWARE and content:
                events += self._hardware(content[0], content[1:], now)
        new = self._unframer.malformed - self._malformed
        self._malformed += new
        return events + [Noise("bytes that are no KISS")] * new

    def line_idle(self, _now: float) -> list[Event]:
        """Nothing: the next FEND ends whatever is incomplete."""
        return []

    def handle_timeout(self, now: float) -> list[Event]:
        """The modem did not answer."""
        if not self.ready:
            return self._ask(now)
        self._in_flight = False
        return [Refused("the modem did not answer"), *self.start(now)]

    def _ask(self, now: float) -> list[Event]:
        """Send the command at the front, or end the set-up."""
        if not self._steps:
            self.ready = True
            self.deadline = None
            return []
        self._tries += 1
        if self._tries > TRIES_MAX:
            return [Broken(f"no MeshCore modem answers command {self._steps[0][0]}")]
        self.deadline = now + ANSWER_S
        code, data, _ = self._steps[0]
        return [Write(kiss.frame(SET_HARDWARE, bytes([code]) + data))]

    def _hardware(self, code: int, data: bytes, now: float) -> list[Event]:
        if self._in_flight and (code == TX_DONE or (code == ERROR and data)):
            return [self._settle(code, data)]
        if code == ERROR and data and not self.ready:
            command = self._steps[0][0]
            return [Broken(f"the modem refuses command {command}: {_sentence(data[0])}")]
        if self._steps and code == self._steps[0][2]:
            if code == AIRTIME:
                self._compare(data)
            self._steps.popleft()
            self._tries = 0
            return self._ask(now)
        return []

    def _settle(self, code: int, data: bytes) -> Event:
        self._in_flight = False
        self.deadline = None
        if code == TX_DONE:
            return Sent() if data == b"\x01" else Refused("the radio could not send")
        again = BUSY_S / self._settings.speed if data[0] == TX_BUSY else None
        return Refused(_sentence(data[0]), again)

    def _compare(self, data: bytes) -> None:
        """A longer preamble than ours costs the same for each frame, so one frame tells all."""
        modem_us = int.from_bytes(data[:4], "little") * 1000
        ours_us = airtime_us(self._settings.radio, PAYLOAD_MAX)
        if modem_us > ours_us:
            self._extra_us = min(ours_us, modem_us + 1000 - ours_us)  # It rounds to milliseconds.


def _steps(settings: SerialLoraSettings) -> list[tuple[int, bytes, int]]:
    radio = settings.radio
    numbers = settings.frequency_hz.to_bytes(4, "little")
    numbers += (radio.bandwidth_khz * 1000).to_bytes(4, "little")
    numbers += bytes([radio.spreading_factor, radio.coding_rate + 4])
    return [
        (SET_RADIO, numbers, OK),
        (SET_POWER, bytes([settings.power_dbm]), OK),
        (GET_AIRTIME, bytes([PAYLOAD_MAX]), AIRTIME),
    ]


def _sentence(error: int) -> str:
    return f"error {error}, {ERRORS.get(error, 'of a kind not known here')}"
