"""REYAX RYLR998, 498, 896 and 406: AT commands, one at a time, each waiting for its answer.

The modem answers AT+SEND only when the frame has left. It adds 8 bytes to each payload on the air.
Its messages are lines that end with CR LF:

    +OK            +ERR=<code>       +READY            +<NAME>=<value>
    +RCV=<address>,<length>,<data>,<rssi>,<snr>

A +RCV may come at any time, also between a command and its answer. Its data may hold commas and
line ends: only its length counts.
"""

import re
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

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
from transports.serial_lora.settings import SerialLoraSettings

DATA_MAX = 240
HIDDEN_BYTES = 8
BANDWIDTH_CODES: dict[float, int] = {125: 7, 250: 8, 500: 9}
ANSWER_S = 2.0  # for commands that send nothing; some of them write to flash
QUIET_S = 0.2  # for answers to commands of an earlier process, which are ignored
SLOW_MAX = 4  # times as long as that is waited for a modem that answers late
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
WHILE_RECEIVING = (12, 18, 19)  # These answer no command.

_HEAD = re.compile(rb"\+RCV=(\d{1,5}),(\d{1,3}),")
_END = rb"(?:\r\n?|\n)"  # bridges and adapters may change the modem's CR LF
_TAIL = re.compile(rb",(-?\d{1,4}),(-?\d{1,4})" + _END)
_TAIL_MAX = 14
_LINE = re.compile(rb"\+([A-Z]{2,12})(?:=([^\r\n+]{0,64}))?" + _END)
_PARTIAL = re.compile(rb"\+[A-Z]{0,12}(?:=[^\r\n+]{0,64})?")


@dataclass(frozen=True, slots=True)
class Heard:
    """A +RCV."""

    data: bytes
    rssi_dbm: float
    snr_db: float


@dataclass(frozen=True, slots=True)
class TextLine:
    """Any other line: +NAME or +NAME=value."""

    name: str
    value: str = ""

    @property
    def error(self) -> int | None:
        """The code of an +ERR, 0 where it has none; None for another line."""
        if self.name != "ERR":
            return None
        return int(self.value) if self.value.isdecimal() and self.value.isascii() else 0


class ReyaxParser:
    """Finds messages in a stream; runs of bytes that belong to none are counted in `malformed`.

    At most one incomplete message is kept, so memory is bounded by the longest +RCV.
    """

    def __init__(self) -> None:
        self.malformed = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Heard | TextLine]:
        self._buffer += data
        messages: list[Heard | TextLine] = []
        while self._buffer:
            start = self._buffer.find(b"+")
            if start:
                self._skip(len(self._buffer) if start < 0 else start)
                continue
            message, size = self._first()
            if message is not None:
                messages.append(message)
                del self._buffer[:size]
            elif size:
                self._skip(size)
            else:
                break
        return messages

    def flush(self) -> list[Heard | TextLine]:
        messages: list[Heard | TextLine] = []
        while self._buffer:
            self._skip(1)
            messages += self.feed(b"")
        return messages

    def _first(self) -> tuple[Heard | TextLine | None, int]:
        """The message at the front and its size.

        (None, 1) if there is none, (None, 0) if that depends on further bytes.
        """
        buffer = self._buffer
        if head := _HEAD.match(buffer):
            end = head.end() + int(head[2])
            if int(head[2]) > DATA_MAX:
                return None, 1
            if tail := _TAIL.match(buffer, end):
                data = bytes(buffer[head.end() : end])
                return Heard(data, float(tail[1]), float(tail[2])), tail.end()
            short = len(buffer) < end + _TAIL_MAX and not {*b"\r\n"} & {*buffer[end:]}
            return None, int(not short)
        if line := _LINE.match(buffer):
            name, value = line[1].decode(), (line[2] or b"").decode("latin-1")
            return (TextLine(name, value), line.end()) if name != "RCV" else (None, 1)
        return None, int(not _PARTIAL.fullmatch(buffer))

    def _skip(self, count: int) -> None:
        self.malformed += bool(self._buffer[:count].strip(b"\r\n"))
        del self._buffer[:count]


class _Phase(Enum):
    QUIET = auto()  # the rest of a half command is filled up, and late answers are ignored
    HELLO = auto()  # AT was written
    ASK = auto()  # the value of a setting was asked for
    SET = auto()  # a setting was written
    READY = auto()  # nothing is under way, or AT+SEND


class Reyax(Dialect[Heard | TextLine]):
    payload_max = DATA_MAX
    overhead = HIDDEN_BYTES
    tries_max = 5

    def __init__(self, settings: SerialLoraSettings) -> None:
        super().__init__(settings, ReyaxParser())
        self._phase = _Phase.QUIET
        self._steps: deque[tuple[str, str]] = deque()  # settings that are not compared yet
        self._asked = "AT"  # the command before
        self._is_written = False  # whether the setting at the front is asked for after a change
        self._slow = 1  # times as long as usual an answer is waited for

    @property
    def idle(self) -> bool:
        return super().idle and self._phase is _Phase.READY

    def send(self, payload: bytes, now: float) -> list[Event]:
        """Send to all modems of the network: the payload itself names its receiver."""
        command = b"AT+SEND=0,%d,%b\r\n" % (len(payload), payload)
        return self._launch(payload, command, now, self._settings.answer_margin_s)

    def handle_timeout(self, now: float) -> list[Event]:
        if self._phase is _Phase.QUIET:
            return self._command(_Phase.HELLO, "AT", now)
        refused = self._settle(PayloadRefused("the modem did not answer"))
        if refused:
            self._tries = 0
        self._slow = min(SLOW_MAX, 2 * self._slow)
        # An answer names no command: a late one must not pass for that to the next.
        return refused + self._attract(now, self._slow * ANSWER_S)

    def _set_up(self, now: float) -> list[Event]:
        """Get the modem's attention, then compare its settings and change those that differ."""
        self._steps = deque(modem_settings(self._settings))
        self._asked, self._is_written = "AT", False
        return self._attract(now)

    def _attract(self, now: float, quiet_s: float = 0.0) -> list[Event]:
        """End any half command that the modem holds, and begin again."""
        self._phase = _Phase.QUIET
        ending = FILLER if self._tries else b"\r\n"
        failure = f"no REYAX modem answers {self._asked}"
        return self._attempt(ending, now + max(QUIET_S, quiet_s), failure)

    def _command(self, phase: _Phase, command: str, now: float) -> list[Event]:
        self._phase, self._asked = phase, command
        self.deadline = now + self._slow * ANSWER_S
        return [Write(f"{command}\r\n".encode())]

    def _message(self, message: Heard | TextLine, now: float) -> list[Event]:
        if isinstance(message, Heard):
            return [Received(message.data, message.rssi_dbm, message.snr_db)]
        error = message.error
        if error in WHILE_RECEIVING:
            return [Noise()]
        if message.name == "READY" and self._phase is not _Phase.QUIET:
            return self._restart("the modem has restarted", now)
        ok = message.name == "OK"
        match self._phase:
            case _Phase.HELLO if ok:
                return self._next_step(now)
            case _Phase.ASK if error is not None or message.name == self._steps[0][0]:
                return self._compare(message, now)
            case _Phase.SET if ok:
                self._is_written = True
                return self._next_step(now)
            case _Phase.SET if error is not None:
                return [Broken(f"the modem refuses {self._asked}: {error_text(error, ERRORS)}")]
            case _Phase.READY if ok:
                return self._settle(Sent())
            case _Phase.READY if error is not None:
                return self._refused(error, now)
        return []

    def _compare(self, message: TextLine, now: float) -> list[Event]:
        """Change the setting at the front where it differs, once; then begin with the next."""
        name, value = self._steps[0]
        # Numbers alone are compared: a firmware may write a blank, or ",M" behind a BAND.
        is_same = re.findall(r"\d+", message.value) == re.findall(r"\d+", value)
        if self._is_written if message.name == "ERR" else is_same:  # then it can only be told
            self._steps.popleft()
            self._is_written = False
            self._tries = 0  # it answers, however slowly
            return self._next_step(now)
        if self._is_written:
            kept = f"the modem keeps {name}={message.value} after AT+{name}={value}"
            return [Broken(f"{kept}: choose a value that its model allows")]
        return self._command(_Phase.SET, f"AT+{name}={value}", now)

    def _next_step(self, now: float) -> list[Event]:
        """Ask for the next setting, so that flash is written only where one differs."""
        self._heard = b""
        if self._steps:
            return self._command(_Phase.ASK, f"AT+{self._steps[0][0]}?", now)
        self._phase = _Phase.READY
        return self._be_ready()

    def _refused(self, error: int, now: float) -> list[Event]:
        if self._in_flight is None:
            return []
        again_in_s = self._air_s(self._in_flight) if error == _STILL_SENDING else None
        if error not in _GARBLED:
            return self._settle(PayloadRefused(error_text(error, ERRORS), again_in_s))
        # The modem may take the rest of the command for further ones: more errors will follow.
        self._tries = 0
        refused = self._settle(PayloadRefused(error_text(error, ERRORS), 0.0))
        return refused + self._attract(now)


def modem_settings(settings: SerialLoraSettings) -> list[tuple[str, str]]:
    """AT names and values; the network comes first, since the preamble depends on it."""
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
