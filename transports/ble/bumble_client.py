"""The central's end of a connection, over bumble: what a board does, in one process for tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from transports.ble.bumble_stack import (
    BaseBumbleError,
    CharacteristicProxy,
    Connection,
    Device,
    HCI_ErrorCode,
    Peer,
)
from transports.ble.gatt import (
    ATT_MTU_MAX,
    ATT_MTU_MIN,
    RX_UUID,
    SERVICE_UUID,
    TX_UUID,
    GattError,
    value_max,
)

CONTROLLER_LOST = "the Bluetooth controller is gone"
CONNECT_S = 10.0  # from the connection until values can pass, and for its end


class BumbleClient:
    """Connects to the bridge at an address; see `transports.ble.gatt.GattEnd`.

    `open_device` is called once, in the transport's loop; see `bumble_stack.open_device`.
    """

    initiator = True

    def __init__(
        self, open_device: Callable[[], Awaitable[Device]], bridge: str, att_mtu: int = ATT_MTU_MAX
    ) -> None:
        self._open_device = open_device
        self._bridge = bridge
        self._att_mtu = att_mtu
        self._device: Device | None = None
        self._connection: Connection | None = None
        self._rx: CharacteristicProxy[bytes] | None = None

    @property
    def value_max(self) -> int:
        """The longest value in bytes now."""
        return value_max(self._connection.att_mtu if self._connection else ATT_MTU_MIN)

    async def connect(
        self, on_value: Callable[[bytes], None], on_disconnect: Callable[[str], None]
    ) -> None:
        """Seek the bridge for ever, then subscribe to it; see `GattEnd.connect`."""
        async with bumble_errors("connecting"):
            device = self._device = self._device or await self._opened()
            # A controller seeks for ever by itself, and not all of them let one cancel that.
            self._connection = connection = await device.connect(self._bridge, timeout=None)

        def ended(reason: int) -> None:
            if connection is self._connection:
                on_disconnect(reason_text(reason))

        connection.on(connection.EVENT_DISCONNECTION, ended)
        async with bumble_errors("looking for the service", CONNECT_S):
            peer = Peer(connection)
            await peer.request_mtu(self._att_mtu)
            for service in await peer.discover_service(SERVICE_UUID):
                await service.discover_characteristics()
            found = {str(c.uuid).lower(): c for s in peer.services for c in s.characteristics}
            if not {RX_UUID, TX_UUID} <= found.keys():
                raise GattError(f"{self._bridge} has no Nordic UART service")
            self._rx = found[RX_UUID]
            await found[TX_UUID].subscribe(on_value)

    async def _opened(self) -> Device:
        """The device, until its controller is lost: then it is opened anew."""
        device = await self._open_device()

        def lost() -> None:
            self._device = None

        device.on(Device.EVENT_FLUSH, lost)
        return device

    async def write(self, value: bytes) -> None:
        """See `GattEnd.write`."""
        if self._rx is None:
            raise GattError("not connected")
        async with bumble_errors("writing"):
            await self._rx.write_value(value, with_response=False)

    async def disconnect(self) -> None:
        """See `GattEnd.disconnect`."""
        connection, self._connection, self._rx = self._connection, None, None
        if connection is not None:
            await hang_up(connection)


def reason_text(reason: int) -> str:
    """A sentence for the reason that a controller gave; there is none where it is lost itself."""
    if reason == HCI_ErrorCode.SUCCESS:
        return CONTROLLER_LOST
    return f"the BLE connection ended: {HCI_ErrorCode(reason).name}"


async def hang_up(connection: Connection) -> None:
    """End `connection` unless it has ended."""
    if connection.device.connections.get(connection.handle) is connection:
        async with bumble_errors("disconnecting", CONNECT_S):
            await connection.disconnect()


@asynccontextmanager
async def bumble_errors(what: str, timeout_s: float | None = None) -> AsyncIterator[None]:
    """Turn bumble's errors, and being late, into GattError."""
    try:
        async with asyncio.timeout(timeout_s):
            try:
                yield
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # bumble cancels what waits for an answer when a connection ends.
                raise GattError(f"the BLE connection ended while {what}") from None
    except TimeoutError as error:
        raise GattError(f"{what} took more than {timeout_s} s") from error
    except BaseBumbleError as error:
        raise GattError(f"bumble failed while {what}: {error or type(error).__name__}") from error
