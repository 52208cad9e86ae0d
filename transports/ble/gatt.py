"""The interface to a Bluetooth stack: one end of a connection that carries values.

The Nordic UART service: the central writes (without response) to RX, the peripheral notifies on TX.
The interface is the same for both ends, so board and bridge run the same transport.
"""

from collections.abc import Callable
from typing import Protocol

from transports.base import TransportError

SERVICE_UUID = "6e400001-b5a3-f393-e0a9-e50e24dcca9e"
RX_UUID = "6e400002-b5a3-f393-e0a9-e50e24dcca9e"  # the central writes here
TX_UUID = "6e400003-b5a3-f393-e0a9-e50e24dcca9e"  # the peripheral notifies from here
ADVERTISED_MAX = 29  # bytes of a name in a scan response
ATT_HEADER = 3  # bytes of opcode and handle before a value
ATT_MTU_MIN, ATT_MTU_MAX = 23, 517
VALUE_MIN, VALUE_MAX = ATT_MTU_MIN - ATT_HEADER, 512  # no attribute is longer than 512 bytes


class GattError(TransportError):
    """The Bluetooth stack or the peer failed; the sentence tells at what."""


class GattEnd(Protocol):
    """One end of a connection; all calls come from one event loop.

    `connect` may be called again after a connection has ended. Errors are GattError.
    """

    @property
    def initiator(self) -> bool:
        """Whether this end is the central, which sends the first hello."""

    @property
    def value_max(self) -> int:
        """The longest value in bytes now: the ATT MTU less its header. It may grow."""

    async def connect(
        self, on_value: Callable[[bytes], None], on_disconnect: Callable[[str], None]
    ) -> None:
        """Return when values can pass both ways: a central seeks its peer, a peripheral waits.

        `on_value` is called with each value, `on_disconnect` once with the reason for the end.
        """

    async def write(self, value: bytes) -> None:
        """Send one value of at most `value_max` bytes, without confirmation."""

    async def disconnect(self) -> None:
        """End the connection, or the attempt; may be called at any time."""


def value_max(att_mtu: int) -> int:
    """The longest value in bytes at an ATT MTU."""
    return max(VALUE_MIN, min(att_mtu - ATT_HEADER, VALUE_MAX))
