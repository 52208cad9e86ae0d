"""The central's end of a connection, over bleak: a board with BlueZ.

This adapter has not run on hardware: tests use stand-ins for bleak, since it needs a BlueZ daemon
and a radio. It is kept thin, so that the tested parts around it handle the failures.
"""

from collections.abc import Callable

from ternmesh.extras import installed
from transports.base import MissingExtra
from transports.ble import gatt

with installed("ble", "BLE needs the package bleak", MissingExtra):
    from bleak import BleakClient, BleakScanner
    from bleak.backends.characteristic import BleakGATTCharacteristic
    from bleak.exc import BleakError

SCAN_S = 10.0
CONNECT_S = 20.0
# bleak asks BlueZ over D-Bus.
NO_BLUEZ = "`sudo apt install bluez dbus`, then `sudo systemctl enable --now bluetooth`"


class BleakEnd:
    """Connects to the bridge of an address or name, or else to the first one in reach.

    See `transports.ble.gatt.GattEnd`.
    """

    initiator = True

    def __init__(self, bridge: str = "") -> None:
        self._bridge = bridge
        self._client: BleakClient | None = None
        self._rx: BleakGATTCharacteristic | None = None

    @property
    def value_max(self) -> int:
        """The longest value in bytes now; 20 with BlueZ before 5.62, whatever was negotiated."""
        size = self._rx.max_write_without_response_size if self._rx else 0
        return gatt.value_max(max(size + gatt.ATT_HEADER, gatt.ATT_MTU_MIN))

    async def connect(
        self, on_value: Callable[[bytes], None], on_disconnect: Callable[[str], None]
    ) -> None:
        """See `GattEnd.connect`. BlueZ negotiates the MTU by itself."""
        try:
            device = await BleakScanner.find_device_by_filter(
                lambda device, heard: (
                    self._bridge in (device.address, heard.local_name)
                    if self._bridge
                    else gatt.SERVICE_UUID in heard.service_uuids
                ),
                timeout=SCAN_S,
            )
            if device is None:
                raise gatt.GattError(f"no BLE bridge {self._bridge} is in reach")
            self._client = client = BleakClient(
                device, lambda client: self._ended(client, on_disconnect), timeout=CONNECT_S
            )
            await client.connect()
            self._rx = client.services.get_characteristic(gatt.RX_UUID)
            if self._rx is None:
                raise gatt.GattError(f"{device.address} has no Nordic UART service")
            await client.start_notify(gatt.TX_UUID, lambda _, value: on_value(bytes(value)))
        except (BleakError, TimeoutError, OSError) as error:
            why = str(error) or "it took too long"
            is_refused = type(error) in (FileNotFoundError, ConnectionRefusedError)
            if "ServiceUnknown" in why or is_refused:
                why += f": {NO_BLUEZ}"
            raise gatt.GattError(f"bleak could not connect: {why}") from error

    async def write(self, value: bytes) -> None:
        if self._client is None or self._rx is None:
            raise gatt.GattError("not connected")
        try:
            await self._client.write_gatt_char(self._rx, value, response=False)
        except BleakError as error:
            raise gatt.GattError(f"bleak could not write: {error}") from error

    async def disconnect(self) -> None:
        client = self._client
        self._client = None
        self._rx = None
        if client is not None:
            try:
                await client.disconnect()
            except (BleakError, TimeoutError) as error:
                raise gatt.GattError(f"bleak could not disconnect: {error}") from error

    def _ended(self, client: BleakClient, on_disconnect: Callable[[str], None]) -> None:
        if client is self._client:
            on_disconnect("the BLE connection ended")
