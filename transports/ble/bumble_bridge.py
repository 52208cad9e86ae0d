"""The peripheral's end of a connection, over bumble: a bridge with a Bluetooth controller.

One board at a time: while it is connected the bridge does not advertise.
"""

import asyncio
from collections.abc import Awaitable, Callable

from transports.ble.bumble_client import CONTROLLER_LOST, bumble_errors, hang_up, reason_text
from transports.ble.bumble_stack import (
    UUID,
    AdvertisingData,
    Attribute,
    Characteristic,
    CharacteristicValue,
    Connection,
    Device,
    Service,
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

ADVERTISING_MS = 100.0  # between advertisements: a bridge has power, and a board should not wait
SUBSCRIBE_S = 10.0  # how long a board that connected may take to subscribe


class BumbleBridge:
    """Waits for a board; see `transports.ble.gatt.GattEnd`.

    `open_device` is called once, in the transport's loop; see `bumble_stack.open_device`.
    """

    initiator = False

    def __init__(
        self, open_device: Callable[[], Awaitable[Device]], name: str, att_mtu: int = ATT_MTU_MAX
    ) -> None:
        self._open_device = open_device
        self._name = name
        self._att_mtu = att_mtu
        self._device: Device | None = None
        self._connection: Connection | None = None
        self._arrived = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._ended = ""
        self._on_value: Callable[[bytes], None] | None = None
        self._on_disconnect: Callable[[str], None] | None = None
        self._tx: Characteristic[bytes] | None = None  # that of the present device

    @property
    def value_max(self) -> int:
        """The longest value in bytes now."""
        return value_max(self._connection.att_mtu if self._connection else ATT_MTU_MIN)

    async def connect(
        self, on_value: Callable[[bytes], None], on_disconnect: Callable[[str], None]
    ) -> None:
        """Advertise until a board has connected and subscribed; see `GattEnd.connect`."""
        self._on_value, self._on_disconnect, self._ended = on_value, on_disconnect, ""
        self._arrived.clear()
        self._subscribed.clear()
        async with bumble_errors("advertising"):
            if self._device is None:
                self._device = await self._prepared()
            await self._device.start_advertising(
                advertising_data=bytes(_advertisement()),
                scan_response_data=bytes(_scan_response(self._name)),
                advertising_interval_min=ADVERTISING_MS,
                advertising_interval_max=ADVERTISING_MS,
            )
        await self._arrived.wait()
        if self._ended:
            raise GattError(self._ended)
        async with bumble_errors("waiting for a board to subscribe", SUBSCRIBE_S):
            await self._subscribed.wait()
        if self._ended:
            raise GattError(self._ended)

    async def write(self, value: bytes) -> None:
        """See `GattEnd.write`."""
        if self._device is None or self._connection is None or self._tx is None:
            raise GattError("not connected")
        async with bumble_errors("notifying"):
            await self._device.notify_subscriber(self._connection, self._tx, value)

    async def disconnect(self) -> None:
        """See `GattEnd.disconnect`."""
        connection, self._connection = self._connection, None
        self._on_value = self._on_disconnect = None
        if connection is not None:
            await hang_up(connection)
        if self._device is not None:
            async with bumble_errors("ending to advertise"):
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
        self._device, self._ended = None, CONTROLLER_LOST
        self._arrived.set()

    def _connected(self, connection: Connection) -> None:
        self._connection = connection
        self._arrived.set()

        def ended(reason: int) -> None:
            if connection is self._connection:
                self._ended = reason_text(reason)
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
    """29 bytes are left for a name here."""
    return AdvertisingData([(AdvertisingData.Type.COMPLETE_LOCAL_NAME, name.encode()[:29])])
