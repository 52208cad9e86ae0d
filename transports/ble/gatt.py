"""What the transport asks of a Bluetooth stack: one end of a connection that carries values.

The Nordic UART service: the central writes (without response) to RX, the peripheral notifies on TX.
One interface serves both ends, so the program on a board and that on a bridge are the same.
"""

from collections.abc import Callable
from typing import Protocol

from transports.base import TransportError

SERVICE_UUID = "6e400001-b5a3-f393-e0a9-e50e24dcca9e"
RX_UUID = "6e400002-b5a3-f393-e0a9-e50e24dcca9e"  # the central writes here
TX_UUID = "6e400003-b5a3-f393-e0a9-e50e24dcca9e"  # the peripheral notifies from here
ATT_HEADER = 3  # bytes of opcode and handle before a value
ATT_MTU_MIN, ATT_MTU_MAX = 23, 517
VALUE_MIN, VALUE_MAX = ATT_MTU_MIN - ATT_HEADER, 512  # no attribute is longer than 512 bytes


class GattError(TransportError):
    """The Bluetooth stack or the other end could not do it; the sentence says what."""


class GattEnd(Protocol):
    """One end of a connection; all of it is called in one event loop.

    `connect` may be called again after a connection has ended. Errors are GattError.
    """

    @property
    def initiator(self) -> bool:
        """Whether this end is the central, which opens the conversation."""

    @property
    def value_max(self) -> int:
        """The longest value in bytes now: the ATT MTU less its header; it may grow."""

    async def connect(
        self, on_value: Callable[[bytes], None], on_disconnect: Callable[[str], None]
    ) -> None:
        """Return when values pass both ways: a central seeks its peer, a peripheral waits for it.

        After that `on_value` gets each value, and `on_disconnect` once the reason for the end.
        """

    async def write(self, value: bytes) -> None:
        """Hand over one value of at most `value_max` bytes; nobody confirms it."""

    async def disconnect(self) -> None:
        """End the connection, or the attempt; may be called at any time."""


def value_max(att_mtu: int) -> int:
    """The longest value in bytes at an ATT MTU."""
    return max(VALUE_MIN, min(att_mtu - ATT_HEADER, VALUE_MAX))
