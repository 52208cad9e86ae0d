"""What every dialect of a modem is: a protocol without I/O between payloads and serial bytes.

A dialect sets the modem up, hands it one payload at a time and reads what it says. All its methods
return what follows, in order; the link (`modem_link`) does it.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes for the modem."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """A payload that the radio heard."""

    payload: bytes
    rssi_dbm: float | None = None
    snr_db: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The payload in flight has left, as far as the modem can tell."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The payload in flight has not left; it may be offered again after `again_in_s`, if that.

    `garbled`: the modem did not understand the command, so its bytes may be to blame.
    """

    reason: str
    again_in_s: float | None = None
    garbled: bool = False


@dataclass(frozen=True, slots=True)
class Noise:
    """Something arrived that is no message, or a message about a loss: it is only counted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The modem does not answer as it should: the port is to be opened anew."""

    reason: str


Event = Write | Received | Sent | Refused | Noise | Broken


class Dialect(Protocol):
    """One modem; `now` is in seconds of the caller's clock."""

    @property
    def payload_max(self) -> int:
        """The longest payload in bytes."""

    @property
    def ready(self) -> bool:
        """Whether the modem is set up."""

    @property
    def idle(self) -> bool:
        """Whether `send` may be called: the modem is set up and has nothing in flight."""

    @property
    def deadline(self) -> float | None:
        """When `handle_timeout` is to be called, or None."""

    def airtime_us(self, payload_bytes: int) -> int:
        """The time on air of a payload, in microseconds; never less than it really takes."""

    def start(self, now: float, /) -> list[Event]:
        """The port has been opened: set the modem up."""

    def send(self, payload: bytes, now: float, /) -> list[Event]:
        """Put `payload` in flight; Sent or Refused follows, now or later."""

    def receive_bytes(self, data: bytes, now: float, /) -> list[Event]:
        """Take bytes from the modem; they may be anything."""

    def line_idle(self, now: float, /) -> list[Event]:
        """The modem has said nothing for a while: a message that is still incomplete stays so."""

    def handle_timeout(self, now: float, /) -> list[Event]:
        """Do what is due at `deadline`."""


class Budget(Protocol):
    """Who may forbid to send yet: the ledger of a duty cycle."""

    def may_send(self, airtime_us: int) -> float:
        """0.0 where this much airtime is reserved now, else the seconds to wait before asking.

        Infinity where it is more than is ever granted.
        """

    def close(self) -> None:
        """No more questions come; from the same thread as they did."""
