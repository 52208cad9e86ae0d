"""What every emulated modem is: a protocol without I/O or clock between a serial line and the air.

All its methods return what the modem does at once.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes for the host."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Transmit:
    """The modem sends; one that `listens` waits for the end of what is on the air."""

    payload: bytes
    airtime_us: int
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """`paused` is to be called after so much radio time, unless there is another Pause before."""

    seconds: float


Action = Output | Transmit | Pause


@dataclass(frozen=True, slots=True)
class Reception:
    """A transmission of another modem as it arrived."""

    payload: bytes
    rssi_dbm: int
    snr_db: int


class EmulatedModem(Protocol):
    """One modem; it has at most one transmission under way."""

    fail_next: list[int]  # error codes for the next sends, in place of sending

    @property
    def tuning(self) -> Hashable:
        """Modems with equal tuning hear each other; one whose tuning is None hears nothing."""

    def power_up(self) -> list[Action]:
        """Begin anew; what was kept in flash is still there."""

    def receive_bytes(self, data: bytes) -> list[Action]:
        """Bytes from the host."""

    def transmitted(self) -> list[Action]:
        """The transmission is over."""

    def hear(self, heard: Reception) -> list[Action]:
        """A transmission of another modem has arrived."""

    def paused(self) -> list[Action]:
        """The pause that it asked for is over."""
