"""An emulated modem: a protocol without I/O or clock between a serial line and the air.

Its methods return what the modem does at once.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from ternmesh.link.airtime import LoraSetting, airtime_us


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes for the host."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Transmit:
    """The modem sends; one that `listens` waits for the end of other transmissions."""

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


class EmulatedModem(ABC):
    """One modem; it has at most one transmission under way.

    `fail_next`: error codes with which the next sends fail.
    """

    def __init__(self) -> None:
        self.fail_next: list[int] = []
        self._sending = False
        self._queue: deque[bytes] = deque()  # of modems that have one

    @property
    @abstractmethod
    def tuning(self) -> Hashable:
        """Modems of equal tuning receive each other; one whose tuning is None receives nothing."""

    def power_up(self) -> list[Action]:
        """Begin anew; settings in flash are kept."""
        self._sending = False
        self._queue.clear()
        return []

    @abstractmethod
    def receive_bytes(self, data: bytes) -> list[Action]:
        """Bytes from the host."""

    @abstractmethod
    def transmitted(self) -> list[Action]:
        """The transmission is over."""

    @abstractmethod
    def hear(self, heard: Reception) -> list[Action]:
        """A transmission of another modem has arrived."""

    def paused(self) -> list[Action]:
        """The pause of the last `Pause` is over."""
        return []

    def _send_next(self, radio: LoraSetting | None) -> list[Action]:
        """Begin to send what is first in the queue, unless something is on its way."""
        if self._sending or not self._queue or radio is None:
            return []
        self._sending = True
        payload = self._queue.popleft()
        return [Transmit(payload, airtime_us(radio, len(payload)), listens=True)]
