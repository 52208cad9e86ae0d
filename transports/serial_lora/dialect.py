"""A modem's dialect: a protocol without I/O between payloads and the bytes of a serial line.

A dialect sets the modem up, hands it one payload at a time and reads its messages. Its methods
return events in the order in which the link (`transport.ModemLink`) must handle them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ternmesh.link.airtime import airtime_us
from transports.serial_lora.settings import SerialLoraSettings

HEARD_MAX = 32  # bytes of what something else answered that are shown

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes for the modem."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """A payload that the radio received."""

    payload: bytes
    rssi_dbm: float | None = None
    snr_db: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The payload in flight has left, as far as the modem can tell."""


@dataclass(frozen=True, slots=True)
class PayloadRefused:
    """The payload in flight has not left; it may be offered again after `again_in_s`.

    `again_in_s` is None where another attempt is useless.
    """

    reason: str
    again_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Noise:
    """Bytes that are no message, or a message about a loss or of others; it is only counted."""

    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """What the modem tells its owner, in its own words."""

    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The modem does not answer as it should: it must be set up anew, after a pause."""

    reason: str


Event = Write | Received | Sent | PayloadRefused | Noise | Notice | Broken


class StreamReader(Protocol[M]):
    """Finds messages of the type `M` in a stream of bytes; damaged ones are counted."""

    malformed: int

    def feed(self, data: bytes, /) -> list[M]:
        """The messages that `data` completes."""

    def flush(self) -> list[M]:
        """The messages that follow when the incomplete one at the front is given up."""


class Dialect(ABC, Generic[M]):
    """One modem that sends messages of the type `M`; `now` is in seconds of the caller's clock.

    `deadline`: when `handle_timeout` must be called. `ready`: the modem is set up.
    """

    payload_max: int  # bytes
    overhead = 0  # bytes that the modem adds to a payload on the air
    tries_max = 4  # of a command that is not answered

    def __init__(self, settings: SerialLoraSettings, reader: StreamReader[M]) -> None:
        self.deadline: float | None = None
        self.ready = False
        self._settings = settings
        self._radio = settings.radio
        self._reader = reader
        self._malformed = 0  # what was reported of the reader's count
        self._tries = 0  # of the command that waits for its answer
        self._restarts = 0  # since a payload was sent
        self._heard = b""  # the newest bytes since the last right answer
        self._in_flight: bytes | None = None  # the payload that the modem is sending

    @property
    def idle(self) -> bool:
        """Whether `send` may be called: the modem is set up and sends nothing."""
        return self.ready and self._in_flight is None

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of a payload, in microseconds; never less than it really takes."""
        return airtime_us(self._radio, payload_bytes + self.overhead)

    def start(self, now: float) -> list[Event]:
        """Set the modem up: the port has been opened, or the modem has restarted."""
        self.ready = False
        self._heard = b""
        self._in_flight = None
        self._tries = 0
        return self._set_up(now)

    @abstractmethod
    def send(self, payload: bytes, now: float) -> list[Event]:
        """Put `payload` in flight; Sent or Refused follows, now or later."""

    def receive_bytes(self, data: bytes, now: float) -> list[Event]:
        """Take bytes from the modem; they may be anything."""
        if not self.idle:
            self._heard = (self._heard + data)[-HEARD_MAX:]
        return self._take(self._reader.feed(data), now)

    def line_idle(self, now: float) -> list[Event]:
        """Give up an incomplete message: no bytes have come for a while."""
        return self._take(self._reader.flush(), now)

    @abstractmethod
    def handle_timeout(self, now: float) -> list[Event]:
        """Do what is due at `deadline`."""

    @abstractmethod
    def _set_up(self, now: float) -> list[Event]:
        """Begin to set the modem up."""

    @abstractmethod
    def _message(self, message: M, now: float) -> list[Event]:
        """Take one message of the modem."""

    def _take(self, messages: list[M], now: float) -> list[Event]:
        events: list[Event] = []
        for message in messages:
            events += self._message(message, now)
        new = self._reader.malformed - self._malformed
        self._malformed += new
        return events + [Noise()] * new

    def _air_s(self, payload: bytes) -> float:
        """The time on air of `payload` in seconds of the caller's clock."""
        return self.airtime_us(len(payload)) / 1e6 / self._settings.speed

    def _launch(
        self, payload: bytes, command: bytes, now: float, slack_s: float = 0.0
    ) -> list[Event]:
        """Put `payload` in flight; the outcome is due `slack_s` after its airtime."""
        assert self.idle
        self._in_flight = payload
        self.deadline = now + self._air_s(payload) + slack_s
        return [Write(command)]

    def _be_ready(self) -> list[Event]:
        """The modem is set up: nothing is due."""
        self.ready = True
        self.deadline = None
        self._heard = b""
        return []

    def _settle(self, outcome: Sent | PayloadRefused) -> list[Event]:
        """End the flight of the payload; nothing happens where none is in flight."""
        if self._in_flight is None:
            return []
        if isinstance(outcome, Sent):
            self._restarts = 0
        self._in_flight = None
        self._heard = b""
        self.deadline = None
        return [outcome]

    def _attempt(self, command: bytes, due: float, failure: str) -> list[Event]:
        """Write a command that must be answered until `due`; Broken after `tries_max` attempts."""
        self._tries += 1
        if self._tries > self.tries_max:
            said = f"; something says {ascii(self._heard)[1:]}" if self._heard else ""
            return [Broken(f"{failure}{said}: check wiring, port, dialect and baud_rate")]
        self.deadline = due
        return [Write(command)]

    def _restart(self, reason: str, now: float) -> list[Event]:
        """Set the modem up again, unless that was often in vain; a payload in flight is refused."""
        refused = [] if self._in_flight is None else [PayloadRefused(reason)]
        self._restarts += 1
        if self._restarts > self.tries_max:
            often = f"{reason} {self._restarts} times, and nothing was sent"
            return [*refused, Broken(f"{often}: check its power supply and its cable")]
        return [*refused, *self.start(now)]


def error_text(code: int, errors: Mapping[int, str]) -> str:
    """An error code of a modem with its meaning."""
    return f"error {code}, {errors.get(code, 'which is not documented')}"
