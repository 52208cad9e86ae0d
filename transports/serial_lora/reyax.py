"""REYAX RYLR998, 498, 896 and 406: AT commands, one at a time, each waiting for its answer.

The modem answers AT+SEND only when the frame has left. It adds 8 bytes to each payload on the air,
and a +RCV may come at any time, also between a command and its answer.
"""

from collections import deque
from enum import Enum, auto

from ternmesh.link.airtime import airtime_us
from transports.serial_lora.dialect import Broken, Event, Noise, Received, Refused, Sent, Write
from transports.serial_lora.reyax_parser import DATA_MAX, Heard, Line, ReyaxParser
from transports.serial_lora.settings import SerialLoraSettings

HIDDEN_BYTES = 8
BANDWIDTH_CODES = {125: 7, 250: 8, 500: 9}
ANSWER_S = 2.0  # for commands that send nothing; some of them write to flash
QUIET_S = 0.2  # in which answers to commands of another time are let pass
TRIES_MAX = 5
FILLER = b"\r\n" * (DATA_MAX // 2 + 4)  # ends even a command that waits for the rest of its data
ERRORS = {
    1: "the command had no line end",
    2: "the command did not begin with AT",
    4: "it does not know the command",
    5: "the length does not match the data",
    10: "sending took too long",
    12: "a frame arrived damaged",
    13: "more than 240 bytes",
    14: "writing to flash failed",
    15: "an unknown failure",
    17: "the last transmission is not over",
    18: "a frame with a damaged preamble",
    19: "a frame with a damaged header",
    20: "smart receiving mode does not allow this",
}
_GARBLED, _STILL_SENDING = (1, 2, 4, 5), 17  # The frame has not left: it may be sent again.
_WHILE_RECEIVING = (12, 18, 19)  # These answer no command.


class _Phase(Enum):
    CLOSED = auto()
    QUIET = auto()
    HELLO = auto()
    ASK = auto()
    SET = auto()
    IDLE = auto()
    SENDING = auto()


class Reyax:
    """See `Dialect`."""

    payload_max = DATA_MAX

    def __init__(self, settings: SerialLoraSettings) -> None:
        self.deadline: float | None = None
        self._settings = settings
        self._parser = ReyaxParser()
        self._skipped = 0  # of the parser, as far as told
        self._phase = _Phase.CLOSED
        self._set_up = False
        self._in_flight = b""
        self._steps: deque[tuple[str, str]] = deque()
        self._tries = 0

    @property
    def ready(self) -> bool:
        """Whether the modem has the settings that were asked for."""
        return self._set_up

    @property
    def idle(self) -> bool:
        """Whether no command is under way."""
        return self._phase is _Phase.IDLE

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of a payload, with what the modem adds, in microseconds."""
        return airtime_us(self._settings.radio, payload_bytes + HIDDEN_BYTES)

    def start(self, now: float) -> list[Event]:
        """Get the modem's attention, then compare its settings and change those that differ."""
        self._steps = deque(_steps(self._settings))
        self._set_up = False
        self._tries = 0
        return self._attract(now)

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Send to all modems of the network: whom it concerns stands in the payload."""
        assert self.idle
        self._enter(_Phase.SENDING, now + self._air_s(payload) + self._settings.answer_margin_s)
        self._in_flight = payload
        return [Write(b"AT+SEND=0,%d,%b\r\n" % (len(payload), payload))]

    def receive_bytes(self, data: bytes, now: float) -> list[Event]:
        """Take what the modem says."""
        return self._take(self._parser.feed(data), now)

    def line_idle(self, now: float) -> list[Event]:
        """Give up an incomplete message."""
        return self._take(self._parser.flush(), now)

    def handle_timeout(self, now: float) -> list[Event]:
        """The modem did not answer, or has been quiet long enough."""
        if self._phase is _Phase.QUIET:
            self._enter(_Phase.HELLO, now + ANSWER_S)
            return [Write(b"AT\r\n")]
        if self._phase is _Phase.SENDING:
            self._tries = 0
            return [Refused("the modem did not answer"), *self._attract(now)]
        return self._attract(now)

    def _attract(self, now: float) -> list[Event]:
        """End whatever half command the modem holds, and begin again."""
        self._tries += 1
        if self._tries > TRIES_MAX:
            return [Broken("the modem does not answer AT: check the wiring and baud_rate")]
        self._enter(_Phase.QUIET, now + QUIET_S)
        return [Write(b"\r\n" if self._tries == 1 else FILLER)]

    def _take(self, messages: list[Heard | Line], now: float) -> list[Event]:
        events: list[Event] = []
        for message in messages:
            if isinstance(message, Heard):
                events.append(Received(message.data, message.rssi_dbm, message.snr_db))
            else:
                events += self._line(message, now)
        if self._parser.skipped > self._skipped:
            self._skipped = self._parser.skipped
            events.append(Noise("bytes between messages"))
        return events

    def _line(self, line: Line, now: float) -> list[Event]:
        error = _error(line)
        if error in _WHILE_RECEIVING:
            return [Noise(ERRORS[error])]
        if line.name == "READY" and self._phase is not _Phase.QUIET:
            lost: list[Event] = []
            if self._phase is _Phase.SENDING:
                lost.append(Refused("the modem has restarted"))
            return lost + self.start(now)
        ok = line.name == "OK"
        match self._phase:
            case _Phase.HELLO if ok:
                return self._next_step(now)
            case _Phase.ASK if error is not None or line.name == self._steps[0][0]:
                if error is None and line.value == self._steps[0][1]:
                    self._steps.popleft()
                    return self._next_step(now)
                self._enter(_Phase.SET, now + ANSWER_S)
                return [Write(b"AT+%b=%b\r\n" % _ascii(self._steps[0]))]
            case _Phase.SET if ok:
                self._steps.popleft()
                return self._next_step(now)
            case _Phase.SET if error is not None:
                name, value = self._steps[0]
                return [Broken(f"the modem refuses AT+{name}={value}: {_sentence(error)}")]
            case _Phase.SENDING if ok:
                self._enter(_Phase.IDLE)
                return [Sent()]
            case _Phase.SENDING if error is not None:
                return self._refused(error, now)
        return []

    def _next_step(self, now: float) -> list[Event]:
        """Ask for the next setting, so that flash is written only where one differs."""
        if not self._steps:
            self._tries = 0
            self._set_up = True
            self._enter(_Phase.IDLE)
            return []
        self._enter(_Phase.ASK, now + ANSWER_S)
        return [Write(b"AT+%b?\r\n" % _ascii(self._steps[0])[0])]

    def _refused(self, error: int, now: float) -> list[Event]:
        reason = _sentence(error)
        if error in _GARBLED:
            # The rest of the command may be taken for further ones: more errors will follow.
            self._tries = 0
            return [Refused(reason, 0.0, garbled=True), *self._attract(now)]
        self._enter(_Phase.IDLE)
        again_in_s = self._air_s(self._in_flight) if error == _STILL_SENDING else None
        return [Refused(reason, again_in_s)]

    def _air_s(self, payload: bytes) -> float:
        return self.airtime_us(len(payload)) / 1e6 / self._settings.speed

    def _enter(self, phase: _Phase, deadline: float | None = None) -> None:
        self._phase, self.deadline = phase, deadline


def _steps(settings: SerialLoraSettings) -> list[tuple[str, str]]:
    """The settings in the modem's words; the network comes first, as the preamble depends on it."""
    radio = settings.radio
    bandwidth = BANDWIDTH_CODES[radio.bandwidth_khz]
    numbers = (radio.spreading_factor, bandwidth, radio.coding_rate, radio.preamble_symbols)
    return [
        ("NETWORKID", str(settings.network_id)),
        ("ADDRESS", str(settings.own_address)),
        ("BAND", str(settings.frequency_hz)),
        ("PARAMETER", ",".join(map(str, numbers))),
        ("CRFOP", str(settings.power_dbm)),
    ]


def _ascii(step: tuple[str, str]) -> tuple[bytes, bytes]:
    return step[0].encode(), step[1].encode()


def _error(line: Line) -> int | None:
    if line.name != "ERR":
        return None
    return int(line.value) if line.value.isdecimal() and line.value.isascii() else 0


def _sentence(error: int) -> str:
    return f"error {error}, {ERRORS.get(error, 'which its manual does not have')}"
