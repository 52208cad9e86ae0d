"""Both ends of a connection over bumble, a Bluetooth host stack in Python.

`BumbleBridge` is the peripheral: a bridge with a Bluetooth controller. `BumbleClient` is the
central: a board whose controller bumble drives, or a simulated one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ternmesh.extras import installed
from transports.base import MissingExtra
from transports.ble.gatt import (
    ADVERTISED_MAX,
    ATT_MTU_MAX,
    ATT_MTU_MIN,
    RX_UUID,
    SERVICE_UUID,
    TX_UUID,
    GattError,
    value_max,
)

with installed("ble-bridge", "a BLE bridge needs the package bumble", MissingExtra):
    from bumble.att import Attribute
    from bumble.core import UUID, AdvertisingData, BaseBumbleError
    from bumble.device import Connection, Device, Peer
    from bumble.gatt import Characteristic, CharacteristicValue, Service
    from bumble.gatt_client import CharacteristicProxy
    from bumble.hci import Address, HCI_ErrorCode
    from bumble.transport import open_transport

CONTROLLER_LOST = "the Bluetooth controller is gone"
CONNECT_S = 10.0  # from the connection until values can pass, and for its end
ADVERTISING_MS = 100.0  # between advertisements: a bridge has power, and a board should not wait
SUBSCRIBE_S = 10.0  # how long a board that connected may take to subscribe

OnValue = Callable[[bytes], None]
OnDisconnect = Callable[[str], None]


async def open_device(hci: str, address: str) -> Device:
    """The powered Bluetooth controller that bumble calls `hci`, such as `usb:0`.

    `address` is a static random one, such as F0:F1:F2:F3:F4:05. The controller is held until the
    program ends. Tried with simulated controllers over TCP, with no real one.
    """
    transport = await open_transport(hci)
    device = Device.with_hci(address, Address(address), transport.source, transport.sink)
    try:
        async with _bumble_errors("switching the controller on", CONNECT_S):
            await device.power_on()
    except BaseException:
        await transport.close()  # else it would keep the next attempt out
        raise
    return device


class _BumbleEnd:
    """What both ends share; see `transports.ble.gatt.GattEnd`.

    `open_device` is called in the loop of the transport: at first, and after a controller is lost.
    """

    def __init__(self, open_device: Callable[[], Awaitable[Device]], att_mtu: int) -> None:
        self._open_device = open_device
        self._att_mtu = att_mtu
        self._device: Device | None = None
        self._connection: Connection | None = None

    @property
    def value_max(self) -> int:
        return value_max(self._connection.att_mtu if self._connection else ATT_MTU_MIN)

    async def _hang_up(self) -> None:
        connection = self._connection
        self._connection = None
        if connection and connection.device.connections.get(connection.handle) is connection:
            async with _bumble_errors("disconnecting", CONNECT_S):
                await connection.disconnect()


class BumbleClient(_BumbleEnd):
    """The central: connects to the bridge at an address."""

    initiator = True

    def __init__(
        self, open_device: Callable[[], Awaitable[Device]], bridge: str, att_mtu: int = ATT_MTU_MAX
    ) -> None:
        super().__init__(open_device, att_mtu)
        self._bridge = bridge
        self._rx: CharacteristicProxy[bytes] | None = None

    async def connect(self, on_value: OnValue, on_disconnect: OnDisconnect) -> None:
        """Seek the bridge without end, then subscribe to it; see `GattEnd.connect`."""
        async with _bumble_errors("connecting"):
            if self._device is None:
                self._device = await self._open_device()
                self._device.on(Device.EVENT_FLUSH, self._device_lost)
            # A controller seeks without end by itself, and not all of them let one cancel that.
            connection = await self._device.connect(self._bridge, timeout=None)
            self._connection = connection

        def ended(reason: int) -> None:
            if connection is self._connection:
                on_disconnect(_reason_text(reason))

        connection.on(connection.EVENT_DISCONNECTION, ended)
        async with _bumble_errors("looking for the service", CONNECT_S):
            peer = Peer(connection)
            await peer.request_mtu(self._att_mtu)
            for service in await peer.discover_service(SERVICE_UUID):
                await service.discover_characteristics()
            characteristics = {
                str(one.uuid).lower(): one
                for service in peer.services
                for one in service.characteristics
            }
            if not {RX_UUID, TX_UUID} <= characteristics.keys():
                raise GattError(f"{self._bridge} has no Nordic UART service")
            self._rx = characteristics[RX_UUID]
            await characteristics[TX_UUID].subscribe(on_value)

    async def write(self, value: bytes) -> None:
        if self._rx is None:
            raise GattError("not connected")
        async with _bumble_errors("writing"):
            await self._rx.write_value(value, with_response=False)

    async def disconnect(self) -> None:
        self._rx = None
        await self._hang_up()

    def _device_lost(self) -> None:
        self._device = None


class BumbleBridge(_BumbleEnd):
    """The peripheral: waits for one board; while it is connected, the bridge does not advertise."""

    initiator = False

    def __init__(
        self, open_device: Callable[[], Awaitable[Device]], name: str, att_mtu: int = ATT_MTU_MAX
    ) -> None:
        super().__init__(open_device, att_mtu)
        self._name = name
        self._arrived = asyncio.Event()  # a board has connected
        self._subscribed = asyncio.Event()  # it has subscribed, or is gone
        self._ended = ""  # why the connection or the controller is gone
        self._on_value: OnValue | None = None
        self._on_disconnect: OnDisconnect | None = None
        self._tx: Characteristic[bytes] | None = None  # that of the present device

    async def connect(self, on_value: OnValue, on_disconnect: OnDisconnect) -> None:
        """Advertise until a board has connected and subscribed; see `GattEnd.connect`."""
        self._on_value = on_value
        self._on_disconnect = on_disconnect
        self._ended = ""
        self._arrived.clear()
        self._subscribed.clear()
        async with _bumble_errors("advertising", CONNECT_S):
            if self._device is None:
                self._device = await self._prepared()
            await self._device.start_advertising(
                advertising_data=bytes(_advertisement()),
                scan_response_data=bytes(_scan_response(self._name)),
                advertising_interval_min=ADVERTISING_MS,
                advertising_interval_max=ADVERTISING_MS,
            )
        await self._arrived.wait()
        if not self._ended:
            async with _bumble_errors("waiting for a board to subscribe", SUBSCRIBE_S):
                await self._subscribed.wait()
        if self._ended:
            raise GattError(self._ended)

    async def write(self, value: bytes) -> None:
        if self._device is None or self._connection is None or self._tx is None:
            raise GattError("not connected")
        async with _bumble_errors("notifying"):
            await self._device.notify_subscriber(self._connection, self._tx, value)

    async def disconnect(self) -> None:
        self._on_value = None
        self._on_disconnect = None
        await self._hang_up()
        if self._device is not None:
            async with _bumble_errors("ending to advertise", CONNECT_S):
                await self._device.stop_advertising()

    async def _prepared(self) -> Device:
        """The device with our service, until its controller is lost."""
        device = await self._open_device()
        device.gatt_server.max_mtu = self._att_mtu
        rx = Characteristic[bytes](
            RX_UUID,
            Characteristic.Properties.WRITE_WITHOUT_RESPONSE | Characteristic.Properties.WRITE,
            Attribute.WRITEABLE,
            CharacteristicValue(write=self._written),
        )
        self._tx = tx = Characteristic[bytes](
            TX_UUID, Characteristic.Properties.NOTIFY, Attribute.READABLE
        )
        tx.on(Characteristic.EVENT_SUBSCRIPTION, self._subscription)
        device.add_service(Service(SERVICE_UUID, [rx, tx]))
        device.on(Device.EVENT_CONNECTION, self._connected)
        device.on(Device.EVENT_FLUSH, self._device_lost)
        return device

    def _device_lost(self) -> None:
        """The controller is gone; `connect` opens it anew."""
        self._device = None
        self._ended = CONTROLLER_LOST
        self._arrived.set()

    def _connected(self, connection: Connection) -> None:
        self._connection = connection
        self._arrived.set()

        def ended(reason: int) -> None:
            if connection is self._connection:
                self._ended = _reason_text(reason)
                self._subscribed.set()
                if self._on_disconnect is not None:
                    self._on_disconnect(self._ended)

        connection.on(Connection.EVENT_DISCONNECTION, ended)

    def _subscription(self, connection: Connection, notify: bool, _indicate: bool) -> None:
        if connection is self._connection and notify:
            self._subscribed.set()

    def _written(self, connection: Connection, value: bytes) -> None:
        if connection is self._connection and self._on_value is not None:
            self._on_value(value)


def _advertisement() -> AdvertisingData:
    flags = AdvertisingData.Flags.LE_GENERAL_DISCOVERABLE_MODE
    flags |= AdvertisingData.Flags.BR_EDR_NOT_SUPPORTED
    uuids = AdvertisingData.Type.COMPLETE_LIST_OF_128_BIT_SERVICE_CLASS_UUIDS
    return AdvertisingData(
        [(AdvertisingData.Type.FLAGS, bytes([flags])), (uuids, bytes(UUID(SERVICE_UUID)))]
    )


def _scan_response(name: str) -> AdvertisingData:
    text = name.encode()[:ADVERTISED_MAX]
    return AdvertisingData([(AdvertisingData.Type.COMPLETE_LOCAL_NAME, text)])


def _reason_text(reason: int) -> str:
    """A sentence for the reason that a controller gave; a lost controller gives none."""
    if reason == HCI_ErrorCode.SUCCESS:
        return CONTROLLER_LOST
    return f"the BLE connection ended: {HCI_ErrorCode(reason).name}"


@asynccontextmanager
async def _bumble_errors(what: str, timeout_s: float | None = None) -> AsyncIterator[None]:
    """Turn errors of bumble, and a time-out, into GattError."""
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
